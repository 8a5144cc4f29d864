//! `pfoctl profile samples`: measures a running job, and writes each of its instructions by itself.

use clap::Args;
use pfo_protocol::{Mhz, RecordedTrial, SamplePage, TrialLength, TrialRun};

use super::sample_rows::{COLUMNS, SampleRow, csv, rows, summary};
use crate::arguments::{JobArguments, number};
use crate::daemons::{Agent, Daemons};
use crate::error::Error;
use crate::output::Output;
use crate::planning::file;
use crate::planning::plan_file::LabelArguments;
use crate::trial::{Held, Interrupt};

/// Measure a running job, and write time and energy of each of its instructions
///
/// The job is measured at default clocks, at given clocks one after the other, or with a plan. At the
/// end, and after an interruption, the job returns to default clocks, and pfoctl writes what was measured.
#[derive(Args)]
#[command(after_long_help = COLUMNS)]
pub(crate) struct Samples {
    #[command(flatten)]
    job: JobArguments,

    /// Steps to measure at each clock
    #[arg(long, value_name = "N", default_value = "10", value_parser = number::whole(1..=50_000))]
    steps: u32,

    /// Steps to run before they are measured
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::positive)]
    settling_steps: u32,

    /// Clocks for every instruction, such as 1410,1200,990
    #[arg(long, value_name = "MHZ", value_delimiter = ',', conflicts_with = "plan",
          value_parser = number::mhz)]
    mhz: Vec<Mhz>,

    /// Plan to run, pfo-plan/1 JSON as `pfoctl plan export` writes it
    #[arg(long, value_name = "PLAN.json")]
    plan: Option<String>,

    #[command(flatten)]
    label: LabelArguments,

    /// The CSV to write; - is standard output. With --mhz or --plan, `pfoctl plan optimize` takes it as a
    /// profile; rows at default clocks have no frequency
    #[arg(short, long, value_name = "SAMPLES.csv", default_value = "-")]
    output: String,

    /// Print JSON: an array with an object for each row, by the names of the columns
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl Samples {
    /// Measures, and writes whatever could be measured.
    pub(super) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let runs = self.runs()?;
        let mut held =
            Held::new(daemons, &self.job, Interrupt::prepare()?, "measuring instructions")?;
        let mut measured = Vec::new();
        let ended = self.measure(&mut held, &runs, &mut measured);
        let ended = ended.and_then(|()| held.let_go());
        // A file of an earlier measurement is worth more than one of none.
        if measured.is_empty() && ended.is_err() {
            return ended;
        }
        let job = self.job.name();
        let rows: Vec<SampleRow> =
            measured.iter().flat_map(|(trial, pages)| rows(job, trial, pages)).collect();
        if self.json {
            output.json(&rows)?;
        } else if self.output == "-" {
            output.text(&csv(&rows)?)?;
        } else {
            file::write(&self.output, csv(&rows)?.as_bytes())?;
            output.text(&summary(&rows))?;
        }
        ended
    }

    fn runs(&self) -> Result<Vec<TrialRun>, Error> {
        if let Some(name) = &self.plan {
            return Ok(vec![self.label.read(name)?.trial()]);
        }
        if self.mhz.is_empty() {
            return Ok(vec![TrialRun::DefaultClocks]);
        }
        Ok(self.mhz.iter().map(|mhz| TrialRun::Uniform(*mhz)).collect())
    }

    fn measure(
        &self,
        held: &mut Held<Agent>,
        runs: &[TrialRun],
        measured: &mut Vec<(RecordedTrial, Vec<SamplePage>)>,
    ) -> Result<(), Error> {
        let length = TrialLength { settling_steps: self.settling_steps, steps: self.steps };
        for (done, run) in runs.iter().enumerate() {
            held.progress().show(done as f64 / runs.len() as f64);
            let steps = (runs.len() - done) as u64 * u64::from(self.settling_steps + self.steps);
            if let Some(takes) = held.takes(steps) {
                held.progress().now(format!("measuring instructions, {takes} left"));
            }
            measured.push(held.trial_with_samples(run, length)?);
        }
        Ok(())
    }
}
