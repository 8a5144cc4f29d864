//! `pfoctl profile status`: how far the sweeps are.

use std::time::Duration;

use clap::Args;
use pfo_protocol::{JobName, Request, Response, SweepEnd, SweepState, SweepStatus};

use super::stored::described;
use crate::connection::Connection;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::socket::Sockets;
use crate::status::interval;
use crate::status::quantity::{change, seconds, span};
use crate::status::table::{Cell, Table, Tone, heading};
use crate::text::harmless;
use crate::user;

/// Show how far sweeps are, and how long they will take at most
#[derive(Args)]
pub(crate) struct Status {
    /// Only sweeps of jobs of this name
    #[arg(value_name = "JOB")]
    job: Option<JobName>,

    /// Show it again and again, at this interval; with --json one array a line
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    watch: Option<Duration>,

    /// Print JSON: an array of sweeps, with every figure as the daemon gave it
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(&self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let sweeps = self.ask(sockets)?;
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
            sweeps = self.ask(sockets);
        }
    }

    fn ask(&self, sockets: &Sockets) -> Result<Vec<SweepStatus>, Error> {
        let mut sweeps = ask(sockets)?;
        if let Some(job) = &self.job {
            sweeps.retain(|sweep| sweep.job == *job);
            if sweeps.is_empty() {
                return Err(Error::NoSuchSweep { job: job.to_string() });
            }
        }
        Ok(sweeps)
    }
}

/// Every sweep that this user may see.
pub(super) fn ask(sockets: &Sockets) -> Result<Vec<SweepStatus>, Error> {
    let mut connection = Connection::open(sockets)?;
    match connection.ask(Request::Sweeps)? {
        Response::Sweeps(sweeps) => Ok(sweeps),
        other => Err(connection.other_answer(&format!("{other:?}"))),
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
            Cell::option(sweep.mhz.map(|mhz| mhz.to_string())),
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

/// A sweep under way in a few words.
pub(super) fn progress(sweep: &SweepStatus) -> String {
    let at = match sweep.mhz {
        Some(mhz) => format!("{mhz} MHz"),
        None => "default clocks".to_owned(),
    };
    let left = sweep.remaining_s.map(|left_s| format!(", {} left at most", span(left_s)));
    format!("measuring {at}{}", left.unwrap_or_default())
}

/// A sweep in a sentence or two.
pub(super) fn sentence(sweep: &SweepStatus) -> String {
    let SweepStatus { job, profile, measured, clocks, .. } = sweep;
    let stored = |why: &str| {
        format!(
            "{measured} clocks of job {job} measured, until {why}: stored {}.",
            described(profile)
        )
    };
    match &sweep.state {
        SweepState::Running | SweepState::Waiting { .. } => format!(
            "Sweeping job {job}: {measured} of at most {clocks} clocks measured; {}.\n\
             `pfoctl profile status {job}` shows how far it is.",
            progress(sweep)
        ),
        SweepState::Paused { .. } => format!(
            "The sweep of job {job} is paused, with {measured} of at most {clocks} clocks measured; the \
             job runs at default clocks."
        ),
        SweepState::Ended(SweepEnd::Stopped) => {
            format!("The sweep of job {job} is over; what it measured is forgotten.")
        }
        SweepState::Ended(SweepEnd::EnergyRises) => stored("lower ones took only more energy"),
        SweepState::Ended(SweepEnd::LowestClock) => stored("the lowest"),
        SweepState::Ended(SweepEnd::Finished) => stored("somebody had enough"),
        SweepState::Ended(SweepEnd::TooSlow) => stored("the job was slower than allowed"),
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{ProfileKey, SweepSettings};

    use super::*;

    fn sweep(state: SweepState) -> SweepStatus {
        let profile = ProfileKey {
            uid: 4_000_000_001,
            model: "gpt-7b".parse().unwrap(),
            gpus: "NVIDIA-A100".into(),
            partition: "pp4-dp1-tp1-mb8".into(),
        };
        let settings = SweepSettings {
            steps: 10,
            settling_steps: 1,
            stride_mhz: 1,
            min_mhz: 0,
            max_slowdown: Some(0.1),
        };
        SweepStatus {
            job: "demo".parse().unwrap(),
            profile,
            settings,
            state,
            mhz: Some(1305),
            measured: 7,
            clocks: 81,
            step_time_s: Some(2.1),
            default_step_time_s: Some(2.0),
            remaining_s: Some(754.0),
        }
    }

    #[test]
    fn a_table_says_how_far_it_is_how_slow_and_how_long_at_most() {
        let why = "job demo has no rank on this node".to_owned();
        let table = render(&[sweep(SweepState::Waiting { why })], Look::default());
        for part in ["7 of 81", "1305", "2.100 s", "+5.0 %", "12 min 34 s", "waiting", "no rank"] {
            assert!(table.contains(part), "{part}: {table}");
        }
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    }

    #[test]
    fn what_others_wrote_is_harmless() {
        let why = Some("\x1b[31m".to_owned());
        let table = render(&[sweep(SweepState::Paused { why })], Look::default());
        assert!(!table.contains('\x1b'), "{table}");
    }

    #[test]
    fn the_end_of_a_sweep_says_why_and_what_was_stored() {
        let ends = [
            (SweepEnd::EnergyRises, "more energy"),
            (SweepEnd::LowestClock, "the lowest"),
            (SweepEnd::TooSlow, "slower than allowed"),
            (SweepEnd::Finished, "had enough"),
        ];
        for (end, why) in ends {
            let text = sentence(&sweep(SweepState::Ended(end)));
            assert!(text.contains(why) && text.contains("gpt-7b on NVIDIA-A100"), "{text}");
        }
        let stopped = sentence(&sweep(SweepState::Ended(SweepEnd::Stopped)));
        assert!(stopped.contains("forgotten") && !stopped.contains("stored"), "{stopped}");
    }
}
