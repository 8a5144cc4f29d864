//! How late clocks are on a job, as its daemon knows it.

use pfo_planner::{Delays, Profile};
use pfo_protocol::{JobStatus, RankStatus};

use super::Tune;
use crate::daemons::Daemons;
use crate::error::Error;

/// `pfod` asks for the next clock before an instruction has ended, where that is at least twice as
/// long as the clock takes. A little more, because instructions vary.
const AHEAD: f64 = 2.2;

impl Tune {
    /// The delays with which to plan for the job.
    pub(super) fn delays(&self, daemons: &Daemons, profile: &Profile) -> Result<Delays, Error> {
        let status = daemons.pfod()?.status()?;
        let owner = self.job.selector().uid;
        let is_meant = |job: &&JobStatus| {
            job.job == *self.job.name() && owner.is_none_or(|owner| owner == job.uid)
        };
        let ranks = status.jobs.iter().find(is_meant).map_or(&[][..], |job| &job.ranks);
        Ok(self.schedule.delays(late_clocks(of_ranks(ranks), profile)))
    }
}

/// From the call that sets a clock until it is in force, and the part of that for which the call
/// blocks: what the slowest GPU takes.
fn of_ranks(ranks: &[RankStatus]) -> Delays {
    let most = |of: fn(&RankStatus) -> f64| ranks.iter().map(of).fold(0.0, f64::max);
    let set_call_s = most(|rank| rank.set_call_mean_us / 1e6);
    let switch_latency_s = most(|rank| rank.settle_ms / 1e3).max(set_call_s);
    Delays { switch_latency_s, set_call_s, ..Delays::default() }
}

/// What is left of these delays in plans over a profile: nothing where every instruction is long
/// enough for `pfod` to ask ahead.
fn late_clocks(delays: Delays, profile: &Profile) -> Delays {
    let times_s = profile.rows().map(|(_, _, measured)| measured.time_s);
    let shortest_s = times_s.fold(f64::INFINITY, f64::min);
    if shortest_s >= AHEAD * delays.switch_latency_s { Delays::default() } else { delays }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(time_s: f64) -> Profile {
        let csv = format!("stage,instruction,frequency,time,energy\n0,forward,900,{time_s},1\n");
        Profile::from_csv(csv.as_bytes()).unwrap()
    }

    #[test]
    fn clocks_are_late_only_in_plans_of_instructions_that_are_too_short_to_ask_ahead() {
        let delays = Delays { switch_latency_s: 0.02, set_call_s: 0.01, ..Delays::default() };
        assert_eq!(late_clocks(delays, &profile(0.05)), Delays::default());
        assert_eq!(late_clocks(delays, &profile(0.04)), delays);
    }

    #[test]
    fn without_a_rank_nothing_is_known() {
        assert_eq!(of_ranks(&[]), Delays::default());
    }
}
