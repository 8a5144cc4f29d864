//! Says in the journal when a GPU runs below the clock that is locked on it: its plan's times no longer
//! hold then, and nothing else would tell.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use pfo_planner::Mhz;
use pfo_protocol::{GpuUuid, Holder};

use crate::driver::Gpu;
use crate::journal;
use crate::lease::Session;
use crate::look_while_leased::look_while_leased;
use crate::node::Node;
use crate::reading::Reader;

/// Long enough to cost nothing, short enough for whoever wonders about a slow job.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Watches for as long as the daemon runs.
pub async fn watch_throttling(node: Arc<Node>) {
    look_while_leased(node, LOOK_EVERY, Watch::default(), |node, watch| watch.look(node)).await;
}

#[derive(Default)]
struct Watch {
    /// Its own, so that no request for status meets a reader that is busy.
    readers: HashMap<GpuUuid, Reader>,
    /// The GPUs that it has told of, each with the session.
    told: HashMap<GpuUuid, u64>,
}

impl Watch {
    fn look(mut self, node: &Node) -> Self {
        let Ok(driver) = node.driver.get() else { return self };
        let mut throttled = HashMap::new();
        for (uuid, session) in node.leases.held() {
            let number = session.holder.session;
            let is_told = self.told.get(&uuid) == Some(&number);
            let Some(gpu) = driver.gpus.iter().find(|gpu| gpu.uuid == uuid) else { continue };
            let reader = self.readers.entry(uuid.clone()).or_default();
            let found = read(reader, gpu, &session);
            if let Found::Throttled { locked, now, reasons } = found
                && !is_told
            {
                tell(gpu, &session.holder, [locked, now], reasons);
            }
            if matches!(found, Found::Throttled { .. }) || (is_told && found == Found::Unclear) {
                throttled.insert(uuid, number);
            }
        }
        self.told = throttled;
        self
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Throttled { locked: u32, now: u32, reasons: ThrottleReasons },
    AsLocked,
    Unclear,
}

fn read(reader: &Reader, gpu: &Arc<Gpu>, session: &Session) -> Found {
    let locked = || session.progress.locked_mhz.load(Relaxed);
    let before = locked();
    let Ok(reading) = reader.read(gpu) else { return Found::Unclear };
    // A plan may have changed it meanwhile.
    if before == 0 || before != locked() {
        return Found::Unclear;
    }
    match (reading.sm_clock, reading.held_back) {
        (Some(Mhz(now)), Some(reasons)) if now < before => {
            Found::Throttled { locked: before, now, reasons }
        }
        _ => Found::AsLocked,
    }
}

fn tell(gpu: &Gpu, holder: &Holder, [locked, now]: [u32; 2], reasons: ThrottleReasons) {
    tracing::warn!(
        name: journal::THROTTLED,
        job = %holder.job, rank = holder.rank, uid = holder.uid, pid = holder.pid,
        gpu_uuid = %gpu.uuid, old_mhz = locked, new_mhz = now,
        "the GPU runs at {now} MHz, locked at {locked} MHz: {reasons:?}"
    );
}
