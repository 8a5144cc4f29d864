//! `pfoctl profile list` and `export`: the profiles that the daemon stored.

use std::time::{Duration, SystemTime};

use clap::Args;
use pfo_protocol::{
    JobName, JobSelector, ProfileKey, ProfileSelector, Request, Response, StoredProfile,
};

use crate::connection::Connection;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::plan::file;
use crate::socket::Sockets;
use crate::status::quantity::span;
use crate::status::table::{Cell, Table, heading};
use crate::user;

/// List the profiles that are stored
#[derive(Args)]
pub(crate) struct List {
    /// Print JSON: an array of what each is of, when it was measured and how large it is
    #[arg(long)]
    json: bool,
}

/// Write a stored profile, or that of a sweep under way, for `plan optimize` and the like
#[derive(Args)]
pub(crate) struct Export {
    /// What was trained: the job's name, or what `profile start --model` called it
    #[arg(value_name = "MODEL")]
    model: JobName,

    /// On which GPUs, if there is more than one, as `profile list` names them
    #[arg(long, value_name = "GPUS")]
    gpus: Option<String>,

    /// In which partition, if there is more than one, as `profile list` names them
    #[arg(long, value_name = "PARTITION")]
    partition: Option<String>,

    /// What the sweep of the job of that name has measured so far. A column `incomplete` says of each row
    /// how many clocks that is of how many
    #[arg(long, conflicts_with_all = ["gpus", "partition"])]
    so_far: bool,

    /// Whose, by name or number [default: your own; for an administrator the only one of that model]
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    user: Option<u32>,

    /// The file to write; - is standard output
    #[arg(short, long, value_name = "PROFILE.csv", default_value = "-")]
    output: String,
}

impl List {
    pub(super) fn run(&self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let mut connection = Connection::open(sockets)?;
        let look = output.look();
        match connection.ask(Request::Profiles)? {
            Response::Profiles(profiles) if self.json => output.json(&profiles),
            Response::Profiles(profiles) => {
                output.text(&render(&profiles, SystemTime::now(), look))
            }
            other => Err(connection.other_answer(&format!("{other:?}"))),
        }
    }
}

impl Export {
    pub(super) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let mut connection = Connection::open(sockets)?;
        let Self { model, gpus, partition, user: uid, so_far, .. } = self;
        let request = match so_far {
            true => Request::SweepRead(JobSelector { job: model, uid }),
            false => Request::ProfileRead(ProfileSelector { model, uid, gpus, partition }),
        };
        let csv = match connection.ask(request)? {
            Response::Profile { csv, .. } => String::from_utf8_lossy(&csv).into_owned(),
            Response::Swept { sweep, csv } => {
                let mark = format!("{} of {}", sweep.measured, sweep.clocks);
                with_column(&String::from_utf8_lossy(&csv), "incomplete", &mark)
            }
            other => return Err(connection.other_answer(&format!("{other:?}"))),
        };
        if self.output == "-" {
            return output.text(&csv);
        }
        Ok(file::write(&self.output, csv.as_bytes())?)
    }
}

/// The lines of a CSV, none of which the daemon writes in quotes, with one more column.
fn with_column(csv: &str, name: &str, field: &str) -> String {
    let fields = std::iter::once(name).chain(std::iter::repeat(field));
    csv.lines().zip(fields).map(|(line, field)| format!("{line},{field}\n")).collect()
}

/// What a profile is of, in words.
pub(crate) fn described(key: &ProfileKey) -> String {
    let ProfileKey { model, gpus, partition, .. } = key;
    format!("the profile of {model} on {gpus} ({partition})")
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
    use super::*;

    #[test]
    fn a_list_names_what_export_needs_to_be_told() {
        let key = ProfileKey {
            uid: 4_000_000_001,
            model: "gpt-7b".parse().unwrap(),
            gpus: "NVIDIA-A100".into(),
            partition: "pp4-dp1-tp1-mb8".into(),
        };
        let profile = StoredProfile { key, measured_unix_s: 1000, bytes: 12_001 };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + 7300);
        let list = render(&[profile], now, Look::default());
        for part in ["gpt-7b", "NVIDIA-A100", "pp4-dp1-tp1-mb8", "2 h 1 min ago", "13 kB"] {
            assert!(list.contains(part), "{part}: {list}");
        }
    }
}
