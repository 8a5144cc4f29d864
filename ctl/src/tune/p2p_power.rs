//! The P2P-blocking power: from the waits of a trial or, where these are too short to be measured, from
//! what its steps draw beside their instructions.

use pfo_planner::{Pipeline, Policy, Prediction, Watts};
use pfo_protocol::RecordedTrial;

use crate::failure::Failure;

/// The mean power of all waits of all ranks, each second of waiting counting the same; none if no
/// rank waited long enough to be measured.
pub(super) fn of_waits(recorded: &RecordedTrial) -> Option<Watts> {
    let waits =
        || recorded.ranks.iter().flat_map(|rank| &rank.waits).filter(|wait| wait.is_known());
    let waited_s: f64 = waits().map(|wait| wait.time_s).sum();
    let waited_j: f64 = waits().map(|wait| wait.power_w * wait.time_s).sum();
    (waited_s > 0.0).then(|| Watts(waited_j / waited_s))
}

/// The power at which steps at default clocks draw what one pipeline was measured to draw. None if that
/// is not between nothing and what its instructions draw: then the profile is of other work.
pub(super) fn of_steps(
    pipeline: &Pipeline,
    time_s: f64,
    energy_j: f64,
) -> Result<Option<Watts>, Failure> {
    let predicted = |watts| -> Result<Option<Prediction>, Failure> {
        let outcome = Policy::AllMax.outcome(pipeline, Watts(watts), &|_| {})?;
        Ok(outcome.plans.first().and_then(|plan| plan.predicted))
    };
    let Some((one, two)) = predicted(1.0)?.zip(predicted(2.0)?) else { return Ok(None) };
    // A watt more of waiting is a joule for each second of it.
    let waited_s = two.iteration_energy_j - one.iteration_energy_j;
    let working_j = one.iteration_energy_j - waited_s;
    let stages = f64::from(pipeline.profile().num_stages());
    let working_s = stages * one.iteration_time_s - waited_s;
    let power_w = (energy_j - working_j) / (stages * time_s - working_s);
    Ok((0.0..working_j / working_s).contains(&power_w).then_some(Watts(power_w)))
}

#[cfg(test)]
mod tests {
    use pfo_planner::{Profile, Schedule};
    use pfo_protocol::{Rank, RecordedRank, TrialResult, WaitPower};

    use super::*;

    fn trial(waits: &[(f64, f64, f64)]) -> RecordedTrial {
        let rank = |&(time_s, power_w, power_error_w): &(f64, f64, f64)| RecordedRank {
            rank: Rank(0),
            readings: 0,
            stray_readings: 0,
            rows: Vec::new(),
            waits: vec![WaitPower { mhz: None, count: 9, time_s, power_w, power_error_w }],
        };
        let trial = TrialResult { plan: None, first_step: 0, steps: Vec::new(), ranks: Vec::new() };
        RecordedTrial { trial, ranks: waits.iter().map(rank).collect() }
    }

    #[test]
    fn each_second_of_waiting_counts_the_same() {
        assert_eq!(of_waits(&trial(&[(3.0, 80.0, 1.0), (1.0, 100.0, 1.0)])), Some(Watts(85.0)));
    }

    #[test]
    fn what_steps_draw_beside_their_instructions_is_the_power_of_their_waits() {
        let rows = "stage,instruction,frequency,time,energy\n\
                    0,forward,900,1,300\n0,backward,900,2,600\n\
                    1,forward,900,1,300\n1,backward,900,2,600\n";
        let profile = Profile::from_csv(rows.as_bytes()).unwrap();
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 2).unwrap();
        // Both work for 6 s of a step of 9 s; what the job does beside that takes another second.
        let power = |energy_j| of_steps(&pipeline, 10.0, energy_j).unwrap();
        assert_eq!(power(3600.0 + 8.0 * 80.0), Some(Watts(80.0)));
        assert_eq!(power(3500.0), None);
        assert_eq!(power(3600.0 + 8.0 * 301.0), None);
    }

    #[test]
    fn waits_that_are_too_short_are_left_out() {
        assert_eq!(of_waits(&trial(&[(3.0, 80.0, 1.0), (1e-3, 400.0, 90.0)])), Some(Watts(80.0)));
        assert_eq!(of_waits(&trial(&[(1e-3, 400.0, 90.0)])), None);
    }
}
