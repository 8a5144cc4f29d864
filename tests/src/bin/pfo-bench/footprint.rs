//! What the daemons take when nobody needs them: memory, wake-ups, threads and descriptors.

use std::time::Duration;

use pfo_tests::Node;

use crate::Result;
use crate::before::Before;
use crate::extent::Extent;
use crate::node::{GPUS, Measured, open_session, until_free};
use crate::proc_status::{Consumed, Process};
use crate::report::{Cell, Report};

/// What is observed, and for how long.
#[derive(Clone, Copy)]
struct Lengths {
    /// A thread that has answered a request waits ten seconds for another one, and then ends.
    settling: Duration,
    idle: Duration,
    silent: Duration,
    cycles: usize,
}

/// Measures daemons that have not served anybody yet.
pub(crate) fn measure(
    node: &Node,
    before: Option<&Before>,
    extent: Extent,
    report: &mut Report,
) -> Result<()> {
    let lengths = Lengths {
        settling: Duration::from_secs(extent.of(12, 2)),
        idle: Duration::from_secs(extent.of(10, 1)),
        silent: Duration::from_secs(extent.of(4, 1)),
        cycles: extent.of(1000, 40),
    };
    let mut subjects = vec![("pfod", node as &dyn Measured, node.pfod()?)];
    subjects.extend(Measured::agent(node).map(|agent| ("pfo-agent", node as &dyn Measured, agent)));
    if let Some(before) = before {
        subjects.push(("pfod before", before as &dyn Measured, before.pfod()?));
    }
    let mut rows = observe(&subjects, "no job", lengths.settling, lengths.idle)?;
    let nodes: Vec<&dyn Measured> =
        [Some(node as &dyn Measured), before.map(|b| b as _)].into_iter().flatten().collect();
    let sessions = nodes
        .iter()
        .flat_map(|node| (0..GPUS).map(|gpu| open_session(*node, gpu)))
        .collect::<Result<Vec<_>>>()?;
    rows.extend(observe(
        &subjects,
        &format!("{GPUS} silent sessions"),
        lengths.settling,
        lengths.silent,
    )?);
    drop(sessions);
    for node in nodes {
        for cycle in 0..lengths.cycles {
            let session = open_session(node, cycle % GPUS)?;
            session.step_begin();
        }
        until_free(node)?;
    }
    let after = format!("after {} more sessions", lengths.cycles);
    rows.extend(observe(&subjects, &after, lengths.settling, lengths.silent)?);
    report.table(
        "footprint",
        "The daemons at rest\n(aim: at most 8 MiB for pfod and 16 MiB for pfo-agent beside the simulated \
         GPUs, and no wake-up without a job)",
        &[
            ("state", "state"),
            ("process", "process"),
            ("rss_mib", "RSS MiB"),
            ("gpus_mib", "of it simulated GPUs"),
            ("pss_mib", "PSS MiB"),
            ("threads", "threads"),
            ("descriptors", "descriptors"),
            ("seconds", "watched s"),
            ("wakeups", "wake-ups"),
            ("wakeups_per_s", "per s"),
            ("cpu_ms", "CPU ms"),
        ],
        &rows,
    );
    Ok(())
}

type Subject<'a> = (&'static str, &'a dyn Measured, Process);

/// Observes all of them over the same time.
fn observe(
    subjects: &[Subject<'_>],
    state: &str,
    settling: Duration,
    time: Duration,
) -> Result<Vec<Vec<Cell>>> {
    std::thread::sleep(settling);
    let consumed = || subjects.iter().map(|(.., it)| it.consumed()).collect::<Result<Vec<_>>>();
    let before = consumed()?;
    std::thread::sleep(time);
    let after = consumed()?;
    let mib = |kib: u64| Cell::Figure(kib as f64 / 1024.0, 2);
    let row = |((name, node, process), (before, after)): (&Subject<'_>, (&Consumed, &Consumed))| {
        let memory = process.memory()?;
        let gpus_kib = process.mapped_kib(node.machine().state())?;
        let wakeups = after.wakeups_since(before);
        Ok(vec![
            Cell::text(state),
            Cell::text(*name),
            mib(memory.rss_kib),
            mib(gpus_kib),
            mib(memory.pss_kib),
            Cell::count(process.threads()?.len() as u64),
            Cell::count(process.descriptors()? as u64),
            Cell::Figure(time.as_secs_f64(), 1),
            Cell::count(wakeups),
            Cell::Figure(wakeups as f64 / time.as_secs_f64(), 2),
            Cell::count(10 * (after.cpu_ticks - before.cpu_ticks)),
        ])
    };
    subjects.iter().zip(before.iter().zip(&after)).map(row).collect()
}
