//! `pfoctl doctor` on a node that is well, and on one that is not.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use pfo_tests::{FOREIGN_MHZ, Node, Ran, Rank, Setup, TestPlan, identity, programs};

const JOB: &str = "job";

const UNIT: &str = "LoadState=loaded\nActiveState=active\nResult=success\n\
    FragmentPath=/usr/lib/systemd/system/pfod.service\nDropInPaths=\nNeedDaemonReload=no\n\
    MainPID=0\nCapabilityBoundingSet=cap_sys_admin\nPrivateUsers=no\nPrivateDevices=no\n";

/// A node with the files of a driver and a systemd around it.
struct Patient {
    node: Node,
}

impl Patient {
    fn healthy() -> Self {
        let patient = Self { node: Node::create(&Setup::default()) };
        for directory in ["root/proc/driver/nvidia", "root/dev", "root/run/pfo", "bin"] {
            fs::create_dir_all(patient.file(directory)).unwrap();
        }
        fs::write(patient.file("root/proc/driver/nvidia/version"), "NVRM version: 570\n").unwrap();
        for device in ["root/dev/nvidiactl", "root/dev/nvidia0"] {
            symlink("/dev/null", patient.file(device)).unwrap();
        }
        symlink("/proc/sys", patient.file("root/proc/sys")).unwrap();
        symlink(patient.node.ledger(), patient.file("root/run/pfo/ledger.json")).unwrap();
        patient.systemd_says(UNIT);
        patient.program("pfo-journal", "");
        for gpu in 0..patient.node.machine.gpu_count() {
            patient.node.machine.gpu(gpu).set_persistence(true).unwrap();
        }
        patient
    }

    fn serving() -> Self {
        let mut patient = Self::healthy();
        patient.node.start_daemon();
        patient.node.start_agent();
        let pid = patient.node.daemon().process.pid().to_string();
        symlink(PathBuf::from("/proc").join(&pid), patient.file("root/proc").join(&pid)).unwrap();
        patient
    }

    fn file(&self, name: &str) -> PathBuf {
        self.node.directory().join(name)
    }

    fn systemd_says(&self, text: &str) {
        self.program("systemctl", &format!("cat <<'END'\n{text}END\n"));
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.file("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn examine(&self, arguments: &[&str]) -> Ran {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(programs::program("pfoctl"));
        command
            .args(["doctor", "--root"])
            .arg(self.file("root"))
            .arg("--nvml")
            .arg(self.node.machine.library())
            .args(arguments)
            .env("PATH", format!("{}:{path}", self.file("bin").display()))
            .env("PFO_SIM_STATE", self.node.machine.state())
            .env("TZ", "UTC")
            .env("PFO_JOURNAL", self.file("bin/pfo-journal"))
            .env("PFO_SOCKET", self.node.socket())
            .env("PFO_ADMIN_SOCKET", self.node.admin_socket());
        command.output().unwrap().into()
    }

    /// The checks that found something, with how bad it is; and the exit code.
    fn complaints(&self) -> (Option<i32>, Vec<(String, String)>) {
        let ran = self.examine(&["--json"]);
        let findings = ran.json();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let complaint = |finding: &serde_json::Value| {
            let level = text(&finding["level"]);
            // Whoever runs the tests is nobody's member; without root its daemon is not privileged, and
            // has no administrators.
            let check = text(&finding["check"]);
            let without_root = check == "capability"
                || text(&finding["message"]).contains(&identity::group_names().1);
            let of_tester = check == "groups" || (without_root && !identity::is_root());
            // No job has run here that could have shown how the GPUs change their clocks.
            let of_new_node = check == "calibration" && level == "unknown";
            let fine = level == "ok" || of_tester || of_new_node;
            assert!(level == "ok" || finding["remedy"].is_string(), "{finding}");
            (!fine).then(|| (text(&finding["check"]), level))
        };
        (ran.code, findings.as_array().unwrap().iter().filter_map(complaint).collect())
    }

    fn assert_found(&self, code: i32, expected: &[(&str, &str)]) {
        let (found_code, found) = self.complaints();
        let found: Vec<_> = found.iter().map(|(c, l)| (c.as_str(), l.as_str())).collect();
        assert_eq!(found, expected);
        assert!(found_code == Some(code) || !identity::is_root(), "{found_code:?}");
    }
}

#[test]
fn nothing_is_wrong_on_a_node_that_is_well() {
    let patient = Patient::serving();
    let rank = Rank::open(&patient.node, JOB, 0, 1, 2);
    patient.node.take_up(JOB, &TestPlan::new(1, 2, |_, _| 900));
    rank.session.step_begin();
    patient.node.until_is("the lock", &Some(900), || patient.node.machine.sm_lock(0));
    patient.assert_found(0, &[]);
    let ran = patient.examine(&[]);
    for said in ["kernel-module: 570\n", " lists 4 GPUs\n", "CAP_SYS_ADMIN", "daemon: pfod "] {
        assert!(ran.stdout.contains(said), "{said}: {ran:?}");
    }
}

#[test]
fn what_the_driver_tells_of_gpus_is_found() {
    let patient = Patient::serving();
    let machine = &patient.node.machine;
    machine.gpu(0).set_persistence(false).unwrap();
    patient.node.lock_by_another_tool(1);
    machine.gpu(2).cap_power(Some(nvidia_ml::units::Milliwatts(150_000))).unwrap();
    let _work = machine.compute(2);
    patient.node.until_so("the lock is in force", || {
        let complaints = patient.complaints().1;
        complaints.iter().any(|(check, _)| check == "foreign-lock")
    });
    let expected = ["persistence", "foreign-lock", "power-limit", "throttled"];
    patient.assert_found(0, &expected.map(|check| (check, "warning")));
    let ran = patient.examine(&[]);
    assert!(ran.stdout.contains(&format!("it idles at {FOREIGN_MHZ} MHz")), "{ran:?}");
}

#[test]
fn what_systemd_and_the_daemon_tell_is_found() {
    let mut patient = Patient::serving();
    patient.systemd_says(&UNIT.replace("DropInPaths=", "DropInPaths=/etc/x.conf"));
    let config = fs::read_to_string(patient.node.config()).unwrap();
    fs::write(patient.node.config(), config + "oops").unwrap();
    patient.node.daemon().process.signal(Signal::SIGHUP);
    patient
        .node
        .until_so("the file is refused", || patient.node.status().daemon.config.refused.is_some());
    let both_units = [("unit", "warning"), ("configuration", "wrong"), ("unit", "warning")];
    patient.assert_found(1, &both_units);
    let ran = patient.examine(&[]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("wrong on this node"), "{ran:?}");
}

#[test]
fn without_a_daemon_the_reason_is_looked_for_and_what_it_left_locked() {
    let mut patient = Patient::serving();
    let rank = Rank::open(&patient.node, JOB, 0, 1, 2);
    patient.node.take_up(JOB, &TestPlan::new(1, 2, |_, _| 900));
    rank.session.step_begin();
    patient.node.until_is("the lock", &Some(900), || patient.node.machine.sm_lock(0));
    patient.node.kill_daemon();
    drop(rank);
    patient.systemd_says(&UNIT.replace("ActiveState=active", "ActiveState=failed"));
    patient.program("pfod", "echo 'pfod: /etc/pfo/pfod.toml, line 3, column 1: no' >&2; exit 78");
    // The second unit is that of the agent, which misses pfod.
    let everything = ["unit", "daemon", "configuration", "ledger", "unit", "agent"];
    patient.assert_found(1, &everything.map(|check| (check, "wrong")));
    let ran = patient.examine(&[]);
    for said in [
        "refused: /etc/pfo/pfod.toml, line 3, column 1: no\n",
        &format!("left locked by a pfod that has ended: {}\n", patient.node.machine.uuid(0)),
        "`pfod --restore-only`",
    ] {
        assert!(ran.stdout.contains(said), "{said}: {ran:?}");
    }
}

#[test]
fn without_a_driver_nothing_else_is_missed() {
    let patient = Patient::serving();
    fs::remove_file(patient.node.machine.library()).unwrap();
    fs::remove_dir_all(patient.file("root/proc/driver")).unwrap();
    patient.assert_found(1, &[("kernel-module", "wrong"), ("driver", "wrong")]);
}

/// What `pfoctl doctor` says of the journal where the program that reads it is this script.
fn said_of_the_journal(patient: &Patient, script: &str) -> String {
    patient.program("pfo-journal", script);
    let ran = patient.examine(&[]).stdout;
    let lines = ran.lines().skip_while(|line| !line.contains(" journal: "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// A script that prints warnings of a second each, the newest first; equal but for the time.
fn warns(daemon: &str, message: &str, count: u32) -> String {
    format!(
        "for n in $(seq {count}); do printf '%s\n' '{{\"time_us\":1795871405000000,\
         \"daemon\":\"{daemon}\",\"message\":\"{message}\"}}'; done\n"
    )
}

#[test]
fn the_last_warnings_of_both_daemons_are_shown_and_equal_ones_once() {
    let patient = Patient::healthy();
    let script = warns("pfod", "GPU 0 is hot", 1000) + &warns("pfo-agent", "rank 3 is slow", 1);
    let said = said_of_the_journal(&patient, &script);
    let expected = "warning  journal: pfod, Nov 28 13:10:05, the last of 1000 times: GPU 0 is hot\n         \
                    `journalctl --catalog --unit=pfod` explains it\n\
                    warning  journal: pfo-agent, Nov 28 13:10:05: rank 3 is slow\n         \
                    `journalctl --catalog --unit=pfo-agent` explains it\n";
    assert_eq!(said, expected);
    let findings = patient.examine(&["--json"]).json();
    let of_journal = |finding: &&serde_json::Value| finding["check"] == "journal";
    assert_eq!(findings.as_array().unwrap().iter().filter(of_journal).count(), 2);
}

#[test]
fn a_warning_moves_no_cursor() {
    let said = said_of_the_journal(&Patient::healthy(), &warns("pfod", r"\u001b[2J\u202egone", 1));
    assert!(said.contains(r": \u{1b}[2J\u{202e}gone"), "{said}");
}

#[test]
fn a_reader_that_prints_something_else_is_named() {
    let said = said_of_the_journal(&Patient::healthy(), "echo oops");
    assert!(said.contains("bin/pfo-journal printed something that is no entry"), "{said}");
}

#[test]
fn a_reader_that_hangs_is_named() {
    let said = said_of_the_journal(&Patient::healthy(), "exec sleep 1000");
    assert!(said.contains("bin/pfo-journal did not end within 5 s"), "{said}");
}

#[test]
fn who_may_not_read_the_journal_learns_the_group() {
    let said = said_of_the_journal(&Patient::healthy(), "exit 77");
    assert!(said.starts_with("unknown  journal: user "), "{said}");
    assert!(said.contains("usermod -aG systemd-journal "), "{said}");
}

#[test]
fn without_a_reader_the_package_is_named() {
    let patient = Patient::healthy();
    fs::remove_file(patient.file("bin/pfo-journal")).unwrap();
    let said = patient.examine(&[]).stdout;
    assert!(
        said.contains("journal: pfo-journal, which reads the journal, is not installed"),
        "{said}"
    );
}
