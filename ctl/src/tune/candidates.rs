//! Which plans of a frontier are tried on a job, one after another: the one that saves most within
//! the slowdown that is allowed and, as long as that proves too slow, faster ones.

use pfo_planner::{Deadline, Due, Frontier, Plan, PlanError};

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
    /// What the last one takes, in seconds.
    tried_s: Option<f64>,
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
        Self { frontier, limit_s, tried_s: None }
    }

    /// The next plan, after the last one made a step longer by `over_s` than is allowed; none if
    /// there is no faster one.
    pub(super) fn next(&mut self, over_s: f64) -> Result<Option<Plan>, PlanError> {
        let [fastest_s, cheapest_s] =
            [Deadline::Fastest, Deadline::MinEnergy].map(|end| self.frontier.seconds(end));
        if let Some(tried_s) = self.tried_s {
            if tried_s <= fastest_s {
                return Ok(None);
            }
            // As little as it was too slow by: the next one is as much faster as the next one on
            // the frontier.
            let step_s = (cheapest_s - fastest_s) / self.frontier.points().len() as f64;
            self.limit_s = self.limit_s.min(tried_s) - over_s.max(step_s);
        }
        self.limit_s = self.limit_s.max(fastest_s);
        let plan = self.frontier.plan_for(Due::AtMost(self.limit_s))?;
        self.tried_s = plan.predicted.map(|predicted| predicted.iteration_time_s);
        Ok(Some(plan))
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
        let predicted = plan.unwrap().predicted.unwrap();
        assert!(predicted.iteration_time_s <= 1.02 * all_max_s * (1.0 + 1e-12));
        assert!(predicted.iteration_energy_j <= within.last().unwrap().iteration_energy_j);
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
            prop_assert!(tried <= FRONTIER.plans().len() + 1);
        }
    }
}
