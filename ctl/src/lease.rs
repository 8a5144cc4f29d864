//! `pfoctl lease`: lists, revokes and allows leases.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use pfo_protocol::{
    GpuGrant, JobName, JobSelector, LeaseStatus, LeaseTarget, Request, Response, RevocationStatus,
    Uid,
};
use serde::Serialize;

use crate::arguments::{GpuArgument, GpuArgumentError, Indices, NoGpuName};
use crate::daemons::{Connection, Daemons, Pfod};
use crate::error::Error;
use crate::grant;
use crate::output::{Look, Output};
use crate::status::quantity::span;
use crate::status::table::{Cell, Table, heading};
use crate::text::harmless;
use crate::user;

/// What to do about leases.
#[derive(Subcommand)]
pub(crate) enum Lease {
    /// List the leases, the revocations and the grants
    List {
        /// Print JSON: the leases, and the revocations and grants in force
        #[arg(long)]
        json: bool,
    },
    /// End the leases of a job, or the lease of a GPU; training continues at default clocks
    ///
    /// Users may end the leases of their own jobs, administrators any. Until `pfoctl lease allow` or a
    /// restart of pfod, the processes that held the leases get no lease again, nor does any other
    /// process of the job while one of them runs.
    Revoke(Selected),
    /// Lift a revocation; the ranks lease their GPUs again within half a minute
    ///
    /// Users may lift revocations of their own, administrators any.
    Allow(Selected),
}

/// Which leases, and how to answer.
#[derive(Args)]
pub(crate) struct Selected {
    /// The GPU, by index, UUID or PCI bus id, or the job with all of its leases. Write gpu:N or job:N for
    /// a number that is both: Slurm's jobs have numbers as names
    #[arg(value_name = "GPU|JOB", value_parser = parse_name)]
    name: Name,

    /// The owner of the job, by name or number [default: yourself; for an administrator the owner
    /// of the only job of that name]
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    user: Option<Uid>,

    /// Print JSON: an array of the leases that end, or of the revocations that were lifted
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Gpu(GpuArgument),
    Job(JobName),
    /// A job, or the index of a GPU.
    Either(JobName, usize),
}

/// A job may have nearly any name. A name that a GPU could have is taken for one.
fn parse_name(text: &str) -> Result<Name, NoGpuName> {
    match text.split_once(':') {
        Some(("gpu", number)) if index(number).is_some() => return number.parse().map(Name::Gpu),
        Some(("job", number)) if index(number).is_some() => return Ok(Name::Job(number.parse()?)),
        _ => {}
    }
    if let Some(index) = index(text) {
        return Ok(Name::Either(text.parse()?, index));
    }
    let hexadecimal = |c: char| c.is_ascii_hexdigit() || ":.".contains(c);
    let bus_id = text.matches(':').count() == 2 && text.chars().all(hexadecimal);
    if text.starts_with("GPU-") || bus_id {
        text.parse().map(Name::Gpu)
    } else {
        Ok(Name::Job(text.parse()?))
    }
}

/// A number as GPUs are counted. `007` is a job and nothing else.
fn index(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number: &usize| number.to_string() == text)
}

#[derive(Serialize)]
struct Listed<'a> {
    leases: &'a [LeaseStatus],
    revoked: &'a [RevocationStatus],
    granted: &'a [GpuGrant],
}

impl Lease {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut pfod = daemons.pfod()?;
        let (request, json) = match self {
            Self::List { json } => (Request::Leases, json),
            Self::Revoke(selected) => {
                let json = selected.json;
                (Request::LeaseRevoke(selected.target(&mut pfod)?), json)
            }
            Self::Allow(selected) => {
                let json = selected.json;
                (Request::LeaseAllow(selected.target(&mut pfod)?), json)
            }
        };
        let look = output.look();
        let now = now_unix_s();
        match pfod.ask(request)? {
            Response::Leases { leases, revoked, granted } => {
                let listed = Listed { leases: &leases, revoked: &revoked, granted: &granted };
                if json { output.json(&listed) } else { output.text(&list(&listed, now, look)) }
            }
            Response::Revoked(ended) if json => output.json(&ended),
            Response::Revoked(ended) if ended.is_empty() => output.text("No lease was held.\n"),
            Response::Revoked(ended) => output.text(&held("Revoked", &ended, now, look)),
            Response::Allowed(lifted) if json => output.json(&lifted),
            Response::Allowed(lifted) => {
                let line = |lifted| format!("lifted: {}\n", harmless(&what(lifted)));
                output.text(&lifted.iter().map(line).collect::<String>())
            }
            other => Err(pfod.unexpected(&other).into()),
        }
    }
}

impl Selected {
    fn target(self, pfod: &mut Connection<Pfod>) -> Result<LeaseTarget, Error> {
        let job = match self.name {
            Name::Gpu(gpu) => return Ok(LeaseTarget::Gpu(gpu.resolve(pfod)?)),
            Name::Job(job) => job,
            Name::Either(job, number) => {
                let there = Indices::of(&pfod.status()?.gpus);
                match (is_known(&job, pfod)?, there.contain(number)) {
                    (true, false) => job,
                    (false, true) => {
                        return Ok(LeaseTarget::Gpu(GpuArgument::Index(number).resolve(pfod)?));
                    }
                    (false, false) => {
                        return Err(GpuArgumentError::Neither { number, there }.into());
                    }
                    (true, true) => return Err(GpuArgumentError::Both { number }.into()),
                }
            }
        };
        Ok(LeaseTarget::Job(JobSelector { job, uid: self.user }))
    }
}

/// Whether a job of this name holds a lease, or lost one to a revocation.
fn is_known(job: &JobName, pfod: &mut Connection<Pfod>) -> Result<bool, Error> {
    match pfod.ask(Request::Leases)? {
        Response::Leases { leases, revoked, .. } => {
            let mut holders = leases.iter().filter_map(|lease| Some(&lease.holder.as_ref()?.job));
            let mut losers = revoked.iter().map(|revocation| &revocation.job);
            Ok(holders.any(|holder| holder == job) || losers.any(|loser| loser == job))
        }
        other => Err(pfod.unexpected(&other).into()),
    }
}

/// The time, in seconds since 1970.
pub(crate) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn list(listed: &Listed<'_>, now: u64, look: Look) -> String {
    let Listed { leases, revoked, granted } = listed;
    let mut text = match leases {
        [] => "No GPU is leased.\n".to_owned(),
        leases => held("Leases (clocks in MHz)", leases, now, look),
    };
    if !revoked.is_empty() {
        text += &format!("\n{}", heading("Revoked", look));
        for revocation in *revoked {
            text += &format!("  {}\n", harmless(&standing(revocation, now)));
        }
    }
    if !granted.is_empty() {
        text += &format!("\n{}", heading("Granted", look));
        for grant in *granted {
            text += &format!("  {}\n", harmless(&grant::in_words(grant, now)));
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
    for lease in leases {
        let holder = lease.holder.as_ref();
        let number = |number: Option<u64>| Cell::option(number.map(|number| number.to_string()));
        table.row([
            Cell::number(lease.index),
            Cell::text(lease.gpu.uuid.as_str()),
            Cell::text(ago(lease.since_unix_s, now)),
            Cell::mhz(lease.requested_mhz),
            Cell::mhz(lease.observed_mhz),
            Cell::option(holder.map(|holder| holder.job.to_string())),
            number(holder.map(|holder| holder.rank.0.into())),
            Cell::text(holder.map_or("another".to_owned(), |holder| user::name_of(holder.uid))),
            number(holder.map(|holder| holder.pid.0.into())),
            number(holder.map(|holder| holder.session.0)),
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
            uid: Uid(4_000_000_001),
            gpu_uuid: gpu.map(|gpu| gpu.parse().unwrap()),
            by_uid: Uid::ROOT,
            since_unix_s: 1000,
            processes,
        }
    }

    #[test]
    fn leases_and_revocations_are_listed_with_their_age() {
        let revoked = [revocation(Some("GPU-1"), 1), revocation(None, 4)];
        let leases = [lease(0), lease(1)];
        let listed = Listed { leases: &leases, revoked: &revoked, granted: &[] };
        insta::assert_snapshot!(list(&listed, 8500, Look::default()));
        let nothing = Listed { leases: &[], revoked: &[], granted: &[] };
        assert_eq!(list(&nothing, 0, Look::default()), "No GPU is leased.\n");
    }

    #[test]
    fn a_name_that_a_gpu_could_have_is_one_and_any_other_is_a_job() {
        for gpu in ["GPU-6f2c11aa", "00000000:07:00.0", "0000:0A:00.0"] {
            assert_eq!(parse_name(gpu), Ok(Name::Gpu(gpu.parse().unwrap())));
        }
        for job in ["gpt-7b", "team/gpt:v2", "a:b:c.d-1", "gpu-1", "gpu:v2", "job:a", "007", "+3"] {
            assert_eq!(parse_name(job), Ok(Name::Job(job.parse().unwrap())));
        }
        assert_eq!(parse_name("4711"), Ok(Name::Either("4711".parse().unwrap(), 4711)));
        assert_eq!(parse_name("gpu:3"), Ok(Name::Gpu(GpuArgument::Index(3))));
        assert_eq!(parse_name("job:3"), Ok(Name::Job("3".parse().unwrap())));
        assert!(parse_name("a b").is_err() && parse_name("").is_err());
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_lease_older_than_the_world() {
        assert_eq!(ago(2000, 1000), "0 s");
    }
}
