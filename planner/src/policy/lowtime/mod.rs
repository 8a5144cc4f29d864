//! lowtime (the planner of Perseus, SOSP 2024) at its own quantisation.
//!
//! Its candidates, its fitted curves and its steps of one unit of time are reproduced. Its cuts
//! through the graph of critical instructions are not: each of those finds an optimum of the fitted
//! problem one unit faster than the last, and so does our relaxation, whose breakpoints lie at
//! whole units if those of all curves do.
//!
//! Claims agree as closely as the fits (lowtime's search stops within a millionth). Where several
//! schedules of one time cost the same, lowtime may choose another one, whose replay differs by the
//! rounding to clocks.

mod attribution;
mod candidates;
mod exponential;
pub(super) mod parameters;

pub use attribution::Attribution;
pub use parameters::{Filter, Lowtime};

use pfo_vocabulary::Watts;

use super::outcome::{End, Outcome};
use super::rehearsal::Rehearsal;
use crate::choices::tradeoff::{Choice, Kind, Tradeoff, Tradeoffs};
use crate::error::PlanError;
use crate::pipeline::Pipeline;
use crate::plan::Prediction;
use crate::relaxation::Relaxation;
use crate::relaxation::events::Events;
use crate::waits::per_stage::PerStage;
use candidates::Candidate;
use exponential::{Exponential, fit};

/// The length of a unit in the relaxation, independent of its true length, so that units are whole
/// ns.
const UNIT_S: f64 = 0.001;

/// The largest number of units between an instruction's fastest and its slowest candidate.
const MOST_UNITS: u64 = u16::MAX as u64 - 1;

/// The largest number of instructions of all plans that are kept, about 200 MB: for large pipelines
/// or tiny units only every n-th plan is kept.
const MOST_KEPT: usize = 1 << 24;

impl Lowtime {
    pub(super) fn outcome(
        &self,
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
        progress: &dyn Fn(f64),
    ) -> Result<Outcome, PlanError> {
        let fitted = self.fitted(pipeline, p2p_power)?;
        let network = pipeline.network();
        let events = Events::new(network);
        let mut relaxation = Relaxation::new(&events, &fitted);
        let fastest = in_units(relaxation.fastest_s());
        // The slowest is the start of the search, and a plan only if there is no other.
        let mut next = (in_units(relaxation.slowest_s()) - 1).max(fastest);
        let steps = next - fastest + 1;
        let stride = steps.div_ceil((MOST_KEPT / network.len()).max(1) as u64);

        let idle_w = p2p_power.total_w(pipeline.profile().num_stages());
        let mut step = Rehearsal::at_highest_clocks(pipeline);
        let (mut plans, mut claims) = (Vec::new(), Vec::new());
        let mut at_s = Vec::new();
        loop {
            let piece = relaxation.advance();
            let reached = piece.map_or(fastest, |piece| in_units(piece.fast_s));
            progress(1.0 - (reached - fastest) as f64 / steps as f64);
            while next >= reached {
                if (next - fastest).is_multiple_of(stride) {
                    relaxation.schedule(next as f64 * UNIT_S, &mut at_s);
                    let mut cost_j = 0.0;
                    for (index, &(start, end)) in events.spans.iter().enumerate() {
                        let window = in_units(at_s[end as usize] - at_s[start as usize]);
                        let choice = slowest_within(fitted.get(index), window);
                        cost_j += choice.effective_j;
                        let changes = step.measured(index).frequency != choice.frequency;
                        if changes && step.is_adjustable(index) {
                            step.set(index, choice.frequency);
                        }
                    }
                    let time_s = next as f64 * self.unit_time.seconds();
                    claims.push(Prediction {
                        iteration_time_s: time_s,
                        iteration_energy_j: cost_j + idle_w * time_s,
                    });
                    plans.push(step.plan(p2p_power));
                }
                if next == fastest {
                    let chosen = plans.len() - 1;
                    let rounds = u32::try_from(steps).unwrap_or(u32::MAX);
                    return Ok(Outcome { plans, claims, chosen, rounds, end: End::Settled });
                }
                next -= 1;
            }
        }
    }

    /// The choices of each kind of operation: for each number of units the fitted energy and the
    /// clock that it is rounded to.
    fn fitted(
        &self,
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
    ) -> Result<Tradeoffs, PlanError> {
        Tradeoffs::by_kind(pipeline, |kind| match kind {
            Kind::Measured(stage, instruction, part) if !instruction.is_fixed() => {
                let table = pipeline.profile().part_table(stage, instruction, part);
                let candidates = self.candidates(table, *p2p_power.of(stage));
                let points: Vec<(f64, f64)> =
                    candidates.iter().map(|c| (c.units as f64, c.effective_j)).collect();
                let curve = fit(&points, stage, instruction)?;
                self.steps(&curve, &candidates)
            }
            _ => {
                // Its time does not depend on the clock.
                let fixed = Tradeoff::of_kind(pipeline, kind, p2p_power).choices[0];
                let time_s = self.units(fixed.time_s) as f64 * UNIT_S;
                Ok(Tradeoff::convex(vec![Choice { time_s, ..fixed }]))
            }
        })
    }

    /// The curve at whole units, each with the slowest candidate that takes no more units.
    fn steps(&self, curve: &Exponential, candidates: &[Candidate]) -> Result<Tradeoff, PlanError> {
        let fastest = candidates.first().map_or(0, |candidate| candidate.units);
        let slowest = candidates.last().map_or(0, |candidate| candidate.units);
        if slowest - fastest > MOST_UNITS {
            return Err(PlanError::BadArgument {
                name: "the unit of time",
                value: format!("{} ms", 1e3 * self.unit_time.seconds()),
                expected: "longer, so that the times of an instruction span at most 65534 units",
            });
        }
        let choice = |units: u64| {
            let slower = candidates.partition_point(|candidate| candidate.units <= units);
            Choice {
                time_s: units as f64 * UNIT_S,
                effective_j: curve.at(units as f64),
                frequency: candidates[slower - 1].measured.frequency,
            }
        };
        Ok(Tradeoff::convex((fastest..=slowest).map(choice).collect()))
    }
}

/// Whole units in a time of the relaxation, which may be some ns off.
fn in_units(time_s: f64) -> u64 {
    (time_s / UNIT_S).round() as u64
}

/// The choice that takes this many units; the slowest, if all take fewer.
fn slowest_within(tradeoff: &Tradeoff, units: u64) -> &Choice {
    let choices = &tradeoff.choices;
    let fastest = in_units(choices[0].time_s);
    &choices[(units.saturating_sub(fastest) as usize).min(choices.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::unit_time::UnitTime;
    use crate::replay::replay;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::{power_law, profile};

    const POWER: Watts = Watts(80.0);

    fn pipeline() -> Pipeline {
        let clocks = (1050..=1410).step_by(15);
        let profile = power_law(&[0.04, 0.05, 0.045], [1.0, 2.0], 0.9, &clocks);
        Pipeline::new(&profile, Schedule::OneForwardOneBackward, 6).unwrap()
    }

    fn outcome(lowtime: &Lowtime) -> Outcome {
        lowtime.outcome(&pipeline(), &POWER.into(), &|_| {}).unwrap()
    }

    #[test]
    fn claims_go_down_unit_by_unit_and_cost_ever_more_per_unit() {
        let outcome = outcome(&Lowtime::default());
        assert_eq!(outcome.claims.len(), outcome.plans.len());
        assert!(outcome.claims.len() > 50);
        let effective_j =
            |claim: &Prediction| claim.iteration_energy_j - 3.0 * POWER.0 * claim.iteration_time_s;
        let mut last_j = 0.0;
        for pair in outcome.claims.windows(2) {
            let unit_s = pair[0].iteration_time_s - pair[1].iteration_time_s;
            assert!((unit_s - 0.001).abs() < 1e-9);
            let costs_j = effective_j(&pair[1]) - effective_j(&pair[0]);
            assert!(costs_j > last_j - 1e-6, "{costs_j} after {last_j}");
            last_j = costs_j;
        }
        assert_eq!(outcome.chosen, outcome.plans.len() - 1);
    }

    #[test]
    fn times_are_claimed_too_short_by_what_was_rounded_down() {
        let outcome = outcome(&Lowtime::default());
        let fastest = outcome.plans[outcome.chosen].predicted.unwrap().iteration_time_s;
        let claimed = outcome.claims[outcome.chosen].iteration_time_s;
        // Eight operations lie on a shortest way through the step at least.
        assert!((claimed..claimed + 0.1).contains(&fastest) && fastest > claimed + 0.004);
    }

    #[test]
    fn a_finer_unit_makes_more_plans_and_better_claims() {
        let gap_s = |unit_s| {
            let unit_time = UnitTime::from_seconds(unit_s).unwrap();
            let outcome = outcome(&Lowtime { unit_time, ..Lowtime::default() });
            let replayed = outcome.plans[outcome.chosen].predicted.unwrap();
            let claimed = outcome.claims[outcome.chosen].iteration_time_s;
            (outcome.plans.len(), replayed.iteration_time_s - claimed)
        };
        let (coarse, fine) = (gap_s(0.001), gap_s(0.0001));
        assert!(fine.0 > 8 * coarse.0 && fine.1.abs() < 0.3 * coarse.1, "{coarse:?} {fine:?}");
    }

    #[test]
    fn every_plan_is_replayed() {
        for filter in [Filter::Raw, Filter::Effective] {
            let outcome = outcome(&Lowtime { filter, ..Lowtime::default() });
            for plan in outcome.plans.iter().step_by(7) {
                let replayed = replay(pipeline().profile(), plan, POWER).unwrap();
                assert_eq!(plan.predicted, Some(replayed.into()));
            }
        }
    }

    #[test]
    fn a_profile_that_lowtime_cannot_fit_is_refused_with_the_place() {
        let good: &[(f64, f64)] = &[(0.1, 60.0), (0.11, 50.0), (0.12, 43.0), (0.13, 40.0)];
        let short = &good[..3];
        let profile = profile(&[[good, good], [good, short]]);
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 2).unwrap();
        let refused = Lowtime::default().outcome(&pipeline, &POWER.into(), &|_| {}).unwrap_err();
        let message = refused.to_string();
        for words in ["stage 1, backward", "takes 4 frequencies", "not 3"] {
            assert!(message.contains(words), "no {words:?} in {message:?}");
        }
    }
}
