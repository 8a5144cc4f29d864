//! From a call in Python to the driver's set function, while the trainer's thread is busy in Python: through
//! pfo, and through a child process behind a queue, as Zeus does it.

use nvidia_ml::set_call::SetCall;
use pfo_tests::Node;

use crate::Result;
use crate::event_path::{INSTRUCTIONS, clock_of, plan};
use crate::extent::Extent;
use crate::node::{self, job};
use crate::python::{self, Python};
use crate::report::{Cell, Report};
use crate::samples::Samples;

/// Longer than the interpreter lets a thread run while another one waits (5 ms).
const BUSY_MS: u32 = 12;

/// Measures both ways.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    if python::command().is_err() {
        return Ok(()); // What a call costs was not measured either, and that is said.
    }
    let node = node::start();
    let rows = [("pfo", "pfo", 0), ("queue", "a queue to a child process, as Zeus does it", 1)]
        .into_iter()
        .map(|(way, words, gpu)| {
            let samples = path(&node, way, gpu, extent.of(3, 1))?;
            let count = samples.count() as u64;
            let latency = samples.percentiles();
            Ok(vec![
                Cell::text(words),
                Cell::Figure(latency.p50_us, 1),
                Cell::Figure(latency.p99_us, 1),
                Cell::count(count),
            ])
        })
        .collect::<Result<Vec<_>>>()?;
    report.table(
        "python_path",
        "From the call in Python to the driver's set function, the calling thread busy in Python \
         afterwards (µs)",
        &[("way", "way"), ("p50_us", "p50"), ("p99_us", "p99"), ("events", "events")],
        &rows,
    );
    Ok(())
}

fn path(node: &Node, way: &str, gpu: usize, steps: usize) -> Result<Samples> {
    let clocks: Vec<_> = (0..INSTRUCTIONS).map(|index| clock_of(index).to_string()).collect();
    let mut command = python::command()?;
    command
        .args(["path", way, &steps.to_string(), &BUSY_MS.to_string(), &clocks.join(",")])
        .env("PFO_SOCKET", node.socket())
        .env("PFO_DEVICES", node.machine.devices())
        .env("PFO_JOB", job(gpu))
        .env("PFO_GPU", node.machine.uuid(gpu).as_str())
        .env("LD_LIBRARY_PATH", node.machine.library_directory())
        .env("PFO_SIM_STATE", node.machine.state());
    let mut python = Python::start(&mut command)?;
    python.line()?; // It is ready.
    if way == "pfo" {
        node.take_up(&job(gpu), &plan());
    }
    python.go_on()?;
    let called = Python::numbers(&python.line()?)?;
    let sets = node.machine.calls(gpu);
    let mut samples = Samples::default();
    // Each call asks for the clock of the next instruction, and each differs from the one before.
    for (index, called_ns) in called.iter().enumerate() {
        let asked = clock_of((index + 1) % INSTRUCTIONS);
        let answers = |call: &&SetCall| call.max.0 == asked && call.entered.0 >= *called_ns;
        // On a busy machine, a clock may be out of date before it is asked for: it is never set then.
        if let Some(set) = sets.iter().find(answers) {
            samples.add(set.entered.0 - called_ns);
        }
    }
    match samples.count() {
        0 => Err("no clock was set".into()),
        _ => Ok(samples),
    }
}
