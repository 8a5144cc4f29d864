//! Which of the known P2P-blocking powers plans are made with.

use pfo_protocol::{AgentRequest, P2pPower, P2pSource};

use super::{ask, powers};
use crate::daemons::{Agent, Connection};
use crate::error::Error;

/// A power and its origin.
#[derive(Debug, PartialEq)]
pub(crate) struct Known {
    pub(crate) power_w: f64,
    /// In words.
    pub(crate) origin: String,
}

/// The power of a model, or of the only model of which one is known; none if it is not clear which.
pub(crate) fn of(
    agent: &mut Connection<Agent>,
    model: Option<&str>,
) -> Result<Option<Known>, Error> {
    let powers = ask(agent, AgentRequest::P2pPowers)?;
    Ok(choose(&powers, model))
}

/// A power that was set takes precedence over one measured on purpose, and that over waits of a
/// job. Among measured ones it is the one at the highest clock: default clocks are near it.
fn choose(powers: &[P2pPower], model: Option<&str>) -> Option<Known> {
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
    let how = powers::in_words(source);
    let clock = mhz.map_or_else(String::new, |mhz| format!(" at {mhz}"));
    let gpus = match of_best.len() {
        _ if source == P2pSource::Set => String::new(),
        1 => " on 1 GPU".to_owned(),
        count => format!(" on {count} GPUs"),
    };
    let origin = format!("{} of {model} ({how}{gpus}{clock})", powers::watts(power_w));
    Some(Known { power_w, origin })
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
        choose(powers, model).map(|known| known.power_w)
    }

    #[test]
    fn it_is_the_mean_of_what_was_measured_on_purpose_at_the_highest_clock() {
        let powers = [
            power("A40", "GPU-a", 900, 60.0, P2pSource::Receive),
            power("A40", "GPU-a", 1740, 70.0, P2pSource::Receive),
            power("A40", "GPU-b", 1740, 72.0, P2pSource::Receive),
            power("A40", "GPU-b", 1740, 99.0, P2pSource::Waits),
        ];
        let known = choose(&powers, None).unwrap();
        assert_eq!(known.power_w, 71.0);
        assert!(known.origin.ends_with("of A40 (blocking receive on 2 GPUs at 1740 MHz)"));
        assert_eq!(chosen(&powers[3..], None), Some(99.0));
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
