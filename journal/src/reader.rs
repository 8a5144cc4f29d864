//! What the journal has of both daemons. Any user may write an entry that names `pfod`; only those count whose writer
//! journald itself knows to be the daemon, or systemd.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::unistd::User;
use serde::Serialize;
use systemd::journal::{JournalRef, OpenFilesOptions, OpenOptions};

/// Each daemon, and the account that it runs as.
const DAEMONS: [(&str, &str); 2] = [("pfod", "root"), ("pfo-agent", "pfo-agent")];

/// Priorities of syslog up to `warning`.
const PRIORITIES: [&str; 5] = ["0", "1", "2", "3", "4"];

/// The most of a field that is read, in bytes.
const LONGEST_FIELD: usize = 4096;

const MICROSECONDS: u64 = 1_000_000;

/// Which warnings to print.
pub(crate) struct Wanted {
    pub(crate) job: Option<String>,
    pub(crate) uid: Option<u32>,
    /// How far to look back, in seconds.
    pub(crate) since_s: u64,
    pub(crate) lines: usize,
}

/// One line of the output.
#[derive(Serialize)]
struct Entry {
    /// Microseconds since 1970.
    time_us: u64,
    daemon: String,
    priority: u8,
    message: String,
    job: Option<String>,
    uid: Option<u32>,
    gpu: Option<String>,
}

/// Prints the newest warnings, the newest first.
///
/// # Errors
/// If the journal cannot be read, or the output not be written.
pub(crate) fn print(
    file: Option<PathBuf>,
    wanted: &Wanted,
    output: &mut impl Write,
) -> io::Result<()> {
    let mut journal = match file {
        Some(file) => {
            OpenFilesOptions::default().open_files([file.into_os_string().into_encoded_bytes()])?
        }
        None => OpenOptions::default().system(true).local_only(true).open()?,
    };
    journal.set_data_threshold(LONGEST_FIELD)?;
    choose(&mut journal, wanted)?;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let since_us = now_s.saturating_sub(wanted.since_s).saturating_mul(MICROSECONDS);
    journal.seek_tail()?;
    for _ in 0..wanted.lines {
        if journal.previous()? == 0 || journal.timestamp_usec()? < since_us {
            break;
        }
        serde_json::to_writer(&mut *output, &entry(&mut journal)?)?;
        output.write_all(b"\n")?;
    }
    output.flush()
}

/// Leaves what the daemons wrote, and what systemd wrote about their units.
fn choose(journal: &mut JournalRef, wanted: &Wanted) -> io::Result<()> {
    for (daemon, account) in DAEMONS {
        let unit = format!("{daemon}.service");
        journal.match_add("SYSLOG_IDENTIFIER", daemon)?.match_add("_SYSTEMD_UNIT", &*unit)?;
        journal.match_or()?;
        journal.match_add("UNIT", unit)?.match_add("_PID", "1")?;
        journal.match_or()?;
        if let Ok(Some(account)) = User::from_name(account) {
            let uid = account.uid.to_string();
            journal.match_add("SYSLOG_IDENTIFIER", daemon)?.match_add("_UID", uid)?;
            journal.match_or()?;
        }
    }
    journal.match_and()?;
    for priority in PRIORITIES {
        journal.match_add("PRIORITY", priority)?;
    }
    if let Some(job) = &wanted.job {
        journal.match_add("PFO_JOB", &**job)?;
    }
    if let Some(uid) = wanted.uid {
        journal.match_add("PFO_UID", uid.to_string())?;
    }
    Ok(())
}

fn entry(journal: &mut JournalRef) -> io::Result<Entry> {
    let time_us = journal.timestamp_usec()?;
    let unit =
        field(journal, "UNIT").and_then(|unit| Some(unit.strip_suffix(".service")?.to_owned()));
    let daemon = unit.or_else(|| field(journal, "SYSLOG_IDENTIFIER")).unwrap_or_default();
    let priority = field(journal, "PRIORITY").and_then(|priority| priority.parse().ok());
    Ok(Entry {
        time_us,
        daemon,
        priority: priority.unwrap_or_default(),
        message: field(journal, "MESSAGE").unwrap_or_default(),
        job: field(journal, "PFO_JOB"),
        uid: field(journal, "PFO_UID").and_then(|uid| uid.parse().ok()),
        gpu: field(journal, "PFO_GPU_UUID"),
    })
}

/// A field of the entry; none if the entry lacks it, or its file is damaged there.
fn field(journal: &mut JournalRef, name: &str) -> Option<String> {
    let data = journal.get_data(name).ok()??;
    Some(String::from_utf8_lossy(data.value()?).into_owned())
}
