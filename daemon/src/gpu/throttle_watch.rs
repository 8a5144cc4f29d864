//! Reports a GPU that runs below the clock locked on it, because its plan's times then no longer
//! hold.

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

/// Watches for as long as the daemon runs. Without a lease it sleeps.
pub(crate) async fn watch_throttling(driver: Arc<LateDriver>, leases: Arc<Leases>) {
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
    /// The GPUs already reported, each with its session.
    reported: HashMap<GpuUuid, SessionId>,
}

impl Watch {
    fn look(mut self, driver: &LateDriver, leases: &Leases) -> Self {
        let Ok(driver) = driver.get() else { return self };
        let mut throttled = HashMap::new();
        for (uuid, session) in leases.held() {
            let number = session.holder.session;
            let is_reported = self.reported.get(&uuid) == Some(&number);
            let Some(gpu) = driver.gpus.iter().find(|gpu| gpu.uuid == uuid) else { continue };
            let reader = self.readers.entry(uuid.clone()).or_default();
            let found = read(reader, gpu, &session);
            if let Found::Throttled { locked, now, reasons } = found
                && !is_reported
            {
                report(gpu, &session.holder, [locked, now], reasons);
            }
            if matches!(found, Found::Throttled { .. }) || (is_reported && found == Found::Unclear)
            {
                throttled.insert(uuid, number);
            }
        }
        self.reported = throttled;
        self
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Throttled { locked: Mhz, now: Mhz, reasons: ThrottleReasons },
    AsLocked,
    Unclear,
}

fn read(reader: &Reader, gpu: &Arc<Gpu>, session: &Session) -> Found {
    let locked = || Mhz(session.progress.published.locked_mhz.load(Relaxed));
    let before = locked();
    let Ok(reading) = reader.read(gpu) else { return Found::Unclear };
    // A plan may have changed the lock meanwhile.
    if before == Mhz(0) || before != locked() {
        return Found::Unclear;
    }
    match (reading.sm_clock, reading.held_back) {
        (Some(now), Some(reasons)) if now < before => {
            Found::Throttled { locked: before, now, reasons }
        }
        _ => Found::AsLocked,
    }
}

fn report(gpu: &Gpu, holder: &Holder, [locked, now]: [Mhz; 2], reasons: ThrottleReasons) {
    tracing::warn!(
        name: journal::THROTTLED,
        job = %holder.job, rank = holder.rank.0, uid = holder.uid.0, pid = holder.pid.0,
        gpu_uuid = %gpu.uuid, old_mhz = locked.0, new_mhz = now.0,
        "GPU {} of job {}, rank {} runs at {now}, below its lock at {locked}: {reasons:?}",
        gpu.uuid, holder.job, holder.rank
    );
}
