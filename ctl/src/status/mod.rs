//! `pfoctl status`: asks for the status, keeps what was asked for, and prints it.
//!
//! From `Status` to text everything is pure: one file for each table, none of which asks the
//! daemon, the clock or the terminal anything.

mod attention;
mod daemon;
mod gpu_table;
mod job_table;
pub(crate) mod plan_text;
pub(crate) mod quantity;
mod rank_table;
pub(crate) mod table;
mod uuid;
mod window_table;

use std::time::Duration;

use clap::Args;
use pfo_protocol::{JobName, Request, Response, Status};

use crate::connection::Connection;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::socket::Sockets;
use crate::user;

/// Show the daemon, its GPUs and jobs, and what was measured under each plan
#[derive(Args)]
pub(crate) struct StatusCommand {
    /// Only jobs of this name, and their GPUs
    #[arg(long)]
    job: Option<JobName>,

    /// Show it again and again, at this interval; with --json one object a line
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    watch: Option<Duration>,

    /// Print JSON: every figure as the daemon gave it
    #[arg(long)]
    json: bool,
}

impl StatusCommand {
    /// Prints the status once, or until somebody stops it.
    pub(crate) fn run(&self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let status = self.ask(sockets)?;
        let Some(interval) = self.watch else {
            if self.json {
                return output.json(&status);
            }
            let look = output.look();
            return output.text(&render(&status, &user::name_of, look));
        };
        let mut status = Ok(status);
        loop {
            match status {
                Ok(status) if self.json => output.json_line(&status)?,
                Ok(status) => {
                    let look = output.look();
                    output.refresh(&render(&status, &user::name_of, look))?;
                }
                // Whoever watches wants to see the daemon come back after a restart.
                Err(error) => output.trouble(&error)?,
            }
            std::thread::sleep(interval);
            status = self.ask(sockets);
        }
    }

    fn ask(&self, sockets: &Sockets) -> Result<Status, Error> {
        let mut connection = Connection::open(sockets)?;
        let mut status = match connection.ask(Request::Status)? {
            Response::Status(status) => *status,
            other => return Err(connection.other_answer(&format!("{other:?}"))),
        };
        if let Some(job) = &self.job {
            keep_only(job, &mut status);
            if status.jobs.is_empty() {
                return Err(Error::NoSuchJob { job: job.to_string() });
            }
        }
        Ok(status)
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

fn keep_only(job: &JobName, status: &mut Status) {
    status.jobs.retain(|other| other.job == *job);
    status.gpus.retain(|gpu| gpu.holder.as_ref().is_some_and(|holder| holder.job == *job));
}

/// The status as people read it: what needs attention first, then machine before job before rank.
fn render(status: &Status, user: &dyn Fn(u32) -> String, look: Look) -> String {
    let mut parts = vec![daemon::line(&status.daemon)];
    parts.extend(attention::list(status, user, look));
    parts.push(gpu_table::render(&status.gpus, user, look));
    parts.push(job_table::render(&status.jobs, user, look));
    for job in &status.jobs {
        parts.extend(window_table::render(job, user, look));
        parts.extend(rank_table::render(job, &status.gpus, user, look));
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        serde_json::from_str(include_str!("../../tests/golden/status.json")).unwrap()
    }

    fn user(uid: u32) -> String {
        match uid {
            4_000_000_001 => "alice".to_owned(),
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
        for line in render(&status, &user, Look::default()).lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }

    #[test]
    fn a_status_without_colour_holds_no_escape_sequence_whatever_a_label_says() {
        let mut status = status();
        let plan = status.jobs[0].plan.as_mut().unwrap();
        plan.label = "\x1b[31mred\r\n".to_owned();
        status.jobs[0].windows[0].plan = status.jobs[0].plan.clone();
        status.gpus[0].problem = Some("\x07".to_owned());
        let text = render(&status, &user, Look::default());
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    }

    #[test]
    fn colours_are_used_where_they_are_allowed() {
        let look = Look { colour: true, width: Some(100) };
        assert!(render(&status(), &user, look).contains("\x1b["));
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
    fn a_job_that_was_asked_for_leaves_only_its_own_gpus() {
        let mut status = status();
        keep_only(&"gpt-7b".parse().unwrap(), &mut status);
        assert_eq!(status.jobs.len(), 1);
        assert_eq!(status.gpus.len(), 4);
    }

    #[test]
    fn an_interval_that_is_no_interval_is_refused() {
        for text in ["0", "-1", "nan", "inf", "soon"] {
            assert!(interval(text).is_err(), "{text}");
        }
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
    }
}
