//! `pfoctl profile list` and `export`: the profiles that the agent has stored.

use std::time::{Duration, SystemTime};

use clap::Args;
use pfo_protocol::{
    AgentRequest, AgentResponse, JobName, JobSelector, ProfileSelector, StoredProfile, Uid,
};

use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::planning::file;
use crate::status::quantity::span;
use crate::status::table::{Cell, Table, heading};
use crate::user;
pub(crate) use pfo_experiment::described;

/// List the stored profiles
#[derive(Args)]
pub(crate) struct List {
    /// Print JSON: an array with the key, the time of measurement and the size of each
    #[arg(long)]
    json: bool,
}

/// Write a stored profile, or that of a sweep under way, for `plan optimize`
#[derive(Args)]
pub(crate) struct Export {
    /// Model of the profile: the name of the job, or the one that `profile start --model` gave
    #[arg(value_name = "MODEL")]
    model: JobName,

    /// GPUs of the profile, as `profile list` shows them, if there are several
    #[arg(long, value_name = "GPUS")]
    gpus: Option<String>,

    /// Partition of the profile, as `profile list` shows it, if there are several
    #[arg(long, value_name = "PARTITION")]
    partition: Option<String>,

    /// Write what the sweep of the job of that name has measured so far. A column `incomplete` says
    /// in each row how many of how many clocks were measured
    #[arg(long, conflicts_with_all = ["gpus", "partition"])]
    so_far: bool,

    /// The owner of the profile, by name or number [default: yourself; for an administrator the
    /// owner of the only profile of that model]
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    user: Option<Uid>,

    /// The file to write; - is standard output
    #[arg(short, long, value_name = "PROFILE.csv", default_value = "-")]
    output: String,
}

impl List {
    pub(super) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut agent = daemons.agent()?;
        let look = output.look();
        match agent.ask(AgentRequest::Profiles)? {
            AgentResponse::Profiles(profiles) if self.json => output.json(&profiles),
            AgentResponse::Profiles(profiles) => {
                output.text(&render(&profiles, SystemTime::now(), look))
            }
            other => Err(agent.unexpected(&other).into()),
        }
    }
}

impl Export {
    pub(super) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut agent = daemons.agent()?;
        let Self { model, gpus, partition, user: uid, so_far, .. } = self;
        let request = match so_far {
            true => AgentRequest::SweepRead(JobSelector { job: model, uid }),
            false => AgentRequest::ProfileRead(ProfileSelector { model, uid, gpus, partition }),
        };
        let csv = match agent.ask(request)? {
            AgentResponse::Profile { csv, .. } => String::from_utf8_lossy(&csv).into_owned(),
            AgentResponse::Swept { sweep, csv } => {
                let mark = format!("{} of {}", sweep.measured, sweep.clocks);
                with_column(&String::from_utf8_lossy(&csv), "incomplete", &mark)
            }
            other => return Err(agent.unexpected(&other).into()),
        };
        if self.output == "-" {
            return output.text(&csv);
        }
        Ok(file::write(&self.output, csv.as_bytes())?)
    }
}

/// The lines of a CSV, none of which the agent writes in quotes, with one more column.
fn with_column(csv: &str, name: &str, field: &str) -> String {
    let fields = std::iter::once(name).chain(std::iter::repeat(field));
    csv.lines().zip(fields).map(|(line, field)| format!("{line},{field}\n")).collect()
}

fn render(profiles: &[StoredProfile], now: SystemTime, look: Look) -> String {
    if profiles.is_empty() {
        return "No profile is stored.\n".to_owned();
    }
    let mut table = Table::new(look)
        .left("Model")
        .left("User")
        .left("GPUs")
        .left("Partition")
        .right("Measured")
        .right("Size");
    for StoredProfile { key, measured_unix_s, bytes } in profiles {
        let measured = SystemTime::UNIX_EPOCH + Duration::from_secs(*measured_unix_s);
        let age_s = now.duration_since(measured).map_or(0.0, |age| age.as_secs_f64());
        table.row([
            Cell::text(key.model.as_str()),
            Cell::text(user::name_of(key.uid)),
            Cell::text(&key.gpus),
            Cell::text(&key.partition),
            Cell::text(format!("{} ago", span(age_s))),
            Cell::text(format!("{} kB", bytes.div_ceil(1000))),
        ]);
    }
    heading("Profiles", look) + &table.render()
}

#[cfg(test)]
mod tests {
    use pfo_protocol::ProfileKey;

    use super::*;

    #[test]
    fn a_list_shows_what_export_takes_as_arguments() {
        let key = ProfileKey {
            uid: Uid(4_000_000_001),
            model: "gpt-7b".parse().unwrap(),
            gpus: "NVIDIA-A100".into(),
            partition: "pp4-dp1-tp1-mb8".into(),
        };
        let profile = StoredProfile { key, measured_unix_s: 1000, bytes: 12_001 };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + 7300);
        insta::assert_snapshot!(render(&[profile], now, Look::default()));
    }
}
