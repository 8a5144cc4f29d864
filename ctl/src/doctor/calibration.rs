//! Whether it is known how the GPUs change their clocks.

use std::collections::BTreeSet;

use pfo_protocol::{Calibration, Status};

use super::finding::Finding;

const CHECK: &str = "calibration";

/// One finding for each model of GPU of the node, as far as calibrations are known.
pub(super) fn check(status: &Status, known: &[Calibration]) -> Vec<Finding> {
    let Some(driver) = &status.daemon.driver else { return Vec::new() };
    let models: BTreeSet<_> = status.gpus.iter().map(|gpu| &gpu.model).collect();
    models.into_iter().map(|model| of_model(model, driver, known)).collect()
}

fn of_model(model: &str, driver: &str, known: &[Calibration]) -> Finding {
    let is_of = |one: &&Calibration| {
        one.gpu_model == model && one.driver == driver && !one.clocks.is_empty()
    };
    if known.iter().any(|one| is_of(&one)) {
        return Finding::ok(CHECK, format!("{model} is calibrated with driver {driver}"));
    }
    Finding::unknown(
        CHECK,
        format!(
            "{model} was never calibrated with driver {driver}: its clocks count as in force after \
             settle_ms of pfod.toml"
        ),
        "`pfoctl gpu calibrate JOB` measures it with a running job, and `pfoctl tune` by itself",
    )
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{CalibratedClock, Mhz};

    use super::*;
    use crate::doctor::finding::Level;

    #[test]
    fn a_calibration_is_of_one_model_and_one_driver() {
        let status: Status =
            serde_json::from_str(include_str!("../../tests/golden/status.json")).unwrap();
        let clock = CalibratedClock { mhz: Mhz(900), settle_us: 9, spread_us: 1, changes: 9 };
        let calibration = |gpu_model: &str, driver: &str, clocks| Calibration {
            gpu_model: gpu_model.into(),
            driver: driver.into(),
            uid: None,
            clocks,
            set_call_us: None,
            refresh_ms: None,
            measured_unix_s: 0,
            counter: None,
        };
        let (model, driver) = ("NVIDIA A100-SXM4-80GB", "550.54.15");
        let level = |calibration| {
            let [finding] = &check(&status, &[calibration])[..] else { panic!() };
            finding.level
        };
        assert_eq!(level(calibration(model, driver, vec![clock])), Level::Ok);
        assert_eq!(level(calibration(model, driver, vec![])), Level::Unknown);
        assert_eq!(level(calibration(model, "550.54", vec![clock])), Level::Unknown);
        assert_eq!(level(calibration("NVIDIA A40", driver, vec![clock])), Level::Unknown);
    }
}
