//! `pfoctl plan sweep`: runs plans one after another on a running job, and measures each of them.
//!
//! Windows of whole steps are enough. A dump in the format of Perseus' artifact takes instructions, too.

mod artifact;
mod contenders;
mod measured_frontier;

use clap::Args;
use pfo_protocol::{JobName, SamplePage, TrialLength, TrialResult, TrialRun};

use self::artifact::Dump;
use self::contenders::Contender;
use self::measured_frontier::{MeasuredFrontier, MeasuredPlan};
use crate::arguments::{JobArguments, number};
use crate::daemons::{Agent, Daemons};
use crate::error::Error;
use crate::fleet::is_measured_whole;
use crate::output::Output;
use crate::planning::plan_file::LabelledPlan;
use crate::planning::{directory, file};
use crate::text::harmless;
use crate::trial::{Held, Interrupt, Measuring, NoEnergy, TrialError, Window, require_every_stage};

/// Run plans one after another on a running job, and measure time and energy of each
///
/// Default clocks are measured first, for comparison. At the end, and after an interruption, the job
/// returns to default clocks, and pfoctl writes what was measured. In a fleet, all nodes of the job are
/// measured. Outside a fleet, every stage must have a rank on this node, and only ranks on this node are
/// measured.
#[derive(Args)]
pub(crate) struct Sweep {
    #[command(flatten)]
    job: JobArguments,

    /// A frontier, or a directory of pfo-plan/1 JSON as `plan sample` writes it
    #[arg(value_name = "FRONTIER|DIR")]
    plans: String,

    /// Number of plans of a frontier to run, evenly spread over it; all plans of a directory are
    /// run
    #[arg(long = "plans", value_name = "N", default_value = "30",
          value_parser = number::whole(1..=10_000))]
    count: u32,

    /// Steps to measure with each plan
    #[arg(long, value_name = "N", default_value = "15", value_parser = number::positive)]
    steps: u32,

    /// Steps to run with each plan before they are measured
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::positive)]
    settling_steps: u32,

    /// The measured frontier to write, CSV: plan, time (s), energy (J), their standard deviations
    /// over steps, number of steps, and predictions; `plan plot` draws it over a frontier
    #[arg(short, long, value_name = "MEASURED.csv")]
    output: String,

    /// Print JSON: default clocks and each plan, measured and predicted
    #[arg(long)]
    json: bool,
}

/// Run plans one after another on a running job, and write what they took as Perseus' artifact does
///
/// As `pfoctl plan sweep`, but each instruction is measured by itself. In a fleet, each node
/// delivers some 1,300 instructions of a trial at most, and pfoctl says how many are missing.
#[derive(Args)]
pub(crate) struct PerseusSweep {
    #[command(flatten)]
    sweep: Sweep,

    /// A directory to write in the format of Perseus' artifact, `N.prof.json` and `N.sched.json`,
    /// with default clocks as the first pair. A rank's energy of a step is its mean share of the energy
    /// of all ranks, and that of an instruction is the rise of the counter
    #[arg(long, value_name = "DIR")]
    perseus: String,
}

/// What was measured so far.
struct Measurements {
    frontier: MeasuredFrontier,
    windows: Vec<Dump>,
}

/// What a trial measured, with its instructions if they are to be written.
type Measured = (TrialResult, Vec<SamplePage>);

/// A trial without its instructions.
fn windows<D: Measuring>(
    held: &mut Held<D>,
    run: &TrialRun,
    length: TrialLength,
) -> Result<Measured, Error> {
    Ok((D::windows(&held.trial(run, length)?).clone(), Vec::new()))
}

/// Time and energy of the steps of a trial.
fn window_of(job: &JobName, trial: &TrialResult) -> Result<Window, TrialError> {
    Window::of(trial).map_err(|NoEnergy| TrialError::NoEnergy { job: job.clone() })
}

impl PerseusSweep {
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        self.sweep.run_to(Some(&self.perseus), daemons, output)
    }
}

impl Sweep {
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        self.run_to(None, daemons, output)
    }

    fn run_to(
        &self,
        perseus: Option<&str>,
        daemons: &Daemons,
        output: &mut Output,
    ) -> Result<(), Error> {
        let contenders = contenders::read(&self.plans, self.count as usize)?;
        let interrupt = Interrupt::prepare()?;
        if !is_measured_whole(daemons, &self.job) {
            require_every_stage(daemons, &self.job)?;
        }
        let what = "measuring default clocks";
        if perseus.is_some() {
            let held: Held<Agent> = Held::new(daemons, &self.job, interrupt, what)?;
            let trial = |held: &mut Held<Agent>, run: &TrialRun, length| {
                let (recorded, pages) = held.trial_with_samples(run, length)?;
                Ok((recorded.trial, pages))
            };
            return self.sweep(held, trial, (&contenders, perseus), output);
        }
        let held: Held<Agent> = Held::new(daemons, &self.job, interrupt, what)?;
        self.sweep(held, windows, (&contenders, None), output)
    }

    /// Measures, and writes whatever could be measured.
    fn sweep<'a, D: Measuring>(
        &self,
        mut held: Held<'a, D>,
        trial: impl Fn(&mut Held<'a, D>, &TrialRun, TrialLength) -> Result<Measured, Error>,
        (contenders, perseus): (&[Contender], Option<&str>),
        output: &mut Output,
    ) -> Result<(), Error> {
        let (baseline, pages) = trial(&mut held, &TrialRun::DefaultClocks, self.length())?;
        let mut measured = Measurements {
            frontier: MeasuredFrontier::new(&window_of(held.job(), &baseline)?),
            windows: vec![Dump::of(None, &baseline, &pages)],
        };
        let ended = self.measure(&mut held, trial, contenders, &mut measured);
        let ended = ended.and_then(|()| held.let_go());
        let Measurements { frontier, windows } = measured;
        if let Some(name) = perseus {
            directory::write(name, artifact::files(&windows))?;
        }
        if self.json {
            output.json(&frontier)?;
        } else {
            let look = output.look();
            output.text(&frontier.render(self.job.name(), look))?;
        }
        ended
    }

    fn measure<'a, D: Measuring>(
        &self,
        held: &mut Held<'a, D>,
        trial: impl Fn(&mut Held<'a, D>, &TrialRun, TrialLength) -> Result<Measured, Error>,
        contenders: &[Contender],
        measured: &mut Measurements,
    ) -> Result<(), Error> {
        let steps = u64::from(self.settling_steps + self.steps);
        for (done, contender) in contenders.iter().enumerate() {
            let left = (contenders.len() - done) as u64;
            held.progress().show(done as f64 / contenders.len() as f64);
            if let Some(takes) = held.takes(left * steps) {
                let (number, of) = (done + 1, contenders.len());
                held.progress().now(format!("measuring plan {number} of {of}, {takes} left"));
            }
            let run = LabelledPlan::new(contender.label.clone(), &contender.plan)?.trial();
            let (trial, pages) = trial(held, &run, self.length())?;
            let mismatched: u64 = trial.ranks.iter().map(|rank| rank.mismatched_steps).sum();
            if mismatched > 0 {
                let label = harmless(&contender.label);
                held.progress().tell(&format!(
                    "pfoctl: {label}: {mismatched} steps of ranks did not follow the plan"
                ));
            }
            let window = window_of(held.job(), &trial)?;
            measured.frontier.add(MeasuredPlan::new(contender, &window, trial.ranks.len()));
            measured.windows.push(Dump::of(Some(contender), &trial, &pages));
            // After each plan, so that even SIGKILL costs only the plan that runs.
            file::write(&self.output, measured.frontier.csv().as_bytes())?;
        }
        Ok(())
    }

    fn length(&self) -> TrialLength {
        TrialLength { settling_steps: self.settling_steps, steps: self.steps }
    }
}
