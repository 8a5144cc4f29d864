//! `pfoctl plan import`: plans of lowtime, Perseus and Zeus, made into ours.

use std::fs;
use std::path::Path;

use clap::Args;
use pfo_planner::{
    Combine, Frontier, LowtimePlan, Noise, Pipeline, Plan, PlanError, Watts, replay,
};

use super::measured::Measured;
use super::optimize::summary;
use super::pipeline::PipelineArguments;
use super::{Failure, file};
use crate::error::Error;
use crate::output::Output;
use crate::progress::Progress;
use crate::text::harmless;

/// Make plan files of lowtime, Perseus or Zeus into a frontier, or one of them into a plan
///
/// What they claim is not believed: every plan is replayed over the profile.
#[derive(Args)]
pub(crate) struct Import {
    /// A directory of `freqs_pipeline_*.py`, which makes a frontier, or one such file, which makes
    /// a plan; - reads one from standard input
    #[arg(value_name = "DIR|FILE.py")]
    plans: String,

    /// The profile that they were made from: time and energy of each instruction
    #[arg(long, value_name = "PROFILE.csv")]
    profile: String,

    /// How rows of several ranks of a stage are combined, as for `plan optimize`
    #[arg(long, value_name = "HOW", default_value_t = Combine::Mean)]
    combine: Combine,

    #[command(flatten)]
    pipeline: PipelineArguments,

    /// What a GPU draws while it only waits for its neighbour stage, in watts; a frontier needs it
    #[arg(long, value_name = "WATTS", allow_negative_numbers = true)]
    p2p_power: Option<f64>,

    /// The GPU model that was profiled, to be written into plans
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,

    /// The file to write: a frontier from a directory, pfo-plan/1 JSON from a file
    #[arg(short, long, value_name = "FRONTIER|PLAN.json")]
    output: String,
}

impl Import {
    pub(super) fn run(self, output: &mut Output) -> Result<(), Error> {
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
        plan.gpu = self.gpu;
        if let Some(p2p_power) = self.p2p_power.map(Watts) {
            let replayed =
                replay(pipeline.profile(), &plan, p2p_power).map_err(bad(&self.plans))?;
            plan.p2p_blocking_power_w = Some(p2p_power);
            plan.predicted = Some(replayed.into());
        }
        let json = plan.to_json().map_err(Failure::BadRequest)?;
        if self.output == "-" {
            return output.text(&json);
        }
        Ok(file::write(&self.output, json.as_bytes())?)
    }

    fn directory(self, pipeline: &Pipeline, output: &mut Output) -> Result<(), Error> {
        let p2p_power =
            self.p2p_power.ok_or_else(|| Failure::NoPower { name: self.plans.clone() })?;
        let names = plan_files(&self.plans)?;
        let progress = Progress::new("importing");
        let mut plans = Vec::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            plans.push(read(name, pipeline)?);
            progress.show(index as f64 / names.len() as f64);
        }
        let frontier = Frontier::of_plans(pipeline, Watts(p2p_power), self.gpu, plans)
            .map_err(Failure::BadRequest)?;
        file::write(&self.output, &frontier.to_bytes().map_err(Failure::BadRequest)?)?;
        drop(progress);
        let kept = frontier.plans().len();
        let summary = summary(&self.output, &frontier);
        let dropped = match names.len() - kept {
            0 => String::new(),
            dropped => format!("; {dropped} of {} read are slower and no cheaper", names.len()),
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
    LowtimePlan::from_bytes(&bytes).and_then(|plan| plan.plan(pipeline)).map_err(bad(name))
}

fn bad(name: &str) -> impl Fn(PlanError) -> Failure {
    let name = file::shown(name).to_owned();
    move |source| Failure::BadFile { name: name.clone(), source }
}
