//! `pfoctl profile status`: the progress of sweeps, as tables and sentences.

use std::time::Duration;

use clap::Args;
use pfo_protocol::{AgentRequest, AgentResponse, JobName, SweepEnd, SweepState, SweepStatus};

use super::ProfileError;
use super::stored::described;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::status::interval;
use crate::status::quantity::{change, seconds, span};
use crate::status::table::{Cell, Table, Tone, heading};
use crate::text::harmless;
use crate::user;

/// Show the progress of sweeps, and how long they will take at most
#[derive(Args)]
pub(crate) struct Status {
    /// Only sweeps of jobs with this name
    #[arg(value_name = "JOB")]
    job: Option<JobName>,

    /// Repeat at this interval; with --json one array on each line
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    watch: Option<Duration>,

    /// Print JSON: an array of sweeps, with every figure as pfo-agent gave it
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let sweeps = self.ask(daemons)?;
        let Some(interval) = self.watch else {
            if self.json {
                return output.json(&sweeps);
            }
            let look = output.look();
            return output.text(&render(&sweeps, look));
        };
        let mut sweeps = Ok(sweeps);
        loop {
            match sweeps {
                Ok(sweeps) if self.json => output.json_line(&sweeps)?,
                Ok(sweeps) => {
                    let look = output.look();
                    output.refresh(&render(&sweeps, look))?;
                }
                Err(error) => output.trouble(&error)?,
            }
            std::thread::sleep(interval);
            sweeps = self.ask(daemons);
        }
    }

    fn ask(&self, daemons: &Daemons) -> Result<Vec<SweepStatus>, Error> {
        let mut sweeps = ask(daemons)?;
        if let Some(job) = &self.job {
            sweeps.retain(|sweep| sweep.job == *job);
            if sweeps.is_empty() {
                return Err(ProfileError::NoSuchSweep { job: job.clone() }.into());
            }
        }
        Ok(sweeps)
    }
}

/// Every sweep that this user may see.
pub(super) fn ask(daemons: &Daemons) -> Result<Vec<SweepStatus>, Error> {
    let mut agent = daemons.agent()?;
    match agent.ask(AgentRequest::Sweeps)? {
        AgentResponse::Sweeps(sweeps) => Ok(sweeps),
        other => Err(agent.unexpected(&other).into()),
    }
}

fn render(sweeps: &[SweepStatus], look: Look) -> String {
    if sweeps.is_empty() {
        return "No job is being swept.\n".to_owned();
    }
    let mut table = Table::new(look)
        .left("Job")
        .left("User")
        .left("Model")
        .left("State")
        .right("Clocks")
        .right("MHz")
        .right("Time/step")
        .right("Slowdown")
        .right("Left at most");
    for sweep in sweeps {
        let slowdown = sweep.step_time_s.zip(sweep.default_step_time_s);
        table.row([
            Cell::text(sweep.job.as_str()),
            Cell::text(user::name_of(sweep.profile.uid)),
            Cell::text(sweep.profile.model.as_str()),
            state(&sweep.state),
            Cell::text(format!("{} of {}", sweep.measured, sweep.clocks)),
            Cell::mhz(sweep.mhz),
            Cell::option(sweep.step_time_s.map(seconds)),
            Cell::option(slowdown.map(|(step_s, default_s)| change(step_s / default_s - 1.0))),
            Cell::option(sweep.remaining_s.map(span)),
        ]);
    }
    let mut text = heading("Sweeps", look) + &table.render();
    for sweep in sweeps {
        if let SweepState::Waiting { why } | SweepState::Paused { why: Some(why) } = &sweep.state {
            text += &format!("{}: {}\n", sweep.job, harmless(why));
        }
        if let Some(remark) = &sweep.remark {
            text += &format!("{}: {}\n", sweep.job, harmless(remark));
        }
    }
    text
}

fn state(state: &SweepState) -> Cell {
    match state {
        SweepState::Running => Cell::text("measuring"),
        SweepState::Waiting { .. } => Cell::text("waiting").tone(Tone::Notable),
        SweepState::Paused { .. } => Cell::text("paused").tone(Tone::Notable),
        SweepState::Ended(SweepEnd::Stopped) => Cell::text("stopped"),
        SweepState::Ended(_) => Cell::text("done").tone(Tone::Good),
    }
}

/// Prints a sweep as a sentence or JSON.
pub(super) fn print(sweep: &SweepStatus, json: bool, output: &mut Output) -> Result<(), Error> {
    if json { output.json(sweep) } else { output.text(&(sentence(sweep) + &remark(sweep) + "\n")) }
}

/// What the clocks have shown, as a sentence of its own.
fn remark(sweep: &SweepStatus) -> String {
    let remark = sweep.remark.as_ref();
    remark.map_or_else(String::new, |remark| format!("\n{}: {}.", sweep.job, harmless(remark)))
}

/// A sweep under way in a few words.
pub(super) fn progress(sweep: &SweepStatus) -> String {
    let at = match sweep.mhz {
        Some(mhz) => mhz.to_string(),
        None => "default clocks".to_owned(),
    };
    if let SweepState::Waiting { .. } = sweep.state {
        return format!("waiting to measure {at}");
    }
    let left = sweep.remaining_s.map(|left_s| format!(", about {} left", span(left_s)));
    format!("measuring {at}{}", left.unwrap_or_default())
}

/// A sweep in a sentence or two.
fn sentence(sweep: &SweepStatus) -> String {
    let SweepStatus { job, profile, measured, clocks, .. } = sweep;
    let stored = |why: &str| {
        format!("{measured} clocks of job {job} measured, {why}; stored {}.", described(profile))
    };
    match &sweep.state {
        SweepState::Running | SweepState::Waiting { .. } => format!(
            "Sweeping job {job}: {measured} of at most {clocks} clocks measured; {}.\n\
             `pfoctl profile status {job}` shows the progress.",
            progress(sweep)
        ),
        SweepState::Paused { .. } => format!(
            "The sweep of job {job} is paused, with {measured} of at most {clocks} clocks \
             measured; the job runs at default clocks."
        ),
        SweepState::Ended(SweepEnd::Stopped) => {
            format!("The sweep of job {job} is stopped; its measurements are discarded.")
        }
        SweepState::Ended(SweepEnd::EnergyRises) => {
            stored("until lower ones only cost more energy")
        }
        SweepState::Ended(SweepEnd::LowestClock) => stored("down to the lowest"),
        SweepState::Ended(SweepEnd::Finished) => stored("until the sweep was finished early"),
        SweepState::Ended(SweepEnd::TooSlow) => stored("until the job was slower than allowed"),
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Mhz, ProfileKey, SweepSettings, Uid};

    use super::*;

    fn sweep(state: SweepState) -> SweepStatus {
        let profile = ProfileKey {
            uid: Uid(4_000_000_001),
            model: "gpt-7b".parse().unwrap(),
            gpus: "NVIDIA-A100".into(),
            partition: "pp4-dp1-tp1-mb8".into(),
        };
        let settings = SweepSettings {
            steps: 10,
            settling_steps: 1,
            stride_mhz: Mhz(1),
            min_mhz: Mhz(0),
            max_slowdown: Some(0.1),
        };
        SweepStatus {
            job: "demo".parse().unwrap(),
            profile,
            settings,
            state,
            mhz: Some(Mhz(1305)),
            measured: 7,
            clocks: 81,
            remark: None,
            step_time_s: Some(2.1),
            default_step_time_s: Some(2.0),
            remaining_s: Some(754.0),
            not_in_force: false,
        }
    }

    #[test]
    fn a_table_shows_progress_slowdown_and_remaining_time() {
        let why = "job demo has no rank on this node".to_owned();
        let table = render(&[sweep(SweepState::Waiting { why })], Look::default());
        insta::assert_snapshot!(table);
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    }

    #[test]
    fn clocks_that_gpus_do_not_hold_are_named_beside_the_table_and_the_sentence() {
        let remark = "power limits hold the GPUs at 1245 MHz where 1410 MHz was asked for";
        let sweep = SweepStatus { remark: Some(remark.to_owned()), ..sweep(SweepState::Running) };
        insta::assert_snapshot!(render(std::slice::from_ref(&sweep), Look::default()));
        insta::assert_snapshot!(super::remark(&sweep));
    }

    #[test]
    fn a_sweep_that_waits_measures_nothing() {
        let why = "job demo has no rank on this node".to_owned();
        assert_eq!(progress(&sweep(SweepState::Waiting { why })), "waiting to measure 1305 MHz");
    }

    #[test]
    fn text_of_other_users_is_harmless() {
        let why = Some("\x1b[31m".to_owned());
        let table = render(&[sweep(SweepState::Paused { why })], Look::default());
        assert!(!table.contains('\x1b'), "{table}");
    }

    #[test]
    fn the_end_of_a_sweep_says_why_and_what_was_stored() {
        use SweepEnd::{EnergyRises, Finished, LowestClock, Stopped, TooSlow};
        let ends = [EnergyRises, LowestClock, TooSlow, Finished, Stopped];
        let sentences = ends.map(|end| sentence(&sweep(SweepState::Ended(end))));
        insta::assert_snapshot!(sentences.join("\n"));
    }
}
