//! What changes of clocks cost a job in time, beside what was planned with: learned from a plan that
//! took longer than predicted.
//!
//! A driver may keep transfers waiting while it sets a clock, calls may return late, and clocks may
//! be in force later than calibration saw. All of that comes with the changes of a plan. So the
//! replay of the plan tells for how long each change must have held up its stage, for the step to
//! take what was measured.

use pfo_planner::{Plan, PlanError, Profile, Watts, replay};

/// A plan that takes longer than predicted by a smaller share of a step teaches nothing: that much
/// is noise, or what instructions take that are not on the critical path by prediction.
const WORTH_LEARNING: f64 = 0.002;

/// No change holds anything up for longer, in seconds.
const LONGEST_S: f64 = 1.0;

/// How exactly it is found, in seconds.
const FINEST_S: f64 = 1e-5;

/// For how long each change must hold up its stage, in seconds, for a plan to take `measured_s`; none
/// if that is what is planned with already, or the plan changes no clock that a step waits for.
pub(crate) fn learned(
    profile: &Profile,
    plan: &Plan,
    measured_s: f64,
) -> Result<Option<f64>, PlanError> {
    let mut plan = plan.clone();
    let known_s = plan.delays.held_up_s;
    let mut time_s = |held_up_s: f64| {
        plan.delays.held_up_s = held_up_s;
        // Powers make no difference to times.
        replay(profile, &plan, Watts(0.0)).map(|replay| replay.iteration_time_s)
    };
    if measured_s <= time_s(known_s)? * (1.0 + WORTH_LEARNING) {
        return Ok(None);
    }
    let (mut less_s, mut more_s) = (known_s, LONGEST_S);
    if time_s(more_s)? < measured_s {
        return Ok(None);
    }
    while more_s - less_s > FINEST_S {
        let middle_s = f64::midpoint(less_s, more_s);
        let half = if time_s(middle_s)? < measured_s { &mut less_s } else { &mut more_s };
        *half = middle_s;
    }
    Ok(Some(more_s))
}

#[cfg(test)]
mod tests {
    use pfo_planner::{Delays, Due, Frontier, Mhz, Options, Pipeline, Schedule};
    use proptest::prelude::*;

    use super::*;

    fn profile() -> Profile {
        let csv = "stage,instruction,frequency,time,energy\n\
            0,forward,1400,0.05,20\n0,forward,1000,0.06,16\n\
            0,backward,1400,0.1,40\n0,backward,1000,0.12,32\n\
            1,forward,1400,0.06,24\n1,forward,1000,0.072,19\n\
            1,backward,1400,0.12,48\n1,backward,1000,0.144,38\n";
        Profile::from_csv(csv.as_bytes()).unwrap()
    }

    /// A plan of these clocks, in turn, for two stages.
    fn plan(clocks: &[u32], held_up_s: f64) -> Plan {
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::new(&profile(), schedule, 4).unwrap();
        let options = Options { plans: 2, ..Options::default() };
        let frontier = Frontier::optimize(&pipeline, Watts(80.0), options, &|_| {}).unwrap();
        let mut plan = frontier.plan(0).unwrap();
        plan.delays = Delays { held_up_s, ..Delays::default() };
        let planned = plan.stages.iter_mut().flat_map(|stage| &mut stage.instructions);
        for (planned, mhz) in planned.zip(clocks.iter().cycle()) {
            planned.frequency_mhz = Mhz(*mhz);
        }
        plan
    }

    fn time_s(plan: &Plan) -> f64 {
        replay(&profile(), plan, Watts(80.0)).unwrap().iteration_time_s
    }

    #[test]
    fn nothing_is_learned_from_a_plan_that_takes_what_was_predicted_or_changes_no_clock() {
        let changing = plan(&[1400, 1000, 1000], 0.0);
        assert_eq!(learned(&profile(), &changing, 1.001 * time_s(&changing)).unwrap(), None);
        assert_eq!(learned(&profile(), &changing, 0.9 * time_s(&changing)).unwrap(), None);
        let steady = plan(&[1000], 0.0);
        assert_eq!(learned(&profile(), &steady, 1.1 * time_s(&steady)).unwrap(), None);
    }

    /// A job on which each change really holds up its stage for some time: the second or third plan
    /// keeps the slowdown, and saves about what could be saved by somebody who knew.
    #[test]
    fn plans_with_what_was_learned_keep_what_they_promise() {
        const ALLOWED: f64 = 1.03;
        let schedule = Schedule::OneForwardOneBackward;
        let prompt = Pipeline::new(&profile(), schedule, 4).unwrap();
        let best = |held_up_s: f64| {
            let delays = Delays { held_up_s, ..Delays::default() };
            let pipeline = prompt.with_delays(delays).unwrap();
            let options = Options { plans: 20, ..Options::default() };
            let frontier = Frontier::optimize(&pipeline, Watts(80.0), options, &|_| {}).unwrap();
            let limit_s = ALLOWED * time_s(&plan(&[1400], 0.0));
            frontier.plan_for(Due::AtMost(limit_s)).unwrap()
        };
        for true_s in [0.002, 0.01, 0.03] {
            let on_the_job = |plan: &Plan| {
                let delays = Delays { held_up_s: true_s, ..Delays::default() };
                replay(&profile(), &Plan { delays, ..plan.clone() }, Watts(80.0)).unwrap()
            };
            let limit_s = ALLOWED * time_s(&plan(&[1400], 0.0));
            let mut tried = best(0.0);
            for _ in 0..3 {
                let measured_s = on_the_job(&tried).iteration_time_s;
                let Some(held_up_s) = learned(&profile(), &tried, measured_s).unwrap() else {
                    break;
                };
                assert!(held_up_s < 1.05 * true_s, "{held_up_s} s learned, {true_s} s true");
                tried = best(held_up_s);
            }
            let (found, known) = (on_the_job(&tried), on_the_job(&best(true_s)));
            assert!(found.iteration_time_s <= limit_s * (1.0 + WORTH_LEARNING), "{true_s}");
            assert!(found.iteration_energy_j <= 1.005 * known.iteration_energy_j, "{true_s}");
        }
    }

    proptest! {
        /// With what was learned, the same plan is predicted to take what was measured.
        #[test]
        fn with_what_was_learned_the_plan_takes_what_was_measured(
            clocks in prop::collection::vec(prop::sample::select(vec![1000_u32, 1400]), 2..9),
            known_s in 0.0_f64..0.02, longer in 1.003_f64..1.2,
        ) {
            let before = plan(&clocks, known_s);
            let measured_s = longer * time_s(&before);
            if let Some(held_up_s) = learned(&profile(), &before, measured_s).unwrap() {
                prop_assert!(held_up_s > known_s);
                let mut after = before.clone();
                after.delays.held_up_s = held_up_s;
                prop_assert!((time_s(&after) - measured_s).abs() < 2e-3);
                prop_assert!(time_s(&after) >= measured_s - 1e-12);
            }
        }
    }
}
