//! How late clocks are on a job, as its daemon knows it.

use std::collections::BTreeSet;

use pfo_planner::{Delays, LatencyByClock, Profile};
use pfo_protocol::{CalibratedClock, Calibration, GpuStatus, JobStatus, RankStatus, Status};

use super::Tune;
use crate::calibrate;
use crate::daemons::{ConnectionError, Daemons};
use crate::error::Error;
use crate::progress::Progress;
use crate::trial::{Interrupt, patiently};

/// `pfod` asks for the next clock before an instruction has ended, where that is at least twice as
/// long as the clock takes. A little more, because instructions vary.
const AHEAD: f64 = 2.2;

impl Tune {
    /// Measures how the GPUs of the job change their clocks, unless that is known. A job that shows
    /// nothing of it is planned for as `pfod` is configured.
    pub(super) fn calibrate(
        &self,
        daemons: &Daemons,
        interrupt: &Interrupt,
        profile: &[u8],
    ) -> Result<(), Error> {
        let progress = Progress::new("calibrating the GPUs");
        let status = patiently(&progress, || Ok(daemons.pfod()?.status()?))?;
        let is_its = |gpu: &&GpuStatus| {
            gpu.holder.as_ref().is_some_and(|holder| holder.job == *self.job.name())
        };
        let models: Vec<_> = status.gpus.iter().filter(is_its).map(|gpu| &gpu.model).collect();
        let Some(agent) = daemons.agent().ok().filter(|_| !models.is_empty()) else {
            return Ok(());
        };
        let known = calibrate::known(&mut { agent })?;
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
        let calibrated = patiently(&progress, || {
            let mut agent = interrupt.connect(daemons)?;
            let calibrated = calibrate::calibrate(&mut agent, &self.job, profile.to_vec());
            interrupt.or(self.job.name(), calibrated)
        });
        match calibrated {
            Err(Error::Connection(ConnectionError::Refused(_))) => Ok(()),
            calibrated => calibrated.map(drop),
        }
    }

    /// The job in a status; none if it has no ranks on the node.
    pub(super) fn of_job<'a>(&self, status: &'a Status) -> Option<&'a JobStatus> {
        let owner = self.job.selector().uid;
        let is_meant = |job: &&JobStatus| {
            job.job == *self.job.name() && owner.is_none_or(|owner| owner == job.uid)
        };
        status.jobs.iter().find(is_meant)
    }

    /// The delays with which to plan for the job.
    pub(super) fn delays(&self, daemons: &Daemons, profile: &Profile) -> Result<Delays, Error> {
        let status = daemons.pfod()?.status()?;
        let Some(job) = self.of_job(&status) else {
            return Ok(self.schedule.delays(Delays::default()));
        };
        let known = match daemons.agent() {
            Ok(mut agent) => calibrate::known(&mut agent)?,
            Err(_) => Vec::new(),
        };
        let calibrations = of_job(job, &status, &known);
        let delays = Delays { held_up_s: held_up_s(&calibrations), ..of_ranks(&job.ranks) };
        let delays = delays.with_latency_by_clock(by_clock(&calibrations));
        Ok(self.schedule.delays(late_clocks(delays, profile)))
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
