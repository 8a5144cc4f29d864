//! `pfoctl plan sweep`: runs plans one after another on a running job, and measures what each of
//! them takes.

mod artifact;
mod contenders;
mod measured_frontier;

use clap::Args;
use pfo_protocol::{SamplePage, TrialLength, TrialResult, TrialRun};

use self::artifact::Dump;
use self::contenders::Contender;
use self::measured_frontier::{MeasuredFrontier, MeasuredPlan};
use super::{directory, file};
use crate::error::Error;
use crate::job::JobArguments;
use crate::output::Output;
use crate::socket::Sockets;
use crate::text::harmless;
use crate::trial::{Held, Interrupt, Window, require_every_stage};

/// Run plans one after another on a running job, and measure time and energy of each
///
/// Default clocks are measured first, to compare with. The job is at default clocks again at the end
/// and whenever this is interrupted, and what was measured until then is kept. Every stage has to have a
/// rank on this node; what ranks of other pipelines use elsewhere is not measured.
#[derive(Args)]
pub(crate) struct Sweep {
    #[command(flatten)]
    job: JobArguments,

    /// A frontier, or a directory of pfo-plan/1 JSON as `plan sample` writes it
    #[arg(value_name = "FRONTIER|DIR")]
    plans: String,

    /// How many plans of a frontier to run, evenly spread over it; of a directory all are run
    #[arg(long = "plans", value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,

    /// Steps to measure of each
    #[arg(long, value_name = "N", default_value_t = 15,
          value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,

    /// Steps to run before these
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    settling_steps: u32,

    /// The measured frontier to write, CSV: plan, time (s), energy (J), their standard deviations
    /// over steps, how many steps, and what was predicted; `plan plot` draws it over a frontier
    #[arg(short, long, value_name = "MEASURED.csv")]
    output: String,

    /// A directory to make for what Perseus' artifact would have written, `N.prof.json` and
    /// `N.sched.json`, the first pair at default clocks. Of each step's energy a rank has its mean
    /// share, and each instruction what the counter moved by meanwhile
    #[arg(long, value_name = "DIR")]
    perseus: Option<String>,

    /// Print JSON: default clocks and each plan, measured and predicted
    #[arg(long)]
    json: bool,
}

impl Sweep {
    /// Measures, and writes whatever could be measured.
    pub(crate) fn run(&self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let contenders = contenders::read(&self.plans, self.count as usize)?;
        let interrupt = Interrupt::prepare()?;
        require_every_stage(sockets, &self.job)?;
        let mut held = Held::new(sockets, &self.job, interrupt, "measuring default clocks")?;
        let (baseline, pages) = self.trial(&mut held, &TrialRun::DefaultClocks)?;
        let mut measured = MeasuredFrontier::new(&Window::of(held.job(), &baseline)?);
        let mut windows = vec![Dump::of(None, &baseline, &pages)];
        let ended = self.measure(&mut held, &contenders, &mut measured, &mut windows);
        let ended = ended.and_then(|()| held.let_go());
        if let Some(name) = &self.perseus {
            directory::write(name, artifact::files(&windows))?;
        }
        if self.json {
            output.json(&measured)?;
        } else {
            let look = output.look();
            output.text(&measured.render(self.job.name(), look))?;
        }
        ended
    }

    fn measure(
        &self,
        held: &mut Held,
        contenders: &[Contender],
        measured: &mut MeasuredFrontier,
        windows: &mut Vec<Dump>,
    ) -> Result<(), Error> {
        let steps = u64::from(self.settling_steps + self.steps);
        for (done, contender) in contenders.iter().enumerate() {
            let left = (contenders.len() - done) as u64;
            held.progress().show(done as f64 / contenders.len() as f64);
            if let Some(takes) = held.takes(left * steps) {
                let (number, of) = (done + 1, contenders.len());
                held.progress().now(format!("measuring plan {number} of {of}, {takes} left"));
            }
            let run = TrialRun::Plan {
                label: contender.label.clone(),
                plan: contender.json.clone().into_bytes(),
            };
            let (trial, pages) = self.trial(held, &run)?;
            let mismatched: u64 = trial.ranks.iter().map(|rank| rank.mismatched_steps).sum();
            if mismatched > 0 {
                let label = harmless(&contender.label);
                held.progress().tell(&format!(
                    "pfoctl: {label}: {mismatched} steps of ranks did not follow the plan"
                ));
            }
            let window = Window::of(held.job(), &trial)?;
            measured.add(MeasuredPlan::new(contender, &window, trial.ranks.len()));
            windows.push(Dump::of(Some(contender), &trial, &pages));
            // After each plan: not even SIGKILL costs more than the one that runs.
            file::write(&self.output, measured.csv().as_bytes())?;
        }
        Ok(())
    }

    /// With each instruction by itself only where it is written.
    fn trial(
        &self,
        held: &mut Held,
        run: &TrialRun,
    ) -> Result<(TrialResult, Vec<SamplePage>), Error> {
        let length = TrialLength { settling_steps: self.settling_steps, steps: self.steps };
        match self.perseus {
            Some(_) => held.trial_with_samples(run, length),
            None => Ok((held.trial(run, length)?, Vec::new())),
        }
    }
}
