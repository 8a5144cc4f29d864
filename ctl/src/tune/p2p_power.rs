//! The P2P-blocking power, from the waits of a trial.

use pfo_planner::Watts;
use pfo_protocol::RecordedTrial;

/// The mean power of all waits of all ranks, each second of waiting counting the same; none if no
/// rank waited long enough to be measured.
pub(super) fn of_waits(recorded: &RecordedTrial) -> Option<Watts> {
    let waits =
        || recorded.ranks.iter().flat_map(|rank| &rank.waits).filter(|wait| wait.is_known());
    let waited_s: f64 = waits().map(|wait| wait.time_s).sum();
    let waited_j: f64 = waits().map(|wait| wait.power_w * wait.time_s).sum();
    (waited_s > 0.0).then(|| Watts(waited_j / waited_s))
}

#[cfg(test)]
mod tests {
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
    fn waits_that_are_too_short_are_left_out() {
        assert_eq!(of_waits(&trial(&[(3.0, 80.0, 1.0), (1e-3, 400.0, 90.0)])), Some(Watts(80.0)));
        assert_eq!(of_waits(&trial(&[(1e-3, 400.0, 90.0)])), None);
    }
}
