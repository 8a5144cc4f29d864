//! The checks that lock clocks. `pfod` sets them, for a job of this process; here they are only
//! read.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::error::NvmlError;
use pfo_protocol::{
    GpuName, GpuStatus, JobName, Mhz, NameError, RankStatus, Request, Response, Status,
};

use super::gpu::{Gpu, Silent, sample};
use super::reads::Facts;
use super::report::{Check, Outcome, Promise};
use super::session::{self, Job};
use crate::daemons::{ConnectionError, Daemons};
use crate::exit::Exit;
use crate::explained::Explained;
use crate::nvml;
use crate::progress::Progress;

const ACCEPTED: Promise = Promise::new("lock-accepted", "a lock is accepted");
const FOLLOWS: Promise = Promise::new("clock-follows", "the clock follows the lock");
const SET_CALL: Promise = Promise::new("set-call", "pfod measures how long a set call blocks");
const GOODBYE: Promise = Promise::new("restored-after-goodbye", "a goodbye ends the lock");
const CUT: Promise = Promise::new("restored-after-cut", "a cut connection ends the lock");
const LIMIT: Promise = Promise::new("power-limit-unchanged", "the power limit is as it was");

/// In the order in which they are checked.
const ALL: [Promise; 6] = [ACCEPTED, SET_CALL, FOLLOWS, GOODBYE, CUT, LIMIT];

/// The clocks that are locked, as places in the list of those that may be, from 0 to 1.
const PLACES: [f64; 3] = [0.5, 0.75, 1.0];

/// How long a clock may take to follow; workstation boards are known to take a second.
const SETTLED_WITHIN: Duration = Duration::from_secs(3);

/// How long `pfod` may take to report what it did.
const REPORTED_WITHIN: Duration = Duration::from_secs(15);

const POLL: Duration = Duration::from_millis(20);

/// Why no lock was tried or seen.
#[derive(Debug)]
enum Trouble {
    Gpu,
    Pfod(ConnectionError),
    Driver(NvmlError),
    /// Nothing is wrong, but nothing can be checked either.
    Unable(String),
}

impl From<Silent> for Trouble {
    fn from(Silent: Silent) -> Self {
        Self::Gpu
    }
}

impl From<ConnectionError> for Trouble {
    fn from(error: ConnectionError) -> Self {
        Self::Pfod(error)
    }
}

impl From<NvmlError> for Trouble {
    fn from(error: NvmlError) -> Self {
        Self::Driver(error)
    }
}

/// A GPU whose clocks are to be locked.
pub(super) struct Locks<'a> {
    pub(super) daemons: &'a Daemons,
    pub(super) gpu: Gpu,
    pub(super) facts: &'a Facts,
    pub(super) devices: &'a Path,
    pub(super) progress: &'a Progress,
}

/// How a clock came to follow its lock.
struct Followed {
    asked: Mhz,
    observed: Mhz,
    /// None if it did not.
    after: Option<Duration>,
    is_idle: bool,
}

/// Why nothing was locked.
pub(super) fn skipped(why: &str) -> Check {
    ACCEPTED.unknown(format!("not checked: {why}"))
}

impl Locks<'_> {
    /// Locks and lets go twice.
    pub(super) fn check(&self, checks: &mut Vec<Check>) {
        if let Err(trouble) = self.try_check(checks) {
            let is_open = |promise: &Promise| !checks.iter().any(|check| check.is_of(*promise));
            let at = ALL.into_iter().find(is_open).unwrap_or(LIMIT);
            checks.push(self.explained(at, trouble));
        }
    }

    fn try_check(&self, checks: &mut Vec<Check>) -> Result<(), Trouble> {
        let allowed = self.allowed()?;
        let supported = match self.gpu.ask(nvml::supported_sm_clocks)?? {
            longer if longer.is_empty() => allowed.iter().map(|clock| clock.0).collect(),
            listed => listed,
        };
        let before = self.gpu.sm_clock()??;
        let limit = self.power_limit()?;
        let clocks = some_of(&allowed, &supported, before)?;
        let mut job = self.begin("goodbye", &clocks)?;
        let mut followed = Vec::new();
        for (at, clock) in (0..).zip(&clocks) {
            job.run(at)?;
            followed.push(self.follow(&supported, *clock)?);
        }
        let rank = self.accepted(&mut job, &clocks, checks)?;
        checks.push(set_call(rank.as_ref()));
        checks.push(follows(&followed));
        job.goodbye()?;
        checks.push(self.restored(GOODBYE, &supported, before, &followed)?);
        let mut job = self.begin("cut", &clocks[..1])?;
        job.run(0)?;
        let followed = [self.follow(&supported, clocks[0])?];
        drop(job);
        checks.push(self.restored(CUT, &supported, before, &followed)?);
        checks.push(match (limit, self.power_limit()?) {
            (Some(before), after) => LIMIT.is_so(after == Some(before), milliwatts(after)),
            (None, _) => LIMIT.unknown("not readable"),
        });
        Ok(())
    }

    fn begin(&self, ending: &str, clocks: &[Mhz]) -> Result<Job, Trouble> {
        let unable = |error: &dyn std::fmt::Display| Trouble::Unable(error.to_string());
        let name = format!("pfo-selftest-{}-{}-{ending}", std::process::id(), self.gpu.index);
        let name: JobName = name.parse().map_err(|error: NameError| unable(&error))?;
        let table = session::one_after_the_other(clocks).map_err(|error| unable(&error))?;
        Ok(Job::begin(self.daemons, name, &self.facts.uuid, self.devices, table)?)
    }

    /// The clocks that may be locked, rising.
    fn allowed(&self) -> Result<Vec<Mhz>, Trouble> {
        let mut pfod = self.daemons.pfod()?;
        match pfod.ask(Request::SmClocks(GpuName::Uuid(self.facts.uuid.clone())))? {
            Response::SmClocks(clocks) => Ok(clocks),
            other => Err(pfod.unexpected(&other).into()),
        }
    }

    /// Waits for a clock that was just requested.
    fn follow(&self, supported: &[u32], asked: Mhz) -> Result<Followed, Trouble> {
        let clocks = supported.to_owned();
        let is_there = move |mhz: u32| steps_between(&clocks, mhz, asked.0) <= 1;
        let follows = is_there.clone();
        let samples = self.gpu.ask(move |device| {
            let read = || device.clock_info(Clock::SM);
            sample(SETTLED_WITHIN, read, |samples| {
                samples.last().is_some_and(|sample| follows(sample.value))
            })
        })??;
        let reasons = self.gpu.ask(Device::current_throttle_reasons)?;
        let is_idle = reasons.is_ok_and(|reasons| reasons.contains(ThrottleReasons::GPU_IDLE));
        let observed = samples.last().map(|sample| (sample.value, sample.at + sample.took));
        let (observed, at) = observed.unwrap_or_default();
        let after = is_there(observed).then_some(at);
        Ok(Followed { asked, observed: Mhz(observed), after, is_idle })
    }

    /// Waits until `pfod` reports the last clock as locked, or why it is not.
    fn accepted(
        &self,
        job: &mut Job,
        clocks: &[Mhz],
        checks: &mut Vec<Check>,
    ) -> Result<Option<RankStatus>, Trouble> {
        let begin = Instant::now();
        loop {
            let (status, rank) = job.status()?;
            let requested = self.of_gpu(&status).and_then(|gpu| gpu.requested_mhz);
            let problem = rank.as_ref().and_then(|rank| rank.problem.clone());
            let is_last = requested.is_some() && requested == clocks.last().copied();
            if let Some(problem) = problem {
                checks.push(ACCEPTED.fail(self.facts.nameless(&problem)));
                return Ok(rank);
            }
            if is_last || begin.elapsed() > REPORTED_WITHIN {
                let listed: Vec<_> = clocks.iter().map(|clock| clock.0.to_string()).collect();
                let seen = format!("{} MHz", listed.join(", "));
                checks.push(match (is_last, requested) {
                    (true, _) => ACCEPTED.pass(seen),
                    (false, Some(clock)) => ACCEPTED.fail(format!("pfod has locked {clock}")),
                    (false, None) => ACCEPTED.fail("pfod has locked nothing"),
                });
                return Ok(rank);
            }
            sleep(POLL);
        }
    }

    fn restored(
        &self,
        promise: Promise,
        supported: &[u32],
        before: u32,
        followed: &[Followed],
    ) -> Result<Check, Trouble> {
        let begin = Instant::now();
        let reported = loop {
            let status = self.daemons.pfod()?.status()?;
            let owes = status.daemon.unrestored.iter().find(|owed| self.is_about_this_gpu(owed));
            let is_free = |gpu: &GpuStatus| !gpu.leased && gpu.requested_mhz.is_none();
            if owes.is_none() && self.of_gpu(&status).is_some_and(is_free) {
                break begin.elapsed();
            }
            if begin.elapsed() > REPORTED_WITHIN {
                let owes = owes.map_or("it is still leased or locked".to_owned(), |owed| {
                    self.facts.nameless(owed)
                });
                return Ok(promise.fail(format!("pfod: {owes}")));
            }
            sleep(POLL);
        };
        let now = self.follow(supported, Mhz(before))?;
        let was_seen = followed.iter().all(|followed| followed.after.is_some());
        let locked =
            followed.iter().any(|lock| steps_between(supported, lock.asked.0, now.observed.0) <= 1);
        let result = match (now.after, was_seen) {
            (Some(_), true) => Outcome::Pass,
            (None, true) if locked => Outcome::Fail,
            _ => Outcome::Unknown,
        };
        let (observed, reported_ms) = (now.observed, reported.as_millis());
        Ok(promise.came_to(
            result,
            format!(
                "pfod holds no lock after {reported_ms} ms; at {observed}, before at {before} MHz"
            ),
        ))
    }

    fn of_gpu<'s>(&self, status: &'s Status) -> Option<&'s GpuStatus> {
        status.gpus.iter().find(|gpu| gpu.uuid == self.facts.uuid)
    }

    fn is_about_this_gpu(&self, text: &str) -> bool {
        text.contains(self.facts.uuid.as_str())
    }

    fn power_limit(&self) -> Result<Option<u32>, Silent> {
        Ok(self.gpu.ask(Device::power_management_limit)?.ok())
    }

    /// The check that could not be finished. Names of people are printed, and are not in the report.
    fn explained(&self, promise: Promise, trouble: Trouble) -> Check {
        match trouble {
            Trouble::Gpu => promise.fail("the driver stopped answering"),
            Trouble::Driver(error) => promise.unknown(format!("not checked: {error}")),
            Trouble::Unable(why) => promise.unknown(format!("not checked: {why}")),
            Trouble::Pfod(error) => {
                self.progress.tell(&format!("pfoctl: GPU {}: {error}", self.gpu.index));
                let code = match &error {
                    ConnectionError::Refused(refusal) => {
                        format!("pfod refused: {:?}", refusal.code)
                    }
                    _ => "the connection to pfod failed".to_owned(),
                };
                match error.exit() {
                    Exit::Failed => promise.fail(code),
                    _ => promise.unknown(format!("not checked: {code}")),
                }
            }
        }
    }
}

/// Some clocks that may be locked and differ from the one that the GPU has now.
fn some_of(allowed: &[Mhz], supported: &[u32], now: u32) -> Result<Vec<Mhz>, Trouble> {
    let differs = |clock: &Mhz| steps_between(supported, clock.0, now) > 2;
    let candidates: Vec<_> = allowed.iter().copied().filter(differs).collect();
    let Some(last) = candidates.len().checked_sub(1) else {
        return Err(Trouble::Unable(format!("it runs at {now} MHz, and may have no other clock")));
    };
    let mut clocks =
        PLACES.map(|place| candidates[(last as f64 * place).round() as usize]).to_vec();
    clocks.dedup();
    Ok(clocks)
}

fn set_call(rank: Option<&RankStatus>) -> Check {
    match rank {
        Some(rank) if rank.clock_changes > 0 => {
            let [mean_ms, max_ms] =
                [rank.set_call_mean_us, rank.set_call_max_us].map(|call_us| call_us / 1e3);
            let count = rank.clock_changes;
            SET_CALL
                .pass(format!("{count} calls, {mean_ms:.1} ms on average, {max_ms:.1} ms at most"))
        }
        _ => SET_CALL.unknown("pfod reports none"),
    }
}

fn follows(followed: &[Followed]) -> Check {
    let seen: Vec<_> = followed
        .iter()
        .map(|Followed { asked, observed, after, .. }| match after {
            Some(after) => format!("{} of {asked} after {} ms", observed.0, after.as_millis()),
            None => format!("{} of {asked}", observed.0),
        })
        .collect();
    let seen = seen.join(", ");
    if followed.iter().all(|followed| followed.after.is_some()) {
        FOLLOWS.pass(seen)
    } else if followed.iter().all(|followed| followed.after.is_some() || followed.is_idle) {
        FOLLOWS.unknown(format!("{seen}; an idle GPU need not show its lock"))
    } else {
        FOLLOWS.fail(seen)
    }
}

/// How many supported clocks two clocks are apart.
fn steps_between(supported: &[u32], one: u32, other: u32) -> usize {
    let place = |clock: u32| {
        let distance = |(_, supported): &(usize, &u32)| supported.abs_diff(clock);
        supported.iter().enumerate().min_by_key(distance).map_or(0, |(place, _)| place)
    };
    place(one).abs_diff(place(other))
}

fn milliwatts(limit: Option<u32>) -> String {
    limit.map_or("not readable".to_owned(), |limit| format!("{:.0} W", f64::from(limit) / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_supported_step_is_counted_from_what_is_nearest() {
        let supported = [210, 225, 240, 900];
        assert_eq!(steps_between(&supported, 210, 225), 1);
        assert_eq!(steps_between(&supported, 232, 233), 1);
        assert_eq!(steps_between(&supported, 240, 899), 1);
        assert_eq!(steps_between(&supported, 210, 2000), 3);
        assert_eq!(steps_between(&[], 1, 2), 0);
    }

    #[test]
    fn a_clock_that_does_not_follow_fails_unless_the_gpu_is_idle() {
        let followed =
            |is_idle, after| Followed { asked: Mhz(900), observed: Mhz(210), after, is_idle };
        let came_to = |is_idle, after| {
            serde_json::to_value(follows(&[followed(is_idle, after)])).unwrap()["result"].clone()
        };
        assert_eq!(came_to(false, None), "fail");
        assert_eq!(came_to(true, None), "unknown");
        assert_eq!(came_to(false, Some(Duration::ZERO)), "pass");
    }
}
