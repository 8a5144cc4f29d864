//! Why lowtime's plans take more than the least energy: the part of the excess that comes from its
//! choice of candidates, and the part from its fitted curves. The rest comes from quantisation and
//! from rounding to clocks.

use pfo_vocabulary::{Mhz, Watts};

use super::exponential::fit;
use super::parameters::Lowtime;
use crate::choices::tradeoff::{Choice, Kind, Tradeoff, Tradeoffs};
use crate::error::PlanError;
use crate::pipeline::Pipeline;
use crate::progress::Progress;
use crate::relaxation::Relaxation;
use crate::relaxation::bound::LowerBound;
use crate::relaxation::events::Events;
use crate::waits::per_stage::PerStage;

/// Joules of a step of one iteration time, waiting included, if clocks could be mixed freely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attribution {
    /// The least that any clocks allow.
    pub bound_j: f64,
    /// The least that lowtime's candidates allow.
    pub filtered_j: f64,
    /// The energy of these candidates with the durations that are best by their fitted curves.
    /// Neither the curves nor the times are rounded.
    pub fitted_j: f64,
}

/// The number of straight pieces that approximate a curve.
const PIECES: u32 = 64;

impl Lowtime {
    /// The attribution at each of these iteration times (seconds).
    ///
    /// # Errors
    /// If lowtime cannot fit its curves to this profile.
    pub fn attribution(
        &self,
        pipeline: &Pipeline,
        p2p_power: impl Into<PerStage<Watts>>,
        times_s: &[f64],
    ) -> Result<Vec<Attribution>, PlanError> {
        let p2p_power = &p2p_power.into();
        let filtered = Tradeoffs::by_kind(pipeline, |kind| {
            Ok::<_, PlanError>(self.filtered(pipeline, kind, p2p_power))
        })?;
        let fitted = Tradeoffs::by_kind(pipeline, |kind| match kind {
            Kind::Measured(stage, instruction, _) if !instruction.is_fixed() => {
                let points: Vec<(f64, f64)> = self
                    .filtered(pipeline, kind, p2p_power)
                    .choices
                    .iter()
                    .map(|choice| (choice.time_s, choice.effective_j))
                    .collect();
                let curve = fit(&points, stage, instruction)?;
                let (fastest_s, slowest_s) = (points[0].0, points[points.len() - 1].0);
                let sample = |piece| {
                    let share = f64::from(piece) / f64::from(PIECES);
                    let time_s = fastest_s + share * (slowest_s - fastest_s);
                    Choice { time_s, effective_j: curve.at(time_s), frequency: Mhz(0) }
                };
                Ok::<_, PlanError>(Tradeoff::convex((0..=PIECES).map(sample).collect()))
            }
            _ => Ok(Tradeoff::of_kind(pipeline, kind, p2p_power)),
        })?;

        let bound = LowerBound::new(pipeline, p2p_power);
        let unheard = Progress::new(&|_| {});
        let filtered_bound = LowerBound::of(pipeline, p2p_power, &filtered, &unheard);
        let idle_w = p2p_power.total_w(pipeline.profile().num_stages());
        let cost_j = mixed_at(pipeline, &fitted, &filtered, times_s);
        Ok(times_s
            .iter()
            .zip(cost_j)
            .map(|(&time_s, cost_j)| Attribution {
                bound_j: bound.energy_j(time_s),
                filtered_j: filtered_bound.energy_j(time_s),
                fitted_j: cost_j + idle_w * time_s,
            })
            .collect())
    }

    fn filtered(&self, pipeline: &Pipeline, kind: Kind, p2p_power: &PerStage<Watts>) -> Tradeoff {
        match kind {
            Kind::Measured(stage, instruction, part) if !instruction.is_fixed() => {
                let table = pipeline.profile().part_table(stage, instruction, part);
                let power = *p2p_power.of(stage);
                let candidates = self.candidates(table, power);
                let rows: Vec<_> = candidates.iter().map(|candidate| candidate.measured).collect();
                Tradeoff::new(&rows, power)
            }
            _ => Tradeoff::of_kind(pipeline, kind, p2p_power),
        }
    }
}

/// The cost, by one set of tradeoffs, of the durations that are best by another, at each of the
/// times.
fn mixed_at(
    pipeline: &Pipeline,
    best_by: &Tradeoffs,
    cost_by: &Tradeoffs,
    times_s: &[f64],
) -> Vec<f64> {
    let events = Events::new(pipeline.network());
    let mut relaxation = Relaxation::new(&events, best_by);
    let mut falling: Vec<usize> = (0..times_s.len()).collect();
    falling.sort_by(|&a, &b| times_s[b].total_cmp(&times_s[a]));
    let mut falling = falling.into_iter().peekable();
    let mut cost_j = vec![0.0; times_s.len()];
    let mut at_s = Vec::new();
    while falling.peek().is_some() {
        let piece = relaxation.advance();
        let reached_s = piece.map_or(f64::NEG_INFINITY, |piece| piece.fast_s);
        while let Some(index) = falling.next_if(|&index| times_s[index] >= reached_s) {
            relaxation.schedule(times_s[index], &mut at_s);
            let spans = events.spans.iter().enumerate();
            cost_j[index] = spans
                .map(|(operation, &(start, end))| {
                    cost_by.get(operation).mixed_j(at_s[end as usize] - at_s[start as usize])
                })
                .sum();
        }
    }
    cost_j
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::lowtime::Filter;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::power_law;

    fn pipeline() -> Pipeline {
        let clocks = (1050..=1410).step_by(15);
        let profile = power_law(&[0.04, 0.05, 0.045], [1.0, 2.0], 0.9, &clocks);
        Pipeline::new(&profile, Schedule::OneForwardOneBackward, 6).unwrap()
    }

    #[test]
    fn every_restriction_costs_and_lowtimes_own_plans_cost_more_still() {
        let (pipeline, power) = (pipeline(), Watts(80.0));
        for filter in [Filter::Raw, Filter::Effective] {
            let lowtime = Lowtime { filter, ..Lowtime::default() };
            let outcome = lowtime.outcome(&pipeline, &power.into(), &|_| {}).unwrap();
            let replays: Vec<_> = outcome.plans.iter().filter_map(|plan| plan.predicted).collect();
            let times_s: Vec<f64> = replays.iter().map(|r| r.iteration_time_s).collect();
            let attributions = lowtime.attribution(&pipeline, power, &times_s).unwrap();
            for (replay, attribution) in replays.iter().zip(attributions) {
                // The relaxation is early by a ns for each operation.
                const ROUNDING_J: f64 = 1e-3;
                let Attribution { bound_j, filtered_j, fitted_j } = attribution;
                assert!(bound_j < filtered_j + ROUNDING_J, "{attribution:?}");
                assert!(filtered_j < fitted_j + ROUNDING_J, "{attribution:?}");
                assert!(filtered_j < replay.iteration_energy_j + ROUNDING_J, "{attribution:?}");
            }
        }
    }
}
