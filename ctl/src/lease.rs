//! `pfoctl lease`: who holds which GPU, and taking leases back.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use pfo_protocol::{
    GpuName, JobName, JobSelector, LeaseStatus, LeaseTarget, NameError, Request, Response,
    RevocationStatus,
};
use serde::Serialize;

use crate::connection::Connection;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::socket::Sockets;
use crate::status::quantity::span;
use crate::status::table::{Cell, Table, heading};
use crate::text::harmless;
use crate::user;

/// What to do with leases.
#[derive(Subcommand)]
pub(crate) enum Lease {
    /// List who holds which GPU, and which leases were revoked
    List {
        /// Print JSON: the leases and the revocations that stand
        #[arg(long)]
        json: bool,
    },
    /// End the leases of a job, or the one of a GPU. Training goes on at default clocks
    ///
    /// Users may end those of their own jobs, administrators any. The processes that held them do
    /// not get them again until `pfoctl lease allow` or a restart of pfod, and neither does any other
    /// process of the job until the last of these has ended.
    Revoke(Meant),
    /// Lift a revocation: the ranks get their leases back within half a minute, by themselves
    ///
    /// Users may lift their own, administrators any.
    Allow(Meant),
}

/// The leases that are meant.
#[derive(Args)]
pub(crate) struct Meant {
    /// The GPU, by UUID or PCI bus id, or the job with all of its leases
    #[arg(value_name = "GPU|JOB", value_parser = parse_name)]
    name: Name,

    /// Whose job, by name or number [default: your own; for an administrator the only one of that
    /// name]
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    user: Option<u32>,

    /// Print JSON: an array of the leases that end, or of the revocations that were lifted
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Gpu(GpuName),
    Job(JobName),
}

/// A job may be called nearly anything. What could be a GPU is one: its lease is what somebody sees.
fn parse_name(text: &str) -> Result<Name, NameError> {
    let hexadecimal = |c: char| c.is_ascii_hexdigit() || ":.".contains(c);
    let bus_id = text.matches(':').count() == 2 && text.chars().all(hexadecimal);
    if text.starts_with("GPU-") || bus_id {
        text.parse().map(Name::Gpu)
    } else {
        text.parse().map(Name::Job)
    }
}

#[derive(Serialize)]
struct Listed<'a> {
    leases: &'a [LeaseStatus],
    revoked: &'a [RevocationStatus],
}

impl Lease {
    /// Asks and prints.
    pub(crate) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let (request, json) = match self {
            Self::List { json } => (Request::Leases, json),
            Self::Revoke(meant) => {
                let json = meant.json;
                (Request::LeaseRevoke(meant.target()), json)
            }
            Self::Allow(meant) => {
                let json = meant.json;
                (Request::LeaseAllow(meant.target()), json)
            }
        };
        let mut connection = Connection::open(sockets)?;
        let look = output.look();
        let now = now_unix_s();
        match connection.ask(request)? {
            Response::Leases { leases, revoked } if json => {
                output.json(&Listed { leases: &leases, revoked: &revoked })
            }
            Response::Leases { leases, revoked } => {
                output.text(&list(&leases, &revoked, now, look))
            }
            Response::Revoked(ended) if json => output.json(&ended),
            Response::Revoked(ended) if ended.is_empty() => output.text("No lease was held.\n"),
            Response::Revoked(ended) => output.text(&held("Revoked", &ended, now, look)),
            Response::Allowed(lifted) if json => output.json(&lifted),
            Response::Allowed(lifted) => {
                let line = |lifted| format!("lifted: {}\n", harmless(&what(lifted)));
                output.text(&lifted.iter().map(line).collect::<String>())
            }
            other => Err(connection.other_answer(&format!("{other:?}"))),
        }
    }
}

impl Meant {
    fn target(self) -> LeaseTarget {
        match self.name {
            Name::Gpu(gpu) => LeaseTarget::Gpu(gpu),
            Name::Job(job) => LeaseTarget::Job(JobSelector { job, uid: self.user }),
        }
    }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn list(leases: &[LeaseStatus], revoked: &[RevocationStatus], now: u64, look: Look) -> String {
    let mut text = match leases {
        [] => "No GPU is leased.\n".to_owned(),
        leases => held("Leases (clocks in MHz)", leases, now, look),
    };
    if !revoked.is_empty() {
        text += &format!("\n{}", heading("Revoked", look));
        for revocation in revoked {
            text += &format!("  {}\n", harmless(&standing(revocation, now)));
        }
    }
    text
}

fn held(title: &str, leases: &[LeaseStatus], now: u64, look: Look) -> String {
    let mut table = Table::new(look)
        .right("GPU")
        .left("UUID")
        .right("For")
        .right("Asked")
        .right("Observed")
        .left("Job")
        .right("Rank")
        .left("User")
        .right("PID")
        .right("Session");
    let mhz = |mhz: Option<u32>| mhz.map_or_else(Cell::empty, Cell::number);
    for lease in leases {
        let holder = &lease.holder;
        table.row([
            Cell::number(lease.index),
            Cell::text(lease.gpu.uuid.as_str()),
            Cell::text(ago(lease.since_unix_s, now)),
            mhz(lease.requested_mhz),
            mhz(lease.observed_mhz),
            Cell::text(holder.job.as_str()),
            Cell::number(holder.rank),
            Cell::text(user::name_of(holder.uid)),
            Cell::number(holder.pid),
            Cell::number(holder.session),
        ]);
    }
    heading(title, look) + &table.render()
}

fn ago(since_unix_s: u64, now: u64) -> String {
    span(now.saturating_sub(since_unix_s) as f64)
}

fn what(revocation: &RevocationStatus) -> String {
    let job = format!("job {} of {}", revocation.job, user::name_of(revocation.uid));
    match &revocation.gpu_uuid {
        Some(gpu) => format!("GPU {gpu} for {job}"),
        None => format!("every GPU for {job}"),
    }
}

fn standing(revocation: &RevocationStatus, now: u64) -> String {
    let processes = match revocation.processes {
        1 => "1 process is".to_owned(),
        count => format!("{count} processes are"),
    };
    format!(
        "{}, by {} {} ago; {processes} still there",
        what(revocation),
        user::name_of(revocation.by_uid),
        ago(revocation.since_unix_s, now)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(index: u32) -> LeaseStatus {
        serde_json::from_value(serde_json::json!({
            "index": index,
            "gpu": {
                "uuid": format!("GPU-6f2c11aa-0000-4000-8000-00000000000{index}"),
                "pci_bus_id": "00000000:07:00.0", "model": "NVIDIA A100"
            },
            "holder": {"job": "team/gpt", "rank": index, "uid": 4_000_000_001_u32, "pid": 41230,
                       "session": 3},
            "since_unix_s": 1000, "requested_mhz": 1410, "observed_mhz": null
        }))
        .unwrap()
    }

    fn revocation(gpu: Option<&str>, processes: u32) -> RevocationStatus {
        RevocationStatus {
            job: "team/gpt".parse().unwrap(),
            uid: 4_000_000_001,
            gpu_uuid: gpu.map(|gpu| gpu.parse().unwrap()),
            by_uid: 0,
            since_unix_s: 1000,
            processes,
        }
    }

    #[test]
    fn leases_and_revocations_are_told_with_their_age() {
        let revoked = [revocation(Some("GPU-1"), 1), revocation(None, 4)];
        let text = list(&[lease(0), lease(1)], &revoked, 8500, Look::default());
        assert!(text.contains("2 h 5 min"), "{text}");
        assert!(text.contains("GPU-6f2c11aa-0000-4000-8000-000000000001"), "{text}");
        let told = "  GPU GPU-1 for job team/gpt of 4000000001, by root 2 h 5 min ago; 1 process is \
                    still there\n  every GPU for job team/gpt of 4000000001, by root 2 h 5 min ago; 4 \
                    processes are still there\n";
        assert!(text.ends_with(told), "{text}");
        assert!(!list(&[], &[], 0, Look::default()).contains("Revoked"));
    }

    #[test]
    fn what_could_be_a_gpu_is_one_and_anything_else_is_a_job() {
        for gpu in ["GPU-6f2c11aa", "00000000:07:00.0", "0000:0A:00.0"] {
            assert_eq!(parse_name(gpu), Ok(Name::Gpu(gpu.parse().unwrap())));
        }
        for job in ["gpt-7b", "team/gpt:v2", "a:b:c.d-1", "4711", "gpu-1"] {
            assert_eq!(parse_name(job), Ok(Name::Job(job.parse().unwrap())));
        }
        assert!(parse_name("a b").is_err() && parse_name("").is_err());
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_lease_older_than_the_world() {
        assert_eq!(ago(2000, 1000), "0 s");
    }
}
