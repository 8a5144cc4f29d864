//! What the daemon takes when nobody needs it: memory, wake-ups, threads and descriptors.

use std::time::Duration;

use pfo_tests::node::Node;

use crate::Result;
use crate::node::{GPUS, daemon, open_session, wait_until};
use crate::report::{Cell, Report};

/// Answering the first connection leaves a thread that ends after a second.
const SETTLING: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);
const SILENT: Duration = Duration::from_secs(4);

const CYCLES: usize = 1000;

/// Measures a daemon that has not served anybody yet.
pub(crate) fn measure(node: &Node, report: &mut Report) -> Result<()> {
    let mut rows = vec![observe(node, "no job", IDLE)?];
    let sessions = (0..GPUS).map(|gpu| open_session(node, gpu)).collect::<Result<Vec<_>>>()?;
    rows.push(observe(node, &format!("{GPUS} silent sessions"), SILENT)?);
    drop(sessions);
    for cycle in 0..CYCLES {
        let session = open_session(node, cycle % GPUS)?;
        session.step_begin();
    }
    wait_until("all sessions have ended", || Ok(daemon(node)?.threads_named("rank ")?.is_empty()))?;
    rows.push(observe(node, &format!("after {CYCLES} more sessions"), SILENT)?);
    report.table(
        "footprint",
        "The daemon at rest\n(aim: under 12 MiB, and no wake-up when no job runs)",
        &[
            ("state", "state"),
            ("rss_mib", "RSS MiB"),
            ("pss_mib", "PSS MiB"),
            ("threads", "threads"),
            ("descriptors", "descriptors"),
            ("seconds", "watched s"),
            ("context_switches", "context switches"),
            ("cpu_ms", "CPU ms"),
        ],
        &rows,
    );
    Ok(())
}

fn observe(node: &Node, state: &str, time: Duration) -> Result<Vec<Cell>> {
    let daemon = daemon(node)?;
    std::thread::sleep(SETTLING);
    let before = daemon.consumed()?;
    std::thread::sleep(time);
    let after = daemon.consumed()?;
    let memory = daemon.memory()?;
    let mib = |kib: u64| Cell::Figure(kib as f64 / 1024.0, 2);
    Ok(vec![
        Cell::text(state),
        mib(memory.rss_kib),
        mib(memory.pss_kib),
        Cell::count(daemon.threads()?.len() as u64),
        Cell::count(daemon.descriptors()? as u64),
        Cell::Figure(time.as_secs_f64(), 1),
        Cell::count(after.context_switches - before.context_switches),
        Cell::count(10 * (after.cpu_ticks - before.cpu_ticks)),
    ])
}
