//! The share of the time that a rank waits: what is left of the time between two answers of `pfod`
//! beside its instructions. `pfod` counts these under plans only.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use pfo_protocol::{SessionId, Status};

/// Over how long: many steps, or at least one of a large model.
const OVER: Duration = Duration::from_secs(30);

/// What `pfod` said of a rank's instructions.
#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Instant,
    plan: u32,
    instruction_s: f64,
}

/// What it said lately.
#[derive(Debug, Default)]
pub(super) struct Waits(BTreeMap<SessionId, VecDeque<Heard>>);

impl Waits {
    /// Takes an answer; returns the share that each rank waited, from 0 to 1, as far as that is known.
    pub(super) fn after(&mut self, status: &Status, at: Instant) -> BTreeMap<SessionId, f64> {
        let ranks = || status.jobs.iter().flat_map(|job| &job.ranks);
        self.0.retain(|session, _| ranks().any(|rank| rank.session == *session));
        let mut shares = BTreeMap::new();
        for rank in ranks() {
            let Some(plan) = rank.plan else {
                self.0.remove(&rank.session);
                continue;
            };
            let heard = self.0.entry(rank.session).or_default();
            // A daemon that was restarted counts from 0 again.
            heard
                .retain(|before| before.plan == plan && before.instruction_s <= rank.instruction_s);
            while heard.get(1).is_some_and(|next| at.duration_since(next.at) >= OVER) {
                heard.pop_front();
            }
            heard.push_back(Heard { at, plan, instruction_s: rank.instruction_s });
            let first = heard[0];
            let (time_s, busy_s) = (
                at.duration_since(first.at).as_secs_f64(),
                rank.instruction_s - first.instruction_s,
            );
            if time_s > 0.0 {
                shares.insert(rank.session, (1.0 - busy_s / time_s).clamp(0.0, 1.0));
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(1);

    fn status(plan: Option<u32>, instruction_s: f64) -> Status {
        let golden = include_str!("../../tests/golden/status.json");
        let mut status: Status = serde_json::from_str(golden).unwrap();
        let rank = &mut status.jobs[0].ranks[0];
        assert_eq!(rank.session, SESSION);
        (rank.plan, rank.instruction_s) = (plan, instruction_s);
        status
    }

    /// What is known after each of these answers: seconds, plan, seconds of instructions.
    fn after(answers: &[(u64, Option<u32>, f64)]) -> Option<f64> {
        let (mut waits, began) = (Waits::default(), Instant::now());
        let shares = answers.iter().map(|&(at_s, plan, instruction_s)| {
            waits.after(&status(plan, instruction_s), began + Duration::from_secs(at_s))
        });
        shares.last().unwrap().get(&SESSION).copied()
    }

    #[test]
    fn what_is_not_spent_in_instructions_is_waiting() {
        let share = after(&[(0, Some(1), 100.0), (4, Some(1), 103.0)]).unwrap();
        assert!((share - 0.25).abs() < 1e-9, "{share}");
    }

    #[test]
    fn only_the_last_half_minute_counts() {
        let answers = [(0, Some(1), 0.0), (100, Some(1), 0.0), (140, Some(1), 40.0)];
        assert!(after(&answers).unwrap() < 1e-9, "{answers:?}");
    }

    #[test]
    fn nothing_is_known_after_one_answer_without_a_plan_or_after_another_plan() {
        assert_eq!(after(&[(0, Some(1), 5.0)]), None);
        assert_eq!(after(&[(0, None, 5.0), (4, None, 5.0)]), None);
        assert_eq!(after(&[(0, Some(1), 5.0), (4, Some(2), 6.0)]), None);
        assert_eq!(after(&[(0, Some(1), 5.0), (4, Some(1), 1.0)]), None);
    }
}
