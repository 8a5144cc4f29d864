//! `pfoctl observe`: what a job does, and what clocks would save, without root and without setting any.

mod command;
pub(crate) mod error;
mod node;
mod prospect;
mod seen;
mod view;
mod watch;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use clap::Args;
use pfo_planner::Prospect;
use serde::Serialize;

use self::command::Signals;
use self::error::ObserveError;
use self::node::OwnNode;
use self::prospect::prospects;
use self::seen::{GpuSeen, Seen};
use self::watch::Watch;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::planning::file;
use crate::text::harmless;

/// Run a training, show what it does, predict what clocks would save, and set nothing
///
/// Starts a pfod that only observes, and a pfo-agent, in a temporary folder for as long as the command
/// runs. That requires no root, no installation and no running pfod on the node. pfoctl passes signals on
/// to the command, exits with its exit code, and writes the report to standard error. The report says
/// which figures are measured and which are predicted.
#[derive(Args)]
pub(crate) struct Observe {
    /// Also write a page for a browser
    #[arg(long, value_name = "REPORT.html")]
    report: Option<String>,

    /// Print JSON to standard output, after the output of the command, instead of the report
    #[arg(long)]
    json: bool,

    /// The NVML library [default: libnvidia-ml.so.1]
    #[arg(long, value_name = "LIBRARY")]
    nvml: Option<PathBuf>,

    /// The directory of the GPUs' device files [default: /dev]
    #[arg(long, env = "PFO_DEVICES", value_name = "DIRECTORY", hide_env = true)]
    devices: Option<PathBuf>,

    /// The training
    #[arg(value_name = "COMMAND")]
    command: OsString,

    /// Its arguments
    #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Observe {
    /// Runs the command; does not return if that ends with another code than 0.
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        // The training may last for days: what hinders the page is said before it.
        self.report.as_deref().map_or(Ok(()), file::check)?;
        let signals = Signals::hold_back()?;
        let node = OwnNode::start(self.nvml.as_deref(), self.devices.clone(), &signals)?;
        let words = (&*self.command, &*self.arguments);
        let mut child = command::start(words, node.environment(), &signals)?;
        let has_ended = signals.pass_to(&child);
        let watch = Watch::begin(node.daemons());
        let ended = child.wait();
        has_ended.store(true, Relaxed);
        let seen = watch.end();
        drop(node);
        let name = PathBuf::from(&self.command);
        let ended = ended.map_err(|source| ObserveError::Wait { name, source })?;
        let said = self.say(&seen, output);
        match command::code(ended) {
            0 => said,
            code => {
                said.unwrap_or_else(|error| crate::report(&error));
                std::process::exit(code)
            }
        }
    }

    fn say(&self, seen: &Seen, output: &mut Output) -> Result<(), Error> {
        let prospects = prospects(seen);
        if self.json {
            output.json(&Printed::new(seen, &prospects))?;
        } else {
            // Standard output is the command's; the report must not mix with it.
            let text = view::text(seen, &prospects, Look { colour: false, ..output.look() });
            let shown: String =
                text.lines().map(|line| harmless(line).into_owned() + "\n").collect();
            let _ = std::io::stderr().write_all(shown.as_bytes());
        }
        if let Some(name) = &self.report {
            let words = std::iter::once(&self.command).chain(&self.arguments);
            let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
            let page = view::page(seen, &prospects, &words.join(" "));
            file::write(name, page.as_bytes())?;
        }
        Ok(())
    }
}

/// The same as JSON.
#[derive(Serialize)]
struct Printed<'a> {
    format: &'static str,
    steps: u64,
    step_time_s: Option<f64>,
    step_energy_j: Option<f64>,
    /// What a step's energy goes into.
    work_j: Option<f64>,
    waiting_j: Option<f64>,
    rest_j: Option<f64>,
    instructions: Vec<Instruction>,
    /// Seconds of a step, and watts meanwhile.
    waits: Vec<Wait>,
    gpus: &'a BTreeMap<u32, GpuSeen>,
    predicted: Vec<Predicted>,
    not_predicted: Option<&'a str>,
}

#[derive(Serialize)]
struct Instruction {
    stage: u16,
    instruction: String,
    per_step: f64,
    time_s: f64,
    energy_j: Option<f64>,
    /// Its standard error.
    energy_error_j: Option<f64>,
    /// The share of its time in which its clock was kept down.
    throttled: Option<f64>,
}

#[derive(Serialize)]
struct Wait {
    stage: u16,
    time_s: Option<f64>,
    power_w: Option<f64>,
}

/// Shares of a step's energy that clocks would save.
#[derive(Serialize)]
struct Predicted {
    slowdown: f64,
    least: f64,
    likely: Option<f64>,
    most: f64,
}

impl<'a> Printed<'a> {
    fn new(seen: &'a Seen, prospects: &'a Result<Vec<Prospect>, String>) -> Self {
        let split = seen.split();
        let part = |place: usize| split.map(|split| split[place]);
        let instruction = |(&(stage, instruction), work): (
            &(pfo_planner::Stage, pfo_planner::Instruction),
            &seen::Work,
        )| Instruction {
            stage: stage.0,
            instruction: instruction.to_string(),
            per_step: seen.per_step(stage, work),
            time_s: work.time_s(),
            energy_j: work.energy_j().map(|(energy_j, _)| energy_j),
            energy_error_j: work.energy_j().map(|(_, error_j)| error_j),
            throttled: work.throttled(),
        };
        let predicted = |&Prospect { slowdown, least, likely, most }: &Prospect| Predicted {
            slowdown,
            least,
            likely,
            most,
        };
        Self {
            format: "pfo-observed/1",
            steps: seen.steps.count,
            step_time_s: seen.steps.time_s(),
            step_energy_j: seen.steps.energy_j(),
            work_j: part(0),
            waiting_j: part(1),
            rest_j: part(2),
            instructions: seen.work.iter().map(instruction).collect(),
            waits: seen
                .waits
                .iter()
                .map(|(stage, waits)| Wait {
                    stage: stage.0,
                    time_s: seen.waits_s(*stage),
                    power_w: waits.power_w(),
                })
                .collect(),
            gpus: &seen.gpus,
            predicted: prospects.iter().flatten().map(predicted).collect(),
            not_predicted: prospects.as_ref().err().map(String::as_str),
        }
    }
}
