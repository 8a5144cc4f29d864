//! `pfoctl status`: asks both daemons for their status, keeps what was selected, and prints it.
//!
//! From a status to text everything is pure: one file for each table, none of which asks a daemon,
//! the clock or the terminal anything.

pub(crate) mod attention;
pub(crate) mod daemon;
mod driver_table;
pub(crate) mod gpu_table;
pub(crate) mod job_table;
pub(crate) mod measured;
pub(crate) mod measured_table;
mod node_table;
pub(crate) mod plan_text;
pub(crate) mod quantity;
pub(crate) mod rank_table;
pub(crate) mod table;
pub(crate) mod uuid;
mod whole_life;

use std::time::Duration;

use clap::Args;
use pfo_protocol::{
    AgentRequest, AgentResponse, AgentStatus, JobName, JobSelector, JobStatus, SavingsRow, Status,
    TuneStatus, Uid, WatchedJob,
};
use serde::Serialize;

use crate::arguments::NoSuchJob;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::{savings, tune, user};

/// The columns whose headers do not explain them. A column without any entry is left out.
pub(crate) const COLUMNS: &str = "\
Columns:
  Asked        SM clock that pfo locked
  Observed     SM clock that the driver reports
  Memory       memory clock that pfo locked
  Reads/s, Changes/s
               driver calls that read the GPU or set its clock, over the last seconds
  Time reading, Time changing
               share of the time that these calls took
  Pred. time, Pred. energy
               what the plan predicts for a step
  Slowdown, Saving
               time and energy of a step, compared with default clocks measured next to the plan; ± is
               the 95 % interval, if there is more than one comparison
  Mismatches   steps in which the instructions of a rank did not follow its plan
  Lost events  events that a rank could not deliver
  Skipped      clock changes that were left out because of the limit per second
  Off plan     share of the time in instructions that ran at another clock than planned
  Late         instructions that began before their clock was in force, because the wait before
               them, which had a clock of its own, ended sooner than predicted
  Set call     mean duration of a driver call that sets a clock
  Longest      duration of the longest of these calls";

/// Show both daemons, the GPUs and jobs, and what was measured under each plan
///
/// If pfo-agent does not answer, its part is missing.
#[derive(Args)]
#[command(after_long_help = COLUMNS)]
pub(crate) struct StatusCommand {
    /// Only jobs of this name, and their GPUs
    job: Option<JobName>,

    /// The same, for scripts
    #[arg(long = "job", value_name = "JOB", hide = true, conflicts_with = "job")]
    named: Option<JobName>,

    /// Repeat at this interval; with --json one object on each line
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    watch: Option<Duration>,

    /// Print JSON: every figure as pfod gave it and, under "agent", as pfo-agent did
    #[arg(long)]
    json: bool,
}

/// The status of both daemons.
pub(crate) struct Both {
    pub(crate) pfod: Status,
    pub(crate) agent: Result<AgentStatus, Error>,
    /// What the agent tunes.
    pub(crate) tunes: Vec<TuneStatus>,
}

/// The same as JSON.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    pfod: &'a Status,
    agent: Option<&'a AgentStatus>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tunes: &'a [TuneStatus],
}

impl StatusCommand {
    /// Prints the status once, or until it is interrupted.
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let both = self.ask(daemons)?;
        let Some(interval) = self.watch else {
            if self.json {
                return output.json(&both.printed());
            }
            let look = output.look();
            return output.text(&both.render(&ledger(&both, daemons), &user::name_of, look));
        };
        let mut both = Ok(both);
        loop {
            match both {
                Ok(both) if self.json => output.json_line(&both.printed())?,
                Ok(both) => {
                    let (ledger, look) = (ledger(&both, daemons), output.look());
                    output.refresh(&both.render(&ledger, &user::name_of, look))?;
                }
                // A watch shows the daemon again after a restart.
                Err(error) => output.trouble(&error)?,
            }
            std::thread::sleep(interval);
            both = self.ask(daemons);
        }
    }

    fn ask(&self, daemons: &Daemons) -> Result<Both, Error> {
        let mut both = Both::ask(daemons)?;
        if let Some(job) = self.job.as_ref().or(self.named.as_ref()) {
            both.keep_only(job, None);
            if both.pfod.jobs.is_empty() {
                return Err(NoSuchJob::None(job.to_string()).into());
            }
        }
        Ok(both)
    }
}

/// What plans that run now have saved. An agent that does not answer costs only what it knows.
fn ledger(both: &Both, daemons: &Daemons) -> Vec<SavingsRow> {
    let runs_a_plan = |job: &&JobStatus| job.plan.is_some() && !job.ranks.is_empty();
    let mut jobs = both.pfod.jobs.iter().filter(runs_a_plan).peekable();
    if both.agent.is_err() || jobs.peek().is_none() {
        return Vec::new();
    }
    let Ok(mut agent) = daemons.agent() else { return Vec::new() };
    // Job by job, as a ledger has far more of jobs that have ended.
    let of_job = |job: &JobStatus| {
        let selector = JobSelector { job: job.job.clone(), uid: Some(job.uid) };
        savings::by_plan(&mut agent, selector).ok()
    };
    jobs.map_while(of_job).flat_map(|report| report.rows).collect()
}

/// Jobs of Slurm have numbers for names, and come in the order of these.
fn in_order(name: &JobName) -> (Option<u64>, String) {
    (name.as_str().parse().ok(), name.to_string())
}

/// What the agent tunes; nothing if it does not say.
fn tunes(daemons: &Daemons) -> Vec<TuneStatus> {
    let asked = daemons.agent().and_then(|mut agent| agent.ask(AgentRequest::Tunes));
    match asked {
        Ok(AgentResponse::Tunes(tunes)) => tunes,
        _ => Vec::new(),
    }
}

/// An interval as `--watch` takes it.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.1..=86_400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give 0.1 to 86400 seconds".to_owned())
}

impl Both {
    /// An agent that does not answer costs only what it knows.
    pub(crate) fn ask(daemons: &Daemons) -> Result<Self, Error> {
        let mut pfod = daemons.pfod()?.status()?;
        pfod.jobs.sort_by_key(|job| (job.uid, in_order(&job.job)));
        let agent = daemons.agent().and_then(|mut agent| agent.status()).map_err(Error::from);
        let tunes = if agent.is_ok() { tunes(daemons) } else { Vec::new() };
        Ok(Self { pfod, agent, tunes })
    }

    fn printed(&self) -> Printed<'_> {
        Printed { pfod: &self.pfod, agent: self.agent.as_ref().ok(), tunes: &self.tunes }
    }

    /// Drops other jobs, those of other users too if it is one user's, and other GPUs.
    pub(crate) fn keep_only(&mut self, name: &JobName, owner: Option<Uid>) {
        let is_it = |job: &JobName, uid: Uid| job == name && owner.is_none_or(|owner| owner == uid);
        self.pfod.jobs.retain(|job| is_it(&job.job, job.uid));
        self.pfod
            .gpus
            .retain(|gpu| gpu.holder.as_ref().is_some_and(|holder| is_it(&holder.job, holder.uid)));
        self.tunes.retain(|tune| is_it(&tune.job, tune.uid));
        if let Ok(agent) = &mut self.agent {
            agent.jobs.retain(|job| is_it(&job.job, job.uid));
        }
    }

    /// The status as people read it: what needs attention first, then machine before job before
    /// rank.
    fn render(&self, ledger: &[SavingsRow], user: &dyn Fn(Uid) -> String, look: Look) -> String {
        let Self { pfod, agent, tunes } = self;
        let mut first = daemon::pfod_line(&pfod.daemon);
        first.extend(agent.as_ref().ok().map(daemon::agent_line));
        let mut parts = vec![first];
        parts.extend(attention::list(pfod, agent, user, look));
        parts.push(gpu_table::render(&pfod.gpus, user, look));
        parts.extend(driver_table::render(&pfod.gpus, look));
        let watched = agent.as_ref().map_or(&[][..], |agent| &agent.jobs);
        parts.push(job_table::render(&pfod.jobs, watched, user, look));
        parts.extend(tune::lines(tunes, user));
        for job in &pfod.jobs {
            let own = |other: &&WatchedJob| (&other.job, other.uid) == (&job.job, job.uid);
            let fleet = watched.iter().find(own).and_then(|watched| watched.fleet.as_ref());
            parts.extend(node_table::render(job, fleet, user, look));
            parts.extend(measured_table::render(job, user, look));
            parts.extend(whole_life::render(job, ledger));
            parts.extend(rank_table::render(job, &pfod.gpus, user, look));
        }
        parts.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{GpuStatus, Mhz};

    use super::*;

    fn status() -> Status {
        serde_json::from_str(include_str!("../../tests/golden/status.json")).unwrap()
    }

    fn agent() -> AgentStatus {
        serde_json::from_str(include_str!("../../tests/golden/agent.json")).unwrap()
    }

    fn render(pfod: &Status, look: Look) -> String {
        Both { pfod: pfod.clone(), agent: Ok(agent()), tunes: Vec::new() }.render(&[], &user, look)
    }

    fn user(uid: Uid) -> String {
        match uid {
            Uid(4_000_000_001) => "alice".to_owned(),
            other => other.to_string(),
        }
    }

    #[test]
    fn every_table_fits_into_100_columns() {
        let mut status = status();
        // Sentences may be longer: a terminal wraps them without harm.
        status.gpus.iter_mut().for_each(|gpu| gpu.problem = None);
        for rank in &mut status.jobs[0].ranks {
            rank.last_mismatch = None;
        }
        let mut agent = agent();
        agent.jobs.clear();
        let both = Both { pfod: status, agent: Ok(agent), tunes: Vec::new() };
        let text = both.render(&[], &user, Look::default());
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }

    #[test]
    fn instructions_without_a_step_and_overlapping_ones_need_attention() {
        let mut status = status();
        let ranks = &mut status.jobs[0].ranks;
        (ranks[0].step, ranks[0].misplaced_instructions) = (None, 2424);
        ranks[1].misplaced_instructions = 48;
        insta::assert_snapshot!(render(&status, Look::default()));
    }

    #[test]
    fn calls_that_could_not_be_timed_need_attention() {
        let mut status = status();
        let ranks = &mut status.jobs[0].ranks;
        (ranks[0].untimed_calls, ranks[1].untimed_calls) = (1, 48);
        insta::assert_snapshot!(render(&status, Look::default()));
    }

    #[test]
    fn a_status_without_colour_holds_no_escape_sequence_whatever_a_label_says() {
        let mut status = status();
        let plan = status.jobs[0].plan.as_mut().unwrap();
        plan.label = "\x1b[31mred\r\n".to_owned();
        status.jobs[0].windows[0].plan = status.jobs[0].plan.clone();
        status.gpus[0].problem = Some("\x07".to_owned());
        let text = render(&status, Look::default());
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    }

    #[test]
    fn gpus_that_nobody_uses_are_one_row_and_the_busiest_drivers_two() {
        let mut status = status();
        let last = status.gpus.last().unwrap();
        let others = (last.index + 1..64).map(|index| GpuStatus {
            index,
            leased: false,
            holder: None,
            problem: (index == 40).then(|| "lost".to_owned()),
            requested_mhz: None,
            observed_mhz: Some(Mhz(210)),
            memory_locked_mhz: None,
            power_w: Some(22.0 + f64::from(index % 4)),
            power_limit_w: None,
            ..last.clone()
        });
        let others: Vec<_> = others.collect();
        status.gpus.extend(others);
        insta::assert_snapshot!(gpu_table::render(&status.gpus, &user, Look::default()));
        for gpu in &mut status.gpus {
            gpu.leased = true;
            gpu.driver_use.reads_per_s = 10.0 + f64::from(gpu.index);
            gpu.driver_use.reading_share = if gpu.index == 7 { 0.5 } else { 0.01 };
        }
        let drivers = driver_table::render(&status.gpus, Look::default());
        insta::assert_snapshot!(drivers.unwrap());
    }

    #[test]
    fn colours_are_used_where_they_are_allowed() {
        let look = Look { colour: true, width: Some(100) };
        assert!(render(&status(), look).contains("\x1b["));
    }

    #[test]
    fn a_narrow_terminal_wraps_tables_instead_of_overflowing() {
        let look = Look { colour: false, width: Some(60) };
        let gpus = gpu_table::render(&status().gpus, &user, look);
        for line in gpus.lines() {
            assert!(line.chars().count() <= 60, "{line}");
        }
    }

    #[test]
    fn a_selected_job_leaves_only_its_own_gpus() {
        let mut both = Both { pfod: status(), agent: Ok(agent()), tunes: Vec::new() };
        both.keep_only(&"gpt-7b".parse().unwrap(), None);
        assert_eq!(both.pfod.jobs.len(), 1);
        assert_eq!(both.pfod.gpus.len(), 4);
        assert_eq!(both.agent.unwrap().jobs.len(), 1);
    }

    #[test]
    fn jobs_with_numbers_for_names_come_in_their_order() {
        let names = ["11", "b", "3", "005", "a"].map(|name| name.parse::<JobName>().unwrap());
        let mut sorted: Vec<_> = names.iter().collect();
        sorted.sort_by_key(|name| in_order(name));
        assert_eq!(
            sorted.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
            ["a", "b", "3", "005", "11"]
        );
    }

    #[test]
    fn an_interval_that_is_no_interval_is_refused() {
        for text in ["0", "-1", "nan", "inf", "soon"] {
            assert!(interval(text).is_err(), "{text}");
        }
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
    }
}
