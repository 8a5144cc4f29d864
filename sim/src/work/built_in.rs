//! Work that is built in: a pipeline of unequal stages, of the size of a real one.
//!
//! Its shape is a fit to the published A100 profile of GPT-3 175B: a part of the time does not
//! depend on the clock, the rest is inverse to it.

use crate::error::SimError;
use crate::model::ModelFacts;
use crate::units::{Mhz, Milliwatts};
use crate::work::table::{Kind, StageWork, Work, WorkPoint};

/// Forward time in s of a stage of weight 1 on an A100 at its highest clock.
const FORWARD_S: f64 = 0.070;
/// A backward takes this many times its forward.
const BACKWARD_RATIO: f64 = 1.95;
/// The share of the time at the highest clock that a lower clock does not lengthen.
const FIXED_SHARE: f64 = 0.156;
/// A forward draws a little less than a backward.
const FORWARD_POWER_SHARE: f64 = 0.99;
/// How heavy the stages are, again and again.
const WEIGHTS: [f64; 4] = [1.0, 1.12, 1.06, 1.16];
/// The last stage has the output layer too.
const LAST_WEIGHT: f64 = 1.28;
/// Profiles begin at the first clock from here on, as a share of the highest one: below, both time
/// and energy rise.
pub const LOWEST_PROFILED_SHARE: f64 = 0.57;

fn weight(stage: usize, stages: usize) -> f64 {
    if stages > 1 && stage == stages - 1 { LAST_WEIGHT } else { WEIGHTS[stage % WEIGHTS.len()] }
}

/// Work that takes a time (s) at the highest clock of a model.
pub fn work(facts: &ModelFacts, kind: Kind, full_speed_s: f64) -> Result<Work, SimError> {
    let power_share = match kind {
        Kind::Forward => FORWARD_POWER_SHARE,
        Kind::Backward => 1.0,
    };
    let point = |clock: Mhz| {
        let slowdown = f64::from(facts.highest().0) / f64::from(clock.0);
        WorkPoint {
            clock,
            time_s: full_speed_s * (FIXED_SHARE + (1.0 - FIXED_SHARE) * slowdown),
            power: Milliwatts::from_watts(facts.compute_power_w(clock) * power_share),
        }
    };
    Work::new(facts.sm_clocks().into_iter().map(point).collect())
}

/// The work of one of so many stages on a model.
pub fn stage(facts: &ModelFacts, stage: usize, stages: usize) -> Result<StageWork, SimError> {
    let forward_s = FORWARD_S * facts.relative_time * weight(stage, stages);
    Ok(StageWork {
        forward: work(facts, Kind::Forward, forward_s)?,
        backward: work(facts, Kind::Backward, forward_s * BACKWARD_RATIO)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::GpuModel;

    #[test]
    fn four_stages_on_an_a100_are_unequal_and_of_the_promised_size() {
        let facts = GpuModel::A100.facts();
        let stages: Vec<_> = (0..4).map(|i| stage(facts, i, 4).unwrap()).collect();
        let forwards: Vec<_> = stages.iter().map(|s| s.forward.time_s(facts.highest())).collect();
        let lightest = forwards.iter().copied().fold(f64::INFINITY, f64::min);
        let heaviest = forwards.iter().copied().fold(0.0, f64::max);
        assert!((0.060..0.100).contains(&lightest) && (0.060..0.100).contains(&heaviest));
        assert!((1.25..1.30).contains(&(heaviest / lightest)), "{forwards:?}");
    }

    #[test]
    fn the_least_energy_is_well_inside_the_clock_range_of_every_model() {
        for model in GpuModel::ALL {
            let facts = model.facts();
            let work = stage(facts, 0, 4).unwrap().backward;
            let effective =
                |clock: &Mhz| work.energy_j(*clock) - facts.p2p_blocking_w * work.time_s(*clock);
            let clocks = facts.sm_clocks();
            for energy in
                [&(|clock: &Mhz| work.energy_j(*clock)) as &dyn Fn(&Mhz) -> f64, &effective]
            {
                let best =
                    clocks.iter().min_by(|a, b| energy(a).total_cmp(&energy(b))).copied().unwrap();
                let share = f64::from(best.0) / f64::from(facts.highest().0);
                assert!((0.3..0.85).contains(&share), "{model:?}: {best}");
            }
        }
    }
}
