//! `pfoctl plan import`: converts plans of lowtime, Perseus and Zeus.

use std::fs;
use std::path::Path;

use clap::Args;
use pfo_planner::{
    Combine, Frontier, KareusPayloads, LowtimePlan, Noise, PerStage, Pipeline, Plan, PlanError,
    Watts, replay,
};

use crate::arguments::number;
use crate::error::Error;
use crate::failure::Failure;
use crate::output::Output;
use crate::planning::file;
use crate::planning::frontier_file::summary;
use crate::planning::measured::Measured;
use crate::planning::pipeline::PipelineArguments;
use crate::progress::Progress;
use crate::text::harmless;

/// Convert plan files of lowtime, Perseus or Zeus into a frontier, or one of them into a plan
///
/// Every plan is replayed over the profile; predictions in the files are ignored.
#[derive(Args)]
pub(crate) struct Import {
    /// A directory of `freqs_pipeline_*.py`, for a frontier, or one such file, for a plan; - reads
    /// one from standard input
    #[arg(value_name = "DIR|FILE.py")]
    plans: String,

    /// The payloads of Kareus for the clocks of one file: `scheds_pipeline_*.py` with the same number
    #[arg(long, value_name = "FILE.py")]
    payloads: Option<String>,

    /// The profile that the plans were made from
    #[arg(long, value_name = "PROFILE.csv")]
    profile: String,

    /// How to combine rows of several ranks of a stage, as for `plan optimize`
    #[arg(long, value_name = "HOW", default_value_t = Combine::Mean)]
    combine: Combine,

    #[command(flatten)]
    pipeline: PipelineArguments,

    /// P2P-blocking power: what a GPU draws while it only waits for its neighbour stage, or one for
    /// each stage; required for a frontier
    #[arg(
        long,
        value_name = "WATTS,…",
        allow_negative_numbers = true,
        value_parser = number::watts_of_stages
    )]
    p2p_power: Option<PerStage<Watts>>,

    /// GPU model of the profile, to be written into plans
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,

    /// The file to write: a frontier from a directory, pfo-plan/1 JSON from a file
    #[arg(short, long, value_name = "FRONTIER|PLAN.json")]
    output: String,
}

impl Import {
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let Measured { profile, .. } = Measured::read(&self.profile, self.combine, Noise::Off)?;
        let pipeline = self.pipeline.of(&profile)?;
        if Path::new(&self.plans).is_dir() {
            self.directory(&pipeline, output)
        } else {
            self.file(&pipeline, output)
        }
    }

    fn file(self, pipeline: &Pipeline, output: &mut Output) -> Result<(), Error> {
        let mut plan = read(&self.plans, pipeline)?;
        if let Some(name) = &self.payloads {
            let payloads = KareusPayloads::from_bytes(&file::read(name)?);
            let with_them = payloads.and_then(|payloads| plan.with_payloads(&payloads));
            plan = with_them.map_err(Failure::bad_file(name))?;
        }
        plan.gpu = self.gpu;
        if let Some(p2p_power) = self.p2p_power {
            let replayed = replay(pipeline.profile(), &plan, &p2p_power)
                .map_err(Failure::bad_file(&self.plans))?;
            plan.p2p_blocking_power_w = Some(p2p_power);
            plan.predicted = Some(replayed.into());
        }
        let json = plan.to_json()?;
        if self.output == "-" {
            return output.text(&json);
        }
        Ok(file::write(&self.output, json.as_bytes())?)
    }

    fn directory(self, pipeline: &Pipeline, output: &mut Output) -> Result<(), Error> {
        if let Some(value) = self.payloads {
            let (name, expected) =
                ("--payloads", "given with one plan file; a directory has no single one");
            return Err(PlanError::BadArgument { name, value, expected }.into());
        }
        let p2p_power =
            self.p2p_power.ok_or_else(|| Failure::NoPower { name: self.plans.clone() })?;
        let names = plan_files(&self.plans)?;
        let progress = Progress::new("importing");
        let mut plans = Vec::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            plans.push(read(name, pipeline)?);
            progress.show(index as f64 / names.len() as f64);
        }
        let frontier = Frontier::of_plans(pipeline, p2p_power, self.gpu, plans)?;
        file::write(&self.output, &frontier.to_bytes()?)?;
        drop(progress);
        let kept = frontier.plans().len();
        let summary = summary(&self.output, &frontier);
        let dropped = match names.len() - kept {
            0 => String::new(),
            dropped => format!("; {dropped} of {} plans are dominated by others", names.len()),
        };
        output.text(&format!("{}\n", harmless(&format!("{summary}{dropped}"))))
    }
}

/// The plan files of a directory, sorted by name.
fn plan_files(directory: &str) -> Result<Vec<String>, Failure> {
    let failed = |source| Failure::Read { name: directory.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_plan = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("freqs_pipeline_") && name.ends_with(".py"));
        if is_plan {
            names.push(path.to_string_lossy().into_owned());
        }
    }
    if names.is_empty() {
        return Err(Failure::NoPlans { directory: directory.to_owned() });
    }
    names.sort();
    Ok(names)
}

fn read(name: &str, pipeline: &Pipeline) -> Result<Plan, Failure> {
    let bytes = file::read(name)?;
    LowtimePlan::from_bytes(&bytes)
        .and_then(|plan| plan.plan(pipeline))
        .map_err(Failure::bad_file(name))
}
