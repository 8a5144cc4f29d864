//! Reports a GPU that does not run at the clock locked on it, because its plan's times then no
//! longer hold: it is held back, or somebody else has set its clock.
//!
//! NVML does not tell who locked a clock, and the last lock counts. So a foreign one is inferred:
//! the GPU computes at another clock than pfod's, which has not changed meanwhile, and the driver
//! names no reason.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pfo_keeper::{Gpu, ThrottleReasons};
use pfo_protocol::{GpuUuid, Holder, Mhz, SessionId};
use tokio::time::sleep;

use super::LateDriver;
use super::reader::Reader;
use crate::host::journal;
use crate::lease::{Leases, Session};

/// Long enough to cost nothing, short enough for an administrator who looks into a slow job.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What may hold back a GPU for as long as it works hard, and is a fact about its clocks: reported once
/// for each session.
const STEADY: u64 = ThrottleReasons::SW_POWER_CAP.bits();

/// Looks in a row at a GPU above a lock that changes meanwhile: a clock that comes late is sometimes below.
const ABOVE: u32 = 24;

/// Watches for as long as the daemon runs. Without a lease it sleeps.
pub(crate) async fn watch_clocks(driver: Arc<LateDriver>, leases: Arc<Leases>) {
    let mut watch = Watch::default();
    loop {
        leases.wait_for_any().await;
        sleep(LOOK_EVERY).await;
        let (driver, leases) = (Arc::clone(&driver), Arc::clone(&leases));
        let looking = tokio::task::spawn_blocking(move || watch.look(&driver, &leases));
        let Ok(looked) = looking.await else { return };
        watch = looked;
    }
}

#[derive(Default)]
struct Watch {
    /// Separate from the reader of status requests, which may be busy.
    readers: HashMap<GpuUuid, Reader>,
    /// What was found at the last look, each with its session.
    last: HashMap<GpuUuid, (SessionId, Last)>,
}

/// What the last look has left.
#[derive(Clone, Copy, Default)]
struct Last {
    /// NVML's bits.
    reasons_reported: u64,
    foreign_reported: bool,
    /// The set calls that had been made when the GPU ran at another clock than its lock.
    astray_after: Option<u64>,
    /// How often in a row it ran above it.
    above: u32,
}

impl Watch {
    fn look(mut self, driver: &Arc<LateDriver>, leases: &Leases) -> Self {
        let Ok(driver) = driver.get() else { return self };
        let mut looked = HashMap::new();
        for (uuid, session) in leases.held() {
            let number = session.holder.session;
            let Some(gpu) = driver.gpus.iter().find(|gpu| gpu.uuid == uuid) else { continue };
            let reader = self.readers.entry(uuid.clone()).or_default();
            let last = self.last.get(&uuid).filter(|(of, _)| *of == number);
            let last = last.map_or_else(Last::default, |(_, last)| *last);
            let found = read(reader, gpu, &session);
            looked.insert(uuid, (number, last.followed_by(&found, gpu, &session)));
        }
        self.last = looked;
        self
    }
}

impl Last {
    fn followed_by(self, found: &Found, gpu: &Gpu, session: &Session) -> Self {
        let (holder, foreign) = (&session.holder, &session.progress.foreign_clock);
        if !matches!(found, Found::Unclear | Found::Astray { .. }) {
            foreign.store(None);
        }
        let reported = |reasons_reported| Self { reasons_reported, ..Self::default() };
        match *found {
            Found::Unclear => self,
            Found::Unlocked => reported(self.reasons_reported),
            Found::AsLocked => reported(self.reasons_reported & STEADY),
            Found::Throttled { locked, now, reasons } => {
                if reasons.bits() & !self.reasons_reported != 0 {
                    report_throttling(gpu, holder, [locked, now], reasons);
                }
                reported(self.reasons_reported | reasons.bits())
            }
            Found::Astray { locked, now, set_calls } => {
                let (astray, stays) = self.astray([locked, now], set_calls);
                if stays {
                    let set_again = session.grant.load().rules.set_again;
                    if !self.foreign_reported {
                        report_foreign(gpu, holder, [locked, now], set_again);
                    }
                    foreign.store(Some(Arc::new(format!(
                        "it runs at {now} although pfod has locked {locked}: another program has \
                         set its clock, or the hardware holds it back"
                    ))));
                    session.progress.set_again.store(set_again, Relaxed);
                }
                let foreign_reported = self.foreign_reported || stays;
                let reasons_reported = self.reasons_reported & STEADY;
                Self { reasons_reported, foreign_reported, ..astray }
            }
        }
    }

    /// After a look at a GPU that is not at its lock, and whether that was no chance.
    fn astray(self, [locked, now]: [Mhz; 2], set_calls: u64) -> (Self, bool) {
        let above = if now > locked { self.above.saturating_add(1) } else { 0 };
        let stays = self.astray_after == Some(set_calls) || above >= ABOVE;
        (Self { astray_after: Some(set_calls), above, ..self }, stays)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Throttled { locked: Mhz, now: Mhz, reasons: ThrottleReasons },
    Astray { locked: Mhz, now: Mhz, set_calls: u64 },
    AsLocked,
    Unlocked,
    Unclear,
}

fn read(reader: &Reader, gpu: &Arc<Gpu>, session: &Session) -> Found {
    let published = &session.progress.published;
    let set = || (Mhz(published.locked_mhz.load(Relaxed)), published.set_calls.load(Relaxed));
    let before = set();
    let Ok(reading) = reader.read(gpu) else { return Found::Unclear };
    // A plan may have changed the lock meanwhile.
    let (locked, set_calls) = before;
    if before != set() {
        return Found::Unclear;
    }
    if locked == Mhz(0) {
        return Found::Unlocked;
    }
    match (reading.sm_clock, reading.held_back) {
        (Some(now), Some(reasons)) if now < locked => Found::Throttled { locked, now, reasons },
        (None, _) => Found::Unclear,
        (Some(now), _) if gpu.is_next_to(now, locked) => Found::AsLocked,
        _ if reading.idle => Found::Unclear,
        (Some(now), _) => Found::Astray { locked, now, set_calls },
    }
}

fn report_throttling(gpu: &Gpu, holder: &Holder, [locked, now]: [Mhz; 2], why: ThrottleReasons) {
    let why: Vec<_> = why.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    tracing::warn!(
        name: journal::THROTTLED,
        job = %holder.job, rank = holder.rank.0, uid = holder.uid.0, pid = holder.pid.0,
        gpu_uuid = %gpu.uuid, old_mhz = locked.0, new_mhz = now.0,
        "GPU {} of job {}, rank {} runs at {now}, below its lock at {locked}: {}",
        gpu.uuid, holder.job, holder.rank, why.join(", ")
    );
}

fn report_foreign(gpu: &Gpu, holder: &Holder, [locked, now]: [Mhz; 2], set_again: bool) {
    let then =
        if set_again { "pfod sets its clock again" } else { "pfod leaves it, as configured" };
    tracing::warn!(
        name: journal::FOREIGN_CLOCK,
        job = %holder.job, rank = holder.rank.0, uid = holder.uid.0, pid = holder.pid.0,
        gpu_uuid = %gpu.uuid, old_mhz = locked.0, new_mhz = now.0,
        "GPU {} of job {}, rank {} runs at {now}, not at its lock at {locked}, and the driver names \
         no reason; {then}",
        gpu.uuid, holder.job, holder.rank
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the last of these looks, each after another set call, shows a lock that is ignored.
    fn is_ignored(now: impl Iterator<Item = u32>) -> bool {
        let look = |(last, _): (Last, bool), (set_calls, now)| {
            let clocks = [Mhz(900), Mhz(now)];
            Last::astray(last, clocks, set_calls)
        };
        (0..).zip(now).fold((Last::default(), false), look).1
    }

    #[test]
    fn a_lock_that_changes_all_the_time_and_is_never_shown_is_ignored() {
        let above = || std::iter::repeat_n(1410, ABOVE as usize);
        assert!(is_ignored(above()));
        assert!(!is_ignored(above().skip(1)));
        assert!(!is_ignored(above().chain([600]).chain(above().skip(1))), "clocks come late");
    }

    #[test]
    fn a_gpu_that_is_not_at_a_lock_that_stays_is_found_at_the_second_look() {
        let (once, stays) = Last::default().astray([Mhz(900), Mhz(600)], 7);
        assert!(!stays && once.astray([Mhz(900), Mhz(600)], 7).1);
    }
}
