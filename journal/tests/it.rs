//! `pfo-journal` over journal files that `systemd-journal-remote` writes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use serde_json::Value;

/// Where Debian and others have it.
const WRITERS: [&str; 2] =
    ["/usr/lib/systemd/systemd-journal-remote", "/lib/systemd/systemd-journal-remote"];

const WARNING: &str = "4";
const NOTICE: &str = "5";

/// A journal to be written, in the export format of systemd.
struct Journal {
    directory: tempfile::TempDir,
    entries: String,
    count: u64,
    now_s: u64,
}

impl Journal {
    /// An empty one; none, with the reason said, where nothing can write it.
    fn new() -> Option<Self> {
        if !WRITERS.iter().any(|writer| Path::new(writer).exists()) {
            eprintln!("skipped: systemd-journal-remote is not installed; `make setup` installs it");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        Some(Self { directory, entries: String::new(), count: 0, now_s })
    }

    fn add(&mut self, ago_s: u64, fields: &[(&str, &str)]) {
        self.count += 1;
        let (time_us, count) = ((self.now_s - ago_s) * 1_000_000, self.count);
        let boot = "f1a9c7c8d6e64b0f9a54a1d6a6d1b3c2";
        let cursor = format!("s={boot};i={count:x};b={boot};m={count:x};t={time_us:x};x={count:x}");
        write!(
            self.entries,
            "__CURSOR={cursor}\n__REALTIME_TIMESTAMP={time_us}\n\
             __MONOTONIC_TIMESTAMP={count}\n_BOOT_ID={boot}\n"
        )
        .unwrap();
        for (name, value) in fields {
            writeln!(self.entries, "{name}={value}").unwrap();
        }
        self.entries.push('\n');
    }

    /// An entry of `pfod`, which runs as root, or of another program with its name.
    fn add_of_pfod(&mut self, uid: &str, priority: &str, message: &str, job: &str) {
        let fields = [
            ("_UID", uid),
            ("_SYSTEMD_UNIT", "other.service"),
            ("SYSLOG_IDENTIFIER", "pfod"),
            ("PRIORITY", priority),
            ("MESSAGE", message),
            ("PFO_JOB", job),
            ("PFO_UID", "1000"),
            ("PFO_GPU_UUID", "GPU-1"),
        ];
        self.add(60, &fields);
    }

    fn write(&self) -> PathBuf {
        let export = self.directory.path().join("export");
        fs::write(&export, &self.entries).unwrap();
        let file = self.directory.path().join("written.journal");
        // The writer would add to it.
        let _ = fs::remove_file(&file);
        let ran = WRITERS.iter().find_map(|writer| {
            let mut command = Command::new(writer);
            command.arg(format!("--output={}", file.display())).arg(&export);
            command.output().ok()
        });
        let ran = ran.unwrap();
        assert!(ran.status.success(), "{ran:?}");
        file
    }

    fn read(&self, options: &[&str]) -> Vec<Value> {
        let file = self.write();
        let ran = run(&file, options).unwrap();
        assert!(ran.status.success(), "{ran:?}");
        let printed = String::from_utf8(ran.stdout).unwrap();
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn run(file: &Path, options: &[&str]) -> io::Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pfo-journal"));
    command.arg("--file").arg(file).args(options).output()
}

fn messages(entries: &[Value]) -> Vec<&str> {
    entries.iter().map(|entry| entry["message"].as_str().unwrap()).collect()
}

#[test]
fn a_warning_is_printed_with_who_what_and_where() {
    let Some(mut journal) = Journal::new() else { return };
    journal.add_of_pfod("0", WARNING, "the clocks of GPU-1 are still locked", "train");
    let entries = journal.read(&[]);
    let expected = serde_json::json!({
        "time_us": (journal.now_s - 60) * 1_000_000, "daemon": "pfod", "priority": 4,
        "message": "the clocks of GPU-1 are still locked", "job": "train", "uid": 1000, "gpu": "GPU-1",
    });
    assert_eq!(entries, [expected]);
}

#[test]
fn the_newest_come_first_and_no_older_ones_than_asked() {
    let Some(mut journal) = Journal::new() else { return };
    for (hours, message) in [(30, "yesterday"), (3, "old"), (2, "newer"), (1, "newest")] {
        let fields = [
            ("_UID", "0"),
            ("SYSLOG_IDENTIFIER", "pfod"),
            ("PRIORITY", WARNING),
            ("MESSAGE", message),
        ];
        journal.add(hours * 3600, &fields);
    }
    assert_eq!(messages(&journal.read(&[])), ["newest", "newer", "old"]);
    assert_eq!(messages(&journal.read(&["--hours=48"])).len(), 4);
    assert_eq!(messages(&journal.read(&["--lines=2"])), ["newest", "newer"]);
}

#[test]
fn only_warnings_of_the_job_are_printed() {
    let Some(mut journal) = Journal::new() else { return };
    journal.add_of_pfod("0", WARNING, "of another job", "other");
    journal.add_of_pfod("0", WARNING, "of the job", "train");
    journal.add_of_pfod("0", NOTICE, "no warning", "train");
    assert_eq!(messages(&journal.read(&["--job=train", "--uid=1000"])), ["of the job"]);
    assert_eq!(journal.read(&["--job=train", "--uid=1001"]), [] as [Value; 0]);
    assert_eq!(journal.read(&[]).len(), 2);
}

#[test]
fn nobody_else_writes_in_the_name_of_a_daemon() {
    let Some(mut journal) = Journal::new() else { return };
    journal.add_of_pfod("1000", WARNING, "forged", "train");
    let unit = [("UNIT", "pfod.service"), ("PRIORITY", WARNING)];
    journal.add(60, &[&unit[..], &[("_PID", "4711"), ("MESSAGE", "forged")]].concat());
    journal.add(60, &[&unit[..], &[("_PID", "1"), ("MESSAGE", "systemd's")]].concat());
    assert_eq!(messages(&journal.read(&[])), ["systemd's"]);
}

#[test]
fn a_file_that_is_no_journal_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "no journal").unwrap();
    let ran = run(&file, &[]).unwrap();
    assert_eq!(ran.status.code(), Some(1));
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(said.starts_with("pfo-journal: cannot read the journal: "), "{said}");
}
