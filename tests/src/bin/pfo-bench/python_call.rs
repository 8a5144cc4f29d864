//! What a trainer in Python pays for a begin, next to a call of nothing, to the shim itself and to the
//! queue through which Zeus hands a clock to its child process.

use std::collections::BTreeMap;

use crate::Result;
use crate::call_cost::{CALLS_PER_BLOCK, begin_frame, block};
use crate::extent::Extent;
use crate::python::{self, Python};
use crate::report::{Cell, Report};
use crate::samples::{Percentiles, Samples};
use crate::stand_in::{StandIn, drain, drain_all};

/// What the script times, by the words that it says them with, and how many events each sends at once.
const WAYS: [(&str, &str, Option<u32>); 6] = [
    ("nothing", "a Python function that does nothing", None),
    ("begin", "session.instruction_begin(\"forward\", m)", Some(1)),
    ("optimizer", "optimizer.on_instruction_begin(\"forward\")", Some(1)),
    ("block", "with session.instruction(\"forward\", m): two events", Some(2)),
    ("stream", "session.instruction_begin on a (stand-in) CUDA stream", Some(1)),
    ("queue", "multiprocessing.Queue.put(mhz), as Zeus does it", None),
];

/// Measures all of them.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let blocks: usize = extent.of(300, 5);
    let mut command = match python::command() {
        Ok(command) => command,
        Err(reason) => {
            report.note(reason);
            return Ok(());
        }
    };
    let (ours, theirs, on_stream) = (StandIn::start()?, StandIn::start()?, StandIn::start()?);
    let session = ours.open_session()?;
    let mut our_peer = ours.peer()?;
    command.arg("call").arg(theirs.socket()).arg(on_stream.socket());
    command.args([blocks.to_string(), CALLS_PER_BLOCK.to_string()]);
    let mut python = Python::start(&mut command)?;
    let (mut their_peer, mut stream_peer) = (theirs.peer()?, on_stream.peer()?);
    python.line()?; // It is ready, and has begun a step in each session.
    drain_all(&mut their_peer)?;
    drain_all(&mut stream_peer)?;
    python.go_on()?;
    let frame_bytes = begin_frame()?.len();

    let mut times: BTreeMap<String, Samples> = BTreeMap::new();
    let (mut stamp, mut shim) = <(Samples, Samples)>::default();
    for _ in 0..blocks {
        block(&mut stamp, |_| {});
        block(&mut shim, |call| session.instruction_begin(pfo::Instruction::Forward, call));
        drain(&mut our_peer, CALLS_PER_BLOCK as usize * frame_bytes)?;
        // A line for each way and one for the clock itself: its name, the events it sent, its times.
        for _ in 0..=WAYS.len() {
            let line = python.line()?;
            let (name, numbers) = line.split_once(' ').ok_or("the script says nothing")?;
            let numbers = Python::numbers(numbers)?;
            let (events, samples) = numbers.split_first().ok_or("the script counts nothing")?;
            let peer = if name == "stream" { &mut stream_peer } else { &mut their_peer };
            drain(peer, *events as usize * frame_bytes)?;
            times.entry(name.to_owned()).or_default().extend(samples.iter().copied());
            python.go_on()?;
        }
    }
    let mut of = |name: &str| {
        let samples = times.remove(name).ok_or_else(|| format!("{name} was not measured"))?;
        Ok::<_, String>(samples.percentiles())
    };
    let clock = of("clock")?;
    let shim = shim.percentiles().without(stamp.percentiles());
    let mut rows = vec![row("the shim's instruction_begin, from Rust", shim, None)];
    for (name, words, events) in WAYS {
        let shims_us = events.map(|events| f64::from(events) * shim.p50_us);
        rows.push(row(words, of(name)?.without(clock), shims_us));
    }
    report.table(
        "python_call",
        "What a begin costs a trainer in Python (µs, without the clock's own; aim: at most 1 µs more than \
         the shim itself)",
        &[("way", "call"), ("p50_us", "p50"), ("p99_us", "p99"), ("more_p50_us", "more than the shim")],
        &rows,
    );
    Ok(())
}

fn row(words: &str, cost: Percentiles, shims_us: Option<f64>) -> Vec<Cell> {
    vec![
        Cell::text(words),
        Cell::Figure(cost.p50_us, 3),
        Cell::Figure(cost.p99_us, 3),
        shims_us.map_or_else(|| Cell::text(""), |us| Cell::Figure(cost.p50_us - us, 3)),
    ]
}
