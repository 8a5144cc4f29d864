//! What pfo costs, next to what the machine itself costs, measured in one run.
//!
//! Absolute figures are this machine's and this minute's. What counts are the ratios between columns:
//! whatever is compared takes turns in short blocks, so that the machine's noise hits both alike.

mod abuse;
mod abuser;
mod accuracy;
mod bare_socket;
mod bench_profile;
mod call_cost;
mod event_path;
mod excess;
mod footprint;
mod growth;
mod lowtime;
mod lowtime_run;
mod node;
mod our_run;
mod p2p_accuracy;
mod placement;
mod planning;
mod proc_status;
mod python;
mod python_call;
mod python_path;
mod recording;
mod report;
mod samples;
mod stand_in;
mod tune_accuracy;

use std::error::Error;
use std::process::ExitCode;

use crate::report::Report;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PARTS: [&str; 9] = [
    "footprint",
    "event-path",
    "recording",
    "accuracy",
    "abuse",
    "call",
    "python",
    "planning",
    "lowtime",
];

fn usage() -> String {
    format!(
        "usage: pfo-bench [--json] [{}]…
PFO_BENCH_MICROBATCHES (12) and PFO_BENCH_FILTERS (raw,effective) say how lowtime is run,
PFO_DATA_DIR where measured profiles are",
        PARTS.join("|")
    )
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some(bare_socket::RECEIVER) => bare_socket::receive(),
        Some(abuser::ABUSER) => abuser::run(&arguments[1..]),
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
    let mut report = Report::default();
    let mut chosen = Vec::new();
    for argument in arguments {
        match argument.as_str() {
            "--json" => report.as_json(),
            part if PARTS.contains(&part) => chosen.push(part),
            _ => return Err(usage().into()),
        }
    }
    let wanted = |part| chosen.is_empty() || chosen.contains(&part);
    if wanted("footprint") || wanted("event-path") || wanted("recording") {
        let node = node::start();
        if wanted("footprint") {
            footprint::measure(&node, &mut report)?;
        }
        if wanted("event-path") {
            event_path::measure(&node, &mut report)?;
        }
        if wanted("recording") {
            recording::measure(&node, &mut report)?;
        }
    }
    if wanted("accuracy") {
        accuracy::measure(&mut report)?;
        p2p_accuracy::measure(&mut report)?;
        tune_accuracy::measure(&mut report)?;
    }
    if wanted("abuse") {
        abuse::measure(&node::start(), &mut report)?;
    }
    if wanted("call") {
        call_cost::measure(&mut report)?;
    }
    if wanted("python") {
        python_call::measure(&mut report)?;
        python_path::measure(&mut report)?;
    }
    if wanted("planning") {
        planning::measure(&mut report)?;
        growth::measure(&mut report)?;
    }
    if wanted("lowtime") {
        lowtime::measure(&mut report)?;
    }
    report.finish();
    Ok(())
}
