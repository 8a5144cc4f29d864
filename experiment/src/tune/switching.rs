//! How late clocks are on a job, as its daemon knows it.

use std::collections::BTreeSet;
use std::time::Duration;

use pfo_planner::{Delays, LatencyByClock, Profile};
use pfo_protocol::{
    AgentRequest, AgentResponse, CalibratedClock, Calibration, GpuStatus, JobStatus, RankStatus,
    Status,
};

use crate::bench::{Bench, BenchError, Phase};
use crate::error::TuneError;
use crate::subject::{Subject, unexpected};
use crate::terms::Terms;
use crate::trouble::Trouble;

/// `pfod` asks for the next clock before an instruction has ended, where that is at least twice as
/// long as the clock takes. A little more, because instructions vary.
const AHEAD: f64 = 2.2;

/// For how long the steps of a job are calibrated, in seconds.
const WITHIN_S: u64 = 3600;

impl<B: Bench> Subject<'_, B> {
    /// Measures how the GPUs of the job change their clocks, unless that is known. A job that shows
    /// nothing of it is planned for as `pfod` is configured.
    pub(crate) async fn calibrate(&mut self, profile: &[u8]) -> Result<(), TuneError> {
        let status = self.status().await?;
        let job = self.job();
        let is_its = |gpu: &&GpuStatus| gpu.holder.as_ref().is_some_and(|holder| holder.job == job);
        let models: Vec<_> = status.gpus.iter().filter(is_its).map(|gpu| &gpu.model).collect();
        if models.is_empty() {
            return Ok(());
        }
        let known = self.calibrations().await?;
        let is_known = |model: &&String| {
            known.iter().any(|one| {
                one.gpu_model == **model
                    && Some(&one.driver) == status.daemon.driver.as_ref()
                    && !one.clocks.is_empty()
            })
        };
        if models.iter().all(is_known) {
            return Ok(());
        }
        self.begin(Phase::Calibration, "calibrating the GPUs".to_owned());
        let mut trouble = Trouble::default();
        loop {
            let (job, profile) = (self.selector(), profile.to_vec());
            let request = AgentRequest::Calibrate { job, profile };
            let error = match self.agent_within(request, Some(Duration::from_secs(WITHIN_S))).await
            {
                Ok(AgentResponse::Calibrations(_)) => return Ok(()),
                Ok(other) => return Err(unexpected(&other)),
                Err(BenchError::Late) => {
                    return Err(TuneError::TooLong { job: self.job(), seconds: WITHIN_S });
                }
                Err(error) => TuneError::from(error),
            };
            match self.wait_out(&mut trouble, error).await {
                Ok(()) => {}
                Err(error) if error.is_unreachable() => return Err(error),
                Err(_) => return Ok(()),
            }
        }
    }

    /// The delays with which to plan for the job, where the terms give no others.
    pub(crate) async fn delays(
        &mut self,
        terms: &Terms,
        profile: &Profile,
    ) -> Result<Delays, TuneError> {
        let status = self.status().await?;
        let known = self.calibrations().await?;
        let Some(job) = self.in_status(&status) else {
            return Ok(terms.delays(Delays::default()));
        };
        let calibrations = of_job(job, &status, &known);
        let delays = Delays { held_up_s: held_up_s(&calibrations), ..of_ranks(&job.ranks) };
        let delays = delays.with_latency_by_clock(by_clock(&calibrations));
        Ok(terms.delays(late_clocks(delays, profile)))
    }

    async fn calibrations(&mut self) -> Result<Vec<Calibration>, TuneError> {
        match self.agent(AgentRequest::Calibrations).await? {
            AgentResponse::Calibrations(known) => Ok(known),
            other => Err(unexpected(&other)),
        }
    }
}

/// The calibrations of the models of a job's GPUs; none unless there is one of each.
fn of_job<'a>(job: &JobStatus, status: &Status, known: &'a [Calibration]) -> Vec<&'a Calibration> {
    let driver = status.daemon.driver.as_ref();
    let of_model = |model: &String| {
        let is_its = |one: &&Calibration| one.gpu_model == *model && Some(&one.driver) == driver;
        let own = known.iter().filter(is_its).find(|one| one.uid == Some(job.uid));
        own.or_else(|| known.iter().filter(is_its).find(|one| one.uid.is_none()))
    };
    let is_its = |gpu: &&GpuStatus| job.ranks.iter().any(|rank| rank.gpu_uuid == gpu.uuid);
    let models: BTreeSet<&String> =
        status.gpus.iter().filter(is_its).map(|gpu| &gpu.model).collect();
    models.into_iter().map(of_model).collect::<Option<_>>().unwrap_or_default()
}

/// What clocks take on the slowest of these models, by clock.
fn by_clock(calibrations: &[&Calibration]) -> LatencyByClock {
    let point = |clock: &CalibratedClock| (clock.mhz, f64::from(clock.settle_us) / 1e6);
    let of_each = calibrations.iter().map(|one| one.clocks.iter().map(point).collect());
    let longest = |latency: &LatencyByClock| latency.longest_s().unwrap_or(0.0);
    of_each.max_by(|one, other| longest(one).total_cmp(&longest(other))).unwrap_or_default()
}

/// For how long a change holds up transfers that wait for the call, which is made when they begin where a
/// clock is late.
fn held_up_s(calibrations: &[&Calibration]) -> f64 {
    let waiting = calibrations.iter().filter(|one| one.transfers_wait == Some(true));
    waiting.filter_map(|one| one.set_call_us).fold(0.0, f64::max) / 1e6
}

/// From the call that sets a clock until it is in force, and the part of that for which the call
/// blocks: what the slowest GPU takes.
fn of_ranks(ranks: &[RankStatus]) -> Delays {
    let most = |of: fn(&RankStatus) -> f64| ranks.iter().map(of).fold(0.0, f64::max);
    let set_call_s = most(|rank| rank.set_call_mean_us / 1e6);
    let switch_latency_s = most(|rank| rank.settle_ms / 1e3);
    Delays { switch_latency_s, set_call_s, ..Delays::default() }
}

/// What is left of these delays in plans over a profile. A clock for which `pfod` asks ahead of every
/// instruction is not late; and where none is, and a call returns while the next instruction runs, it is in
/// nobody's way.
fn late_clocks(delays: Delays, profile: &Profile) -> Delays {
    let times_s = profile.rows().map(|(_, _, measured)| measured.time_s);
    let shortest_s = times_s.fold(f64::INFINITY, f64::min);
    let late_s = |latency_s| if shortest_s >= AHEAD * latency_s { 0.0 } else { latency_s };
    let by_clock = delays.latency_by_clock.points().iter();
    let by_clock = by_clock.map(|&(clock, latency_s)| (clock, late_s(latency_s))).collect();
    let switch_latency_s = late_s(delays.switch_latency_s);
    let late = Delays { switch_latency_s, ..delays }.with_latency_by_clock(by_clock);
    match late.switch_latency_s > 0.0 {
        true => late,
        false if shortest_s < delays.set_call_s => Delays { held_up_s: 0.0, ..late },
        false => Delays::default(),
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Mhz;

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
    fn calls_that_block_for_longer_than_an_instruction_do_so_in_plans_even_where_no_clock_is_late()
    {
        let delays = Delays { switch_latency_s: 0.008, set_call_s: 0.05, ..Delays::default() };
        let blocking = Delays { switch_latency_s: 0.0, ..delays };
        assert_eq!(late_clocks(delays, &profile(0.03)), blocking);
        assert_eq!(late_clocks(delays, &profile(0.05)), Delays::default());
    }

    #[test]
    fn only_clocks_that_take_long_are_late() {
        let by_clock = [(Mhz(900), 0.05), (Mhz(1200), 0.02), (Mhz(1500), 0.004)].into_iter();
        let delays = Delays { set_call_s: 0.01, ..Delays::default() };
        let late = late_clocks(delays.with_latency_by_clock(by_clock.collect()), &profile(0.03));
        let expected = [(Mhz(900), 0.05), (Mhz(1200), 0.02), (Mhz(1500), 0.0)];
        assert_eq!(late.latency_by_clock.points(), expected);
        assert_eq!((late.switch_latency_s, late.set_call_s), (0.05, 0.01));
        assert_eq!(late_clocks(late, &profile(0.2)), Delays::default());
    }

    #[test]
    fn without_a_rank_nothing_is_known() {
        assert_eq!(of_ranks(&[]), Delays::default());
    }
}
