//! Whether it is known how the GPUs change their clocks, and that a lock of their memory clock does no harm.

use std::collections::BTreeSet;

use pfo_protocol::{Calibration, Status};

use super::finding::Finding;
use crate::memory_lock;

const CHECK: &str = "calibration";

/// One finding for each model of GPU of the node, as far as calibrations are known, and one more where
/// the memory clock had better not be locked.
pub(super) fn check(status: &Status, known: &[Calibration]) -> Vec<Finding> {
    let Some(driver) = &status.daemon.driver else { return Vec::new() };
    let models: BTreeSet<_> = status.gpus.iter().map(|gpu| &gpu.model).collect();
    let both =
        |model: &String| [Some(of_model(model, driver, known)), harmful_lock(model, driver, known)];
    models.into_iter().flat_map(both).flatten().collect()
}

fn harmful_lock(model: &str, driver: &str, known: &[Calibration]) -> Option<Finding> {
    let mut of_model = known.iter().filter(|one| one.gpu_model == model && one.driver == driver);
    let harms =
        of_model.any(|one| one.memory_lock.as_ref().and_then(memory_lock::harms) == Some(true));
    harms.then(|| {
        let message = format!("a lock of the memory clock harms on {model} with driver {driver}");
        Finding::warning(
            CHECK,
            message,
            "set lock_memory_clock = false in pfod.toml, then `pfoctl reload`; `pfoctl gpu show` has the figures",
        )
    })
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
    use pfo_protocol::{CalibratedClock, MemoryLock, Mhz, ShareMore};

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
            transfers_wait: None,
            refresh_ms: None,
            measured_unix_s: 0,
            counter: None,
            memory_lock: None,
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

        let slower = |share| MemoryLock { time: ShareMore { share, error: 0.01 }, energy: None };
        let levels = |memory_lock| {
            let known = Calibration { memory_lock, ..calibration(model, driver, vec![clock]) };
            check(&status, &[known]).iter().map(|finding| finding.level).collect::<Vec<_>>()
        };
        assert_eq!(levels(Some(slower(0.16))), [Level::Ok, Level::Warning]);
        assert_eq!(levels(Some(slower(0.01))), [Level::Ok], "by chance");
    }
}
