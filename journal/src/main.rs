//! `pfo-journal`: prints the last warnings of `pfod` and `pfo-agent` in the systemd journal, the newest first, each as
//! one line of JSON. `pfoctl` runs it.
//!
//! It is a program of its own because it links libsystemd, which `pfoctl` must run without. It changes nothing.
#![forbid(unsafe_code)]

mod access;
mod reader;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::access::Obstacle;
use crate::reader::Wanted;

const SECONDS_OF_HOUR: u64 = 3600;

/// Print the last warnings of pfod and pfo-agent in the systemd journal
///
/// The newest is printed first, each as one line of JSON. The exit code is 66 if this machine has no journal, and 77 if
/// this user may not read it.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Only warnings about the job of this name
    #[arg(long)]
    job: Option<String>,

    /// Only warnings about this user
    #[arg(long)]
    uid: Option<u32>,

    /// How many hours to look back
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=8760))]
    hours: u64,

    /// How many lines to print at most
    #[arg(long, default_value_t = 1000)]
    lines: usize,

    /// A journal file to read instead of this machine's journal
    #[arg(long)]
    file: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Arguments { job, uid, hours, lines, file } = Arguments::parse();
    if file.is_none()
        && let Err(obstacle) = access::check()
    {
        eprintln!("pfo-journal: {obstacle}");
        return ExitCode::from(match obstacle {
            Obstacle::NoJournal => 66,
            Obstacle::NotAllowed => 77,
        });
    }
    let wanted = Wanted { job, uid, since_s: hours.saturating_mul(SECONDS_OF_HOUR), lines };
    match reader::print(file, &wanted, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pfo-journal: cannot read the journal: {error}");
            ExitCode::FAILURE
        }
    }
}
