//! What pfo costs, next to what the machine itself costs, measured in one run.
//!
//! Absolute figures are this machine's and this minute's. What counts are the ratios between columns:
//! what is compared takes turns in short blocks, so that the noise of the machine hits both alike. `--short`
//! is for CI: it runs every part, and its figures mean little.

mod abuse;
mod accuracy;
mod bare_socket;
mod before;
mod bench_profile;
mod budget;
mod call_beside_readers;
mod call_cost;
#[path = "../../../../budget/tests/cluster/mod.rs"]
mod cluster;
mod computing;
mod conditions;
mod deadlines;
mod event_path;
mod excess;
mod extent;
mod fleet;
mod footprint;
mod growth;
mod lowtime;
mod lowtime_run;
mod lowtime_until;
mod node;
mod noise;
mod our_run;
mod p2p_accuracy;
mod placement;
mod planning;
mod proc_status;
mod python;
mod python_apart;
mod python_call;
mod python_path;
mod recording;
mod report;
mod samples;
mod scale;
mod stand_in;
mod tune_accuracy;
mod what_ifs;

use std::error::Error;
use std::process::ExitCode;

use crate::before::Before;
use crate::extent::Extent;
use crate::report::Report;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What runs when no part is named, in this order.
const PARTS: [Part; 13] = [
    Part { name: "footprint", measure: |bench| bench.on_nodes(footprint::measure) },
    Part { name: "event-path", measure: |bench| bench.on_nodes(event_path::measure) },
    Part { name: "recording", measure: |bench| bench.on_nodes(recording::measure) },
    Part { name: "accuracy", measure: accuracy },
    Part { name: "conditions", measure: conditions },
    Part { name: "abuse", measure: |bench| abuse::measure(bench.extent, &mut bench.report) },
    Part { name: "call", measure: calls },
    Part { name: "python", measure: python_calls },
    Part { name: "planning", measure: planning },
    Part { name: "noise", measure: |bench| noise::measure(bench.extent, &mut bench.report) },
    Part { name: "budget", measure: |bench| budget::measure(bench.extent, &mut bench.report) },
    Part { name: "fleet", measure: fleet },
    Part { name: "lowtime", measure: |bench| lowtime::measure(bench.extent, &mut bench.report) },
];

/// Something that can be measured by itself.
struct Part {
    name: &'static str,
    measure: fn(&mut Bench) -> Result<()>,
}

/// One run.
#[derive(Default)]
struct Bench {
    extent: Extent,
    report: Report,
    /// The conditions to measure, if not all.
    conditions: Vec<String>,
    /// The nodes of the fleet, if not as many as belong to the extent.
    nodes: Option<usize>,
}

/// Before the names of the conditions to measure.
const CONDITIONS: &str = "conditions=";

/// Before the number of nodes of the fleet.
const NODES: &str = "nodes=";

fn usage() -> String {
    let parts = PARTS.map(|part| part.name).join("|");
    format!(
        "usage: pfo-bench [--json] [--short] [{parts}]…
--short measures so little that it only shows that everything runs.
conditions=NAME,… measures some of the conditions only, nodes=N a fleet of so many nodes.
PFO_BENCH_MICROBATCHES (12) and PFO_BENCH_FILTERS (raw,effective) say how lowtime is run,
PFO_DATA_DIR where measured profiles are, PFO_BENCH_BEFORE a pfo-bench of another commit, beside
which frontiers of larger pipelines are measured"
    )
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some(bare_socket::RECEIVER) => bare_socket::receive(),
        Some(computing::COMPUTES) => computing::run(&arguments[1..]),
        Some(scale::MAKES_FRONTIER) => scale::run(&arguments[1..]),
        Some(conditions::OBSERVES) => conditions::observe(arguments.get(1)),
        _ => run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pfo-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let mut bench = Bench::default();
    let mut chosen = Vec::new();
    for argument in arguments {
        match argument.as_str() {
            "--json" => bench.report.as_json(),
            "--short" => bench.extent = Extent::Short,
            argument if argument.starts_with(CONDITIONS) => {
                bench.conditions = conditions::names(&argument[CONDITIONS.len()..])?;
                chosen.push("conditions");
            }
            argument if argument.starts_with(NODES) => {
                bench.nodes = Some(argument[NODES.len()..].parse().map_err(|_| usage())?);
                chosen.push("fleet");
            }
            name if PARTS.iter().any(|part| part.name == name) => chosen.push(name),
            _ => return Err(usage().into()),
        }
    }
    for part in PARTS.iter().filter(|part| chosen.is_empty() || chosen.contains(&part.name)) {
        (part.measure)(&mut bench).map_err(|error| format!("{}: {error}", part.name))?;
    }
    bench.report.finish();
    Ok(())
}

/// A measurement of a node and, if it was built, of one of the version before pfo-agent.
type OnNodes = fn(&pfo_tests::Node, Option<&Before>, Extent, &mut Report) -> Result<()>;

impl Bench {
    /// Every part has nodes of its own: nothing that one leaves behind is in the way of the next.
    fn on_nodes(&mut self, measure: OnNodes) -> Result<()> {
        let (node, before) = (node::start(), Before::start()?);
        if before.is_none() {
            self.report.note(
                "The version before pfo-agent is not measured: tests/bench/build-before builds it.",
            );
        }
        measure(&node, before.as_ref(), self.extent, &mut self.report)
    }
}

fn accuracy(bench: &mut Bench) -> Result<()> {
    accuracy::measure(bench.extent, &mut bench.report)?;
    p2p_accuracy::measure(bench.extent, &mut bench.report)?;
    tune_accuracy::measure(bench.extent, &mut bench.report)
}

fn conditions(bench: &mut Bench) -> Result<()> {
    conditions::measure(&bench.conditions, bench.extent, &mut bench.report)
}

fn fleet(bench: &mut Bench) -> Result<()> {
    fleet::measure(bench.nodes, bench.extent, &mut bench.report)
}

fn calls(bench: &mut Bench) -> Result<()> {
    call_cost::measure(bench.extent, &mut bench.report)?;
    bench.on_nodes(call_beside_readers::measure)
}

fn python_calls(bench: &mut Bench) -> Result<()> {
    python_call::measure(bench.extent, &mut bench.report)?;
    python_path::measure(bench.extent, &mut bench.report)?;
    python_apart::measure(bench.extent, &mut bench.report)
}

fn planning(bench: &mut Bench) -> Result<()> {
    planning::measure(bench.extent, &mut bench.report)?;
    growth::measure(bench.extent, &mut bench.report)?;
    deadlines::measure(bench.extent, &mut bench.report)?;
    scale::measure(bench.extent, &mut bench.report)?;
    what_ifs::measure(bench.extent, &mut bench.report)
}
