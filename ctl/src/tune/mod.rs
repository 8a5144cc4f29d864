//! `pfoctl tune`: has the agent find the plan for a running job, prove on the job that it keeps its
//! promise, and leave the job running it. The agent does all of that; this starts it, watches it, and
//! prints what came of it.

mod error;
mod leaving;
mod report;
mod started;
mod text;
mod watching;

use clap::Args;
use pfo_experiment::{Terms, TuneOrder};
use pfo_protocol::TuneStatus;

pub(crate) use self::error::TuneError;
use self::leaving::Leaving;
pub(crate) use self::report::{ResultArguments, section};
use self::started::begin;
use self::text::in_words;
pub(crate) use self::text::lines;
use self::watching::Watching;
use crate::arguments::{JobArguments, Slowdown, number};
use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::Output;
use crate::planning::file;
use crate::profile::ProfileArguments;

/// Find the plan that saves most energy on a running job, and prove it on the job
///
/// pfo-agent alternates between the plan and default clocks on the job, until it is certain whether the
/// plan saves energy and keeps the limit. If more turns are not expected to make that certain, pfo-agent
/// keeps a plan whose slowdown is most likely within the limit and whose saving is certain, and pfoctl
/// exits with 6. pfo-agent replaces a plan that makes the job slower than allowed by a faster one. If a
/// plan saves less than predicted, because changes of clocks cost more than is known, pfo-agent also tries
/// plans that change clocks less often, and keeps the one that saves most. If no plan saves energy, the
/// job stays at default clocks. Every GPU must have an energy counter. Every stage must have a rank on
/// this node, except in a fleet, where all nodes of the job are measured.
///
/// The tune continues without this command, and over restarts of pfo-agent and pfod. Ctrl-C asks whether
/// to stop the tune; without a terminal, SIGINT and SIGTERM stop it. A lost terminal leaves it running, and
/// --attach watches it again. `pfoctl status` shows the progress.
///
/// If no profile of the job is stored, the tune learns in a few steps what lower clocks do; none of these
/// steps is more than a tenth longer, unless --max-slowdown allows more. A `sweep_…` term sweeps the job
/// instead, which takes longer and stores the profile. So does a tune of a job on several nodes, on GPUs of
/// different models, or on GPUs that do not hold their highest clock. On a model of GPU that was not
/// calibrated on this node before, about 20 steps, which may be 1.4 times as long, show how late clocks take
/// effect.
///
/// The plan is for the order in which the job runs its instructions, which pfo-agent reads from one of
/// its steps, unless --order or a schedule is given. If power limits keep the GPUs below the clocks of the
/// profile, no plan requests a higher clock than the GPUs hold. The report says what that alone saves.
///
/// `pfoctl compare tune` takes each of the terms as an option of its own, and tries plans of other systems.
#[derive(Args)]
pub(crate) struct Tune {
    #[command(flatten)]
    job: JobArguments,

    /// How much longer a step may take than at default clocks
    #[arg(long, value_name = "PERCENT", default_value = "0.5%")]
    max_slowdown: Slowdown,

    /// Steps to measure in each turn; more if they take less than 2 s together, because the driver refreshes
    /// energy counters seldom
    #[arg(long, value_name = "N", default_value = "2", value_parser = number::positive)]
    steps: u32,

    /// Set no guard: nothing compares the plan with default clocks later on
    ///
    /// A guard compares them now and then, as `pfoctl plan guard` describes. If the plan no longer keeps the
    /// allowed slowdown, pfo-agent makes a faster one from the frontier of the tune, which it loads for
    /// this, or returns the job to default clocks.
    #[arg(long)]
    no_guard: bool,

    /// Set another term, such as rounds=8 or microbatches=12; may be given several times
    ///
    /// The terms and their defaults: `rounds=4` and `settling_steps=1` of each comparison; a round is
    /// two turns at default clocks and two of the plan;
    /// `sweep_steps=10`, `sweep_stride=30` (MHz) and `sweep_max_slowdown` (a share) of a sweep;
    /// `combine` and `noise`, as `plan optimize` takes them; `microbatches`, `schedule`, `chunks`,
    /// `memory_limits` and `fixed` of the pipeline; `transfer_s`, `switch_latency_s`, `set_call_s`,
    /// `held_up_s` and `p2p_power_w=[W,…]`, in seconds and watts, in place of what is measured.
    #[arg(long = "set", value_name = "TERM=VALUE", value_parser = assignment)]
    terms: Vec<(String, serde_json::Value)>,

    /// A file with the order in which the stages run instructions, as `pfoctl plan order` writes it
    #[arg(long, value_name = "ORDER.json")]
    order: Option<String>,

    /// Watch a tune of the job that began earlier
    #[arg(long, conflicts_with_all = ["detach", "stop"])]
    attach: bool,

    /// Begin the tune, and return without waiting for it
    #[arg(long, conflicts_with_all = ["stop", "output", "report"])]
    detach: bool,

    /// Stop the tune of the job, which returns to default clocks
    #[arg(long, conflicts_with_all = ["output", "report"])]
    stop: bool,

    #[command(flatten)]
    result: ResultArguments,

    #[command(flatten)]
    profile: ProfileArguments,
}

impl Tune {
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        if self.stop {
            let status = watching::stop(daemons, &self.job)?;
            return self.print(&status, output);
        }
        if self.detach {
            let status = begin(daemons, &self.job, &self.order_of_tune()?)?;
            return self.print(&status, output);
        }
        if self.attach {
            let leaving = Leaving::prepare()?;
            return Watching::new(daemons, &self.job, leaving).until_over(&self.result, output);
        }
        begin_and_watch(daemons, &self.job, &self.order_of_tune()?, (&self.result, output))
    }

    fn order_of_tune(&self) -> Result<TuneOrder, Error> {
        let mut terms = terms_of(&self.terms)?;
        terms.max_slowdown = self.max_slowdown.0;
        terms.steps = self.steps;
        terms.guard = !self.no_guard;
        let profile = self.profile.fill(&mut terms)?;
        let order = self.order.as_deref().map(file::read).transpose()?;
        Ok(TuneOrder { terms, profile, order })
    }

    fn print(&self, status: &TuneStatus, output: &mut Output) -> Result<(), Error> {
        match self.result.json() {
            true => output.json(status),
            false => output.text(&in_words(status)),
        }
    }
}

/// Has the agent begin a tune, and watches it until it is over.
pub(crate) fn begin_and_watch(
    daemons: &Daemons,
    job: &JobArguments,
    order: &TuneOrder,
    (result, output): (&ResultArguments, &mut Output),
) -> Result<(), Error> {
    let leaving = Leaving::prepare()?;
    begin(daemons, job, order)?;
    Watching::new(daemons, job, leaving).until_over(result, output)
}

/// A term and its value: JSON, or else a word.
fn assignment(text: &str) -> Result<(String, serde_json::Value), String> {
    let (term, value) = text.split_once('=').ok_or("give TERM=VALUE, such as rounds=8")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    Ok((term.trim().to_owned(), value))
}

/// The default terms with these in their place.
fn terms_of(assigned: &[(String, serde_json::Value)]) -> Result<Terms, TuneError> {
    let terms: serde_json::Map<_, _> = assigned.iter().cloned().collect();
    let json = serde_json::Value::Object(terms).to_string();
    Terms::from_json(json.as_bytes()).map_err(|why| TuneError::Terms { why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_set_to_a_number_or_a_word() {
        let set = ["rounds=8", "schedule=gpipe", "p2p_power_w=[90]", "noise=factor=5%"];
        let terms = terms_of(&set.map(|one| assignment(one).unwrap())).unwrap();
        assert_eq!((terms.rounds, terms.schedule), (8, Some(pfo_planner::Schedule::GPipe)));
        assert_eq!(terms.p2p_power_w, [90.0]);
        assert_eq!(terms.noise.to_string(), "factor=5%");
        let unknown = terms_of(&[assignment("round=8").unwrap()]).unwrap_err();
        assert!(unknown.to_string().contains("unknown field `round`"), "{unknown}");
        assert!(assignment("rounds").is_err());
    }
}
