//! Plans that are in time with a confidence.
//!
//! A plan for a deadline uses all of its time, so half of its steps would be late by a little: no
//! instruction takes exactly what its row says. Here steps are drawn, in which every instruction takes
//! another time and every kind of a stage has drifted since it was measured, and the plan is made for
//! so much less time that enough of them are in time.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use fastrand::Rng;

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::frontier::Frontier;
use crate::frontier::deadline::Deadline;
use crate::frontier::due::Due;
use crate::late::clocks::with_late_clocks;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::profile::median::median;
use crate::replay::{rows, waits};
use crate::step::operation::Operation;

/// Steps that are drawn for a plan.
const DRAWS: u64 = 400;

/// Halvings of the time that is left between the fastest plan and the deadline.
const HALVINGS: u32 = 9;

/// The share of its steps that a plan keeps its deadline in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence(f64);

impl Confidence {
    /// # Errors
    /// If it is not between .5 and .999.
    pub fn new(share: f64) -> Result<Self, PlanError> {
        // What was percents is not exactly their hundredth.
        let rounded = (1e6 * share).round() / 1e6;
        match (0.5..=0.999).contains(&rounded) {
            true => Ok(Self(rounded)),
            false => Err(refused(&share.to_string())),
        }
    }
}

impl FromStr for Confidence {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let share = match text.trim().strip_suffix('%') {
            Some(percent) => percent.trim_end().parse().map(|percent: f64| percent / 100.0),
            None => text.trim().parse(),
        };
        Self::new(share.map_err(|_| refused(text))?)
    }
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", (1e3 * self.0).round() / 10.0)
    }
}

fn refused(value: &str) -> PlanError {
    PlanError::BadArgument {
        name: "the confidence",
        value: excerpt(value),
        expected: "a share of steps from 50% to 99.9%, such as 95%",
    }
}

/// How far times are off their rows, as standard deviations in shares of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scatter {
    /// Of one instruction to the next of its kind.
    pub instruction: f64,
    /// Of a kind of instruction of a stage, from when it was profiled until a step runs.
    pub drift: f64,
}

impl Default for Scatter {
    /// What five jobs on A100 and A40 had: microbatches of a window differ by .1 to .5 %, and steps a
    /// window later by up to .9 % (see `docs/replay-and-reality.md`).
    fn default() -> Self {
        Self { instruction: 0.005, drift: 0.003 }
    }
}

impl Scatter {
    /// That of the repeats of a profile; the default for a profile without.
    pub fn of(profile: &Profile) -> Self {
        let scatter = |(stage, instruction, row): (_, _, Measurement)| {
            let sd_s = profile.repeats(stage, instruction, row.frequency).time_sd_s?;
            Some(sd_s / row.time_s)
        };
        let known: Vec<f64> = profile.rows().filter_map(scatter).collect();
        let default = Self::default();
        match known.is_empty() {
            true => default,
            false => Self { instruction: median(known), ..default },
        }
    }
}

/// What is drawn from: the operations of a pipeline by kind.
struct Draws<'a> {
    frontier: &'a Frontier,
    /// For each operation the number of its kind; none for transfers and junctions.
    kinds: Vec<Option<usize>>,
    num_kinds: usize,
    scatter: Scatter,
}

impl<'a> Draws<'a> {
    fn new(frontier: &'a Frontier, scatter: Scatter) -> Self {
        let mut numbers = HashMap::new();
        let operations = frontier.pipeline().network().operations.iter();
        let kind = |operation: &Operation| {
            let next = numbers.len();
            let of = (operation.stage, operation.instruction);
            operation.is_run().then(|| *numbers.entry(of).or_insert(next))
        };
        let kinds = operations.map(kind).collect();
        Self { frontier, kinds, num_kinds: numbers.len(), scatter }
    }

    /// The time, in seconds, within which this share of the drawn steps of a plan are done, late clocks
    /// included.
    fn within_s(&self, plan: &Plan, Confidence(share): Confidence) -> Result<f64, PlanError> {
        let pipeline = self.frontier.pipeline();
        let network = pipeline.network();
        let measured = rows(pipeline.profile(), plan, network)?;
        let waits = waits(plan, network);
        let is_prompt = !network.delays.make_changes_late() && waits.is_empty();
        let Scatter { instruction, drift } = self.scatter;
        let step_s = |draw: u64| {
            // The same draws for every plan, so that a faster one is in time more often.
            let mut random = Rng::with_seed(draw);
            let drifted: Vec<f64> =
                (0..self.num_kinds).map(|_| 1.0 + drift * normal(&mut random)).collect();
            let mut scattered = measured.clone();
            for (kind, row) in self.kinds.iter().zip(&mut scattered) {
                if let Some(kind) = kind {
                    row.time_s *= drifted[*kind] * (1.0 + instruction * normal(&mut random));
                }
            }
            if !is_prompt {
                scattered =
                    with_late_clocks(network, pipeline.profile(), scattered, &waits).measured;
            }
            network.makespan(|operation| scattered[operation].time_s)
        };
        let mut steps_s: Vec<f64> = (0..DRAWS).map(step_s).collect();
        steps_s.sort_by(f64::total_cmp);
        let last = (share * DRAWS as f64).ceil() as usize;
        Ok(steps_s[last.clamp(1, steps_s.len()) - 1])
    }
}

/// Nearly a normal deviate: a sum of uniform ones.
fn normal(random: &mut Rng) -> f64 {
    const SUMMED: usize = 6;
    let sum: f64 = (0..SUMMED).map(|_| random.f64() - 0.5).sum();
    // The variance of a uniform one is 1/12.
    sum * (12.0 / SUMMED as f64).sqrt()
}

impl Frontier {
    /// The plan of least energy whose steps are done when they are due, with this confidence. Its
    /// prediction is the replay, which is in time by as much as the scatter may take.
    ///
    /// # Errors
    /// Those of [`Frontier::plan_for`]; [`PlanError::TooUncertain`] if not even the fastest plan is in
    /// time as often.
    pub fn plan_with_confidence(
        &self,
        due: Due,
        confidence: Confidence,
        scatter: Scatter,
    ) -> Result<Plan, PlanError> {
        let draws = Draws::new(self, scatter);
        let deadline_s = due.seconds();
        let is_in_time =
            |plan: &Plan| Ok::<_, PlanError>(draws.within_s(plan, confidence)? <= deadline_s);
        let mut plan = self.plan_for(due)?;
        if is_in_time(&plan)? {
            return Ok(plan);
        }
        let fastest_s = self.seconds(Deadline::Fastest);
        plan = self.plan_for(due.at(fastest_s))?;
        if !is_in_time(&plan)? {
            let within_s = draws.within_s(&plan, confidence)?;
            return Err(PlanError::TooUncertain { deadline_s, confidence, within_s });
        }
        let (mut in_time_s, mut late_s) = (fastest_s, deadline_s);
        for _ in 0..HALVINGS {
            let middle_s = in_time_s.midpoint(late_s);
            let slower = self.plan_for(due.at(middle_s))?;
            if is_in_time(&slower)? {
                (plan, in_time_s) = (slower, middle_s);
            } else {
                late_s = middle_s;
            }
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::optimize::Options;
    use crate::test_profiles::four_stages;
    use pfo_vocabulary::Watts;

    #[test]
    fn a_share_is_read_as_percent_or_number_and_refused_where_it_is_no_confidence() {
        let of = |text: &str| text.parse::<Confidence>();
        assert_eq!(of("95%").unwrap(), of("0.95").unwrap());
        assert_eq!(of(" 99.9 % ").unwrap().to_string(), "99.9 %");
        for text in ["95", "", "%", "NaN", "49%", "100%", "often"] {
            let message = of(text).unwrap_err().to_string();
            assert!(message.contains("95%"), "{message}");
        }
    }

    #[test]
    fn a_plan_with_confidence_is_in_time_as_often_and_a_plain_one_is_not() {
        let pipeline = four_stages(12, 0.0);
        let frontier =
            Frontier::optimize(&pipeline, Watts(80.0), Options::default(), &|_| {}).unwrap();
        let scatter = Scatter { instruction: 0.01, drift: 0.005 };
        let draws = Draws::new(&frontier, scatter);
        let due = Due::AtMost(1.05 * frontier.seconds(Deadline::Fastest));
        let [even, sure] = ["50%", "95%"].map(|text| text.parse::<Confidence>().unwrap());
        let plain = frontier.plan_for(due).unwrap();
        let confident = frontier.plan_with_confidence(due, sure, scatter).unwrap();
        assert!(draws.within_s(&plain, even).unwrap() > 0.999 * due.seconds());
        assert!(draws.within_s(&plain, sure).unwrap() > due.seconds());
        let within_s = draws.within_s(&confident, sure).unwrap();
        assert!((0.997 * due.seconds()..=due.seconds()).contains(&within_s), "{within_s}");
        let none = Scatter { instruction: 0.0, drift: 0.0 };
        assert_eq!(frontier.plan_with_confidence(due, sure, none).unwrap(), plain);
        let early = Due::AtMost(frontier.seconds(Deadline::Fastest) * 1.0001);
        let refused = frontier.plan_with_confidence(early, sure, scatter).unwrap_err();
        assert!(matches!(refused, PlanError::TooUncertain { .. }), "{refused}");
    }

    #[test]
    fn the_steps_that_are_drawn_have_late_clocks_as_those_of_the_replay() {
        let pipeline = four_stages(12, 0.01);
        let frontier =
            Frontier::optimize(&pipeline, Watts(80.0), Options::default(), &|_| {}).unwrap();
        let due = Due::AtMost(1.05 * frontier.seconds(Deadline::Fastest));
        let sure = "95%".parse::<Confidence>().unwrap();
        let plain = frontier.plan_for(due).unwrap();
        let none = Scatter { instruction: 0.0, drift: 0.0 };
        let exact_s = Draws::new(&frontier, none).within_s(&plain, sure).unwrap();
        let predicted_s = plain.predicted.unwrap().iteration_time_s;
        assert!((exact_s / predicted_s - 1.0).abs() < 1e-9, "{exact_s} s, {predicted_s} s");
        let scatter = Scatter { instruction: 0.01, drift: 0.005 };
        let draws = Draws::new(&frontier, scatter);
        let confident = frontier.plan_with_confidence(due, sure, scatter).unwrap();
        assert!(draws.within_s(&plain, sure).unwrap() > due.seconds());
        assert!(draws.within_s(&confident, sure).unwrap() <= due.seconds());
    }
}
