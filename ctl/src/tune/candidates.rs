//! Which plans of a frontier are tried on a job, one after another: the one that saves most within
//! the slowdown that is allowed and, as long as that proves too slow, faster ones.

use pfo_planner::{Deadline, Frontier, Plan, PlanError};

/// The slowdown that a plan should take by its prediction, if at most this much is allowed: of one
/// that takes all of it, every other measurement would say that it is too slow.
pub(super) fn aim(max_slowdown: f64) -> f64 {
    const SHARE: f64 = 0.25;
    const MOST: f64 = 0.005;
    max_slowdown - (SHARE * max_slowdown).min(MOST)
}

/// The plans still to be tried.
pub(super) struct Candidates<'a> {
    frontier: &'a Frontier,
    /// What a step may take by the profile, in seconds.
    limit_s: f64,
    tried: Option<usize>,
}

impl<'a> Candidates<'a> {
    /// Those of a job that takes `default_s` a step at default clocks, where the profile says
    /// `profiled_s`. What it does beside what was profiled takes its time at any clock.
    pub(super) fn new(
        frontier: &'a Frontier,
        profiled_s: f64,
        default_s: f64,
        max_slowdown: f64,
    ) -> Self {
        // A hair more, so that a plan exactly as fast is within 0 %.
        let limit_s = (profiled_s + max_slowdown * default_s) * (1.0 + 1e-12);
        Self { frontier, limit_s, tried: None }
    }

    /// The next plan, after the last one made a step longer by `over_s` than is allowed; none if
    /// there is no faster one.
    pub(super) fn next(&mut self, over_s: f64) -> Result<Option<Plan>, PlanError> {
        if let Some(tried) = self.tried {
            let tried_s = self.plan_s(tried);
            self.limit_s = self.limit_s.min(tried_s) - over_s.max(0.0);
        }
        let within = self.frontier.pick(Deadline::Seconds(self.limit_s));
        let place = match within {
            Err(PlanError::DeadlineTooEarly { .. }) => self.frontier.pick(Deadline::Fastest)?,
            place => place?,
        };
        let place = match self.tried {
            // As little as it was too slow by: the next one on the frontier is faster at least.
            Some(tried) if place >= tried => match tried.checked_sub(1) {
                Some(faster) => self.frontier.pick(Deadline::Seconds(self.plan_s(faster)))?,
                None => return Ok(None),
            },
            _ => place,
        };
        if self.tried.is_some_and(|tried| place >= tried) {
            return Ok(None);
        }
        self.tried = Some(place);
        self.frontier.plan(place).map(Some)
    }

    fn plan_s(&self, place: usize) -> f64 {
        self.frontier.plans().nth(place).map_or(f64::INFINITY, |point| point.iteration_time_s)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::sync::LazyLock;

    use pfo_planner::{Options, Pipeline, Profile, Schedule, Watts};
    use proptest::prelude::*;

    use super::*;

    static FRONTIER: LazyLock<Frontier> = LazyLock::new(frontier);

    fn frontier() -> Frontier {
        let mut csv = String::from("stage,instruction,frequency,time,energy\n");
        for (stage, scale) in [(0, 1.0), (1, 1.2)] {
            for mhz in (1000..=1400).step_by(20) {
                let slower = 1400.0 / f64::from(mhz);
                for (instruction, time_s) in [("forward", 0.05), ("backward", 0.1)] {
                    let (time_s, energy_j) =
                        (scale * time_s * slower, scale * 400.0 * time_s / slower.powi(2));
                    writeln!(csv, "{stage},{instruction},{mhz},{time_s},{energy_j}").unwrap();
                }
            }
        }
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 4).unwrap();
        Frontier::optimize(&pipeline, Watts(80.0), Options::default(), &|_| {}).unwrap()
    }

    fn time_s(plan: &Plan) -> f64 {
        plan.predicted.unwrap().iteration_time_s
    }

    #[test]
    fn the_first_saves_most_of_those_within_the_slowdown() {
        let all_max_s = FRONTIER.points().next().unwrap().iteration_time_s;
        let plan = Candidates::new(&FRONTIER, all_max_s, all_max_s, 0.02).next(0.0).unwrap();
        let within = FRONTIER.points().filter(|point| point.iteration_time_s <= 1.02 * all_max_s);
        assert_eq!(time_s(&plan.unwrap()), within.last().unwrap().iteration_time_s);
    }

    #[test]
    fn a_step_that_has_more_in_it_than_was_profiled_may_take_more() {
        let all_max_s = FRONTIER.points().next().unwrap().iteration_time_s;
        let first = |default_s| {
            let plan = Candidates::new(&FRONTIER, all_max_s, default_s, 0.02).next(0.0).unwrap();
            time_s(&plan.unwrap())
        };
        assert!(first(2.0 * all_max_s) > first(all_max_s));
    }

    proptest! {
        #[test]
        fn each_next_one_is_faster_until_there_is_none(
            max_slowdown in 0.0_f64..0.3, over in 0.0_f64..0.05
        ) {
            let all_max_s = FRONTIER.points().next().unwrap().iteration_time_s;
            let mut candidates = Candidates::new(&FRONTIER, all_max_s, all_max_s, max_slowdown);
            let mut last_s = f64::INFINITY;
            let mut tried = 0;
            while let Some(plan) = candidates.next(over * all_max_s).unwrap() {
                prop_assert!(time_s(&plan) < last_s);
                last_s = time_s(&plan);
                tried += 1;
            }
            prop_assert_eq!(last_s, all_max_s);
            prop_assert!(tried <= FRONTIER.plans().len());
        }
    }
}
