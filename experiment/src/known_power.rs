//! Which of the known P2P-blocking powers plans are made with.

use std::collections::BTreeMap;

use pfo_planner::{PowerByClock, Watts};
use pfo_protocol::{Mhz, P2pPower, P2pSource};

/// A power and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownPower {
    /// In watts.
    pub power_w: f64,
    /// By clock, if it was measured at several, and waiting draws less at one of them.
    pub by_clock: Option<PowerByClock>,
    /// In words.
    pub origin: String,
}

/// The mean of the GPUs of a model at one clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanPower {
    /// The clock.
    pub mhz: Mhz,
    /// The power, in watts.
    pub power_w: f64,
    /// The standard error of the mean, in watts.
    pub error_w: f64,
}

/// The power of a model, or of the only model of which one is known; none if it is not clear which.
///
/// A power that was set takes precedence over one measured on purpose, and that over waits of a
/// job. Among measured ones it is the one at the highest clock: default clocks are near it.
#[must_use]
pub fn power_of(powers: &[P2pPower], model: Option<&str>) -> Option<KnownPower> {
    let wanted = model.map(str::to_lowercase);
    let is_meant = |power: &&P2pPower| {
        wanted.as_ref().is_none_or(|wanted| power.model.to_lowercase().contains(wanted))
    };
    let meant: Vec<_> = powers.iter().filter(is_meant).collect();
    let model = &meant.first()?.model;
    if meant.iter().any(|power| power.model != *model) {
        return None;
    }
    let best = |power: &&P2pPower| (power.source, power.mhz);
    let (source, mhz) = meant.iter().map(best).max()?;
    let of_best: Vec<_> = meant.iter().filter(|power| best(power) == (source, mhz)).collect();
    let weight = |power: &P2pPower| match source {
        P2pSource::Waits => power.count as f64,
        P2pSource::Receive | P2pSource::Set => 1.0,
    };
    let all: f64 = of_best.iter().map(|power| weight(power)).sum();
    let power_w = of_best.iter().map(|power| weight(power) * power.power_w).sum::<f64>() / all;
    let how = source_in_words(source);
    let clock = mhz.map_or_else(String::new, |mhz| format!(" at {mhz}"));
    let gpus = match of_best.len() {
        _ if source == P2pSource::Set => String::new(),
        1 => " on 1 GPU".to_owned(),
        count => format!(" on {count} GPUs"),
    };
    let origin = format!("{} of {model} ({how}{gpus}{clock})", format_args!("{power_w:.2} W"));
    let by_clock = by_clock(powers, model, source);
    Some(KnownPower { power_w, by_clock, origin })
}

/// The means of what was measured in one way at each clock, if the least of them is well below that
/// at the highest clock.
fn by_clock(powers: &[P2pPower], model: &str, source: P2pSource) -> Option<PowerByClock> {
    const LEAST_SAVING: f64 = 0.02;
    let means = means_by_clock(powers, model, source);
    let highest = means.last()?.mhz;
    let power = PowerByClock::new(means.iter().map(|mean| (mean.mhz, Watts(mean.power_w)))).ok()?;
    let least_w = power.at(power.cheapest()).0;
    (least_w < (1.0 - LEAST_SAVING) * power.at(highest).0).then_some(power)
}

/// What was measured of a model in one way, by rising clock.
#[must_use]
pub fn means_by_clock(powers: &[P2pPower], model: &str, source: P2pSource) -> Vec<MeanPower> {
    let mut at: BTreeMap<Mhz, Vec<&P2pPower>> = BTreeMap::new();
    for power in powers.iter().filter(|one| one.model == model && one.source == source) {
        if let Some(mhz) = power.mhz {
            at.entry(mhz).or_default().push(power);
        }
    }
    let mean = |(mhz, of_gpus): (Mhz, Vec<&P2pPower>)| {
        let count = of_gpus.len() as f64;
        let power_w = of_gpus.iter().map(|power| power.power_w).sum::<f64>() / count;
        let error_w = of_gpus.iter().map(|power| power.error_w.powi(2)).sum::<f64>().sqrt() / count;
        MeanPower { mhz, power_w, error_w }
    };
    at.into_iter().map(mean).collect()
}

/// Where a power comes from.
#[must_use]
pub const fn source_in_words(source: P2pSource) -> &'static str {
    match source {
        P2pSource::Waits => "waits of a job",
        P2pSource::Receive => "blocking receive",
        P2pSource::Set => "set",
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Mhz, Uid};

    use super::*;

    fn power(model: &str, gpu: &str, mhz: u32, power_w: f64, source: P2pSource) -> P2pPower {
        P2pPower {
            model: model.into(),
            gpu_uuid: Some(gpu.parse().unwrap()),
            mhz: Some(Mhz(mhz)),
            power_w,
            error_w: 0.1,
            count: 3,
            source,
            by_uid: Uid::ROOT,
            since_unix_s: 0,
        }
    }

    fn chosen(powers: &[P2pPower], model: Option<&str>) -> Option<f64> {
        power_of(powers, model).map(|known| known.power_w)
    }

    #[test]
    fn it_is_the_mean_of_what_was_measured_on_purpose_at_the_highest_clock() {
        let powers = [
            power("A40", "GPU-a", 900, 60.0, P2pSource::Receive),
            power("A40", "GPU-a", 1740, 70.0, P2pSource::Receive),
            power("A40", "GPU-b", 1740, 72.0, P2pSource::Receive),
            power("A40", "GPU-b", 1740, 99.0, P2pSource::Waits),
        ];
        let known = power_of(&powers, None).unwrap();
        assert_eq!(known.power_w, 71.0);
        assert!(known.origin.ends_with("of A40 (blocking receive on 2 GPUs at 1740 MHz)"));
        assert_eq!(chosen(&powers[3..], None), Some(99.0));
    }

    #[test]
    fn by_clock_it_is_known_where_it_was_measured_in_one_way_and_falls() {
        let receive = |gpu, mhz, power_w| power("A40", gpu, mhz, power_w, P2pSource::Receive);
        let highest = [receive("GPU-a", 1740, 70.0), receive("GPU-b", 1740, 72.0)];
        let by_clock =
            |others: &[P2pPower]| power_of(&[&highest, others].concat(), None).unwrap().by_clock;
        let expected = PowerByClock::new([(Mhz(210), Watts(40.0)), (Mhz(1740), Watts(71.0))]).ok();
        assert_eq!(by_clock(&[receive("GPU-a", 210, 40.0)]), expected.clone());
        assert_eq!(by_clock(&[receive("GPU-a", 210, 70.5)]), None, "as good as the same");
        assert_eq!(by_clock(&[power("A40", "GPU-a", 210, 40.0, P2pSource::Waits)]), None);
        let set = P2pPower { mhz: None, ..power("A40", "GPU-a", 0, 65.0, P2pSource::Set) };
        assert_eq!(by_clock(&[receive("GPU-a", 210, 40.0), set]), None);
        let waits = |mhz, power_w| power("A40", "GPU-a", mhz, power_w, P2pSource::Waits);
        let of_job = power_of(&[waits(210, 40.0), waits(1740, 71.0)], None).unwrap();
        assert_eq!(of_job.by_clock, expected);
    }

    #[test]
    fn what_an_administrator_has_set_counts_first() {
        let set = P2pPower { mhz: None, ..power("A40", "GPU-a", 0, 65.0, P2pSource::Set) };
        let powers = [power("A40", "GPU-a", 1740, 70.0, P2pSource::Receive), set];
        assert_eq!(chosen(&powers, None), Some(65.0));
    }

    #[test]
    fn of_several_models_one_has_to_be_named() {
        let powers = [
            power("NVIDIA A40", "GPU-a", 1740, 70.0, P2pSource::Receive),
            power("NVIDIA A100", "GPU-b", 1410, 83.0, P2pSource::Receive),
        ];
        assert_eq!(chosen(&powers, None), None);
        assert_eq!(chosen(&powers, Some("a100")), Some(83.0));
        assert_eq!(chosen(&powers, Some("H100")), None);
        assert_eq!(chosen(&[], None), None);
    }
}
