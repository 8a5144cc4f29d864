//! What a begin and its end cost a trainer in Python when the processor has done other work, or nothing, since
//! the last ones, and what a session takes of its memory.

use std::process::Command;

use pfo_tests::Node;

use crate::Result;
use crate::extent::Extent;
use crate::node::{self, job};
use crate::python::{self, Python};
use crate::report::{Cell, Report};
use crate::samples::Samples;

/// What the script times in turns, by the words that it says them with.
const WAYS: [(&str, &str); 7] = [
    ("empty", "two Python functions that do nothing"),
    ("hot", "instruction_begin and instruction_end, one pair after the other"),
    ("apart", "the same after 30 ms of other work"),
    ("rested", "the same after 3 ms of rest"),
    ("queue-hot", "Queue.put(mhz), one after the other, as Zeus does it at a begin"),
    ("queue-apart", "the same after 30 ms of other work"),
    ("queue-rested", "the same after 3 ms of rest"),
];

/// Measures both, against a daemon that leases the trainer its GPU.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    if python::command().is_err() {
        return Ok(()); // What a call costs was not measured either, and that is said.
    }
    let node = node::start();
    let mut python = Python::start(on_node(&node, 0)?.args(["apart", extent.of("200", "3")]))?;
    let mut rows = Vec::new();
    for (name, words) in WAYS {
        let line = python.line()?;
        let times = line.strip_prefix(name).ok_or_else(|| format!("{name}: it says {line:?}"))?;
        let mut samples = Samples::default();
        samples.extend(Python::numbers(times)?);
        let cost = samples.percentiles();
        rows.push(vec![
            Cell::text(words),
            Cell::Figure(cost.p50_us, 2),
            Cell::Figure(cost.p99_us, 2),
        ]);
        python.go_on()?;
    }
    report.table(
        "python_apart",
        "What a begin and its end cost a trainer in Python (µs), with a daemon that serves it",
        &[("way", "calls"), ("p50_us", "p50"), ("p99_us", "p99")],
        &rows,
    );
    memory(&node, report)
}

/// What an interpreter grows by.
fn memory(node: &Node, report: &mut Report) -> Result<()> {
    let mut python = Python::start(on_node(node, 1)?.arg("memory"))?;
    let numbers = Python::numbers(&python.line()?)?;
    let words = ["import pfo_gpu", "a session with its lease", "1,000 steps of 16 instructions"];
    let rows: Vec<_> = words
        .into_iter()
        .zip(numbers)
        .map(|(words, kib)| vec![Cell::text(words), Cell::count(kib)])
        .collect();
    report.table(
        "python_memory",
        "What pfo takes of a trainer's memory (KiB, private)",
        &[("what", "for"), ("kib", "KiB")],
        &rows,
    );
    Ok(())
}

/// The script as a rank on a GPU of the node.
fn on_node(node: &Node, gpu: usize) -> Result<Command> {
    let mut command = python::command()?;
    command
        .env("PFO_SOCKET", node.socket())
        .env("PFO_DEVICES", node.machine.devices())
        .env("PFO_JOB", job(gpu))
        .env("PFO_GPU", node.machine.uuid(gpu).as_str());
    Ok(command)
}
