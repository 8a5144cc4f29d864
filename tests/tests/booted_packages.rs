//! The Debian packages, installed, upgraded, removed and purged in a booted Debian.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use pfo_tests::{
    Debian, MICROBATCHES, PROGRAMS, PackagedNode, STAGES, UNIT_COUNT, UNITS, on_both_debians, wait,
};
use serde_json::Value;

on_both_debians! {
    a_fresh_install_serves_only_members_of_its_groups
    the_units_are_as_systemd_wants_them
    a_stopped_daemon_stays_stopped_until_it_or_a_socket_is_started
    a_driver_that_comes_late_is_found_and_its_devices_are_allowed
    a_training_is_in_the_journal_with_who_what_and_where
    doctor_and_report_show_a_warning_about_a_job
    a_trainer_built_against_libpfo_dev_trains_with_libpfo0
    an_upgrade_restarts_the_daemon_and_nothing_else_changes
    a_downgrade_puts_a_later_ledger_of_savings_aside_and_an_upgrade_takes_it_back
    removal_during_training_frees_every_clock
    what_the_version_before_the_agent_measured_is_the_agents
    a_purge_leaves_nothing_but_the_groups
    a_purge_keeps_a_ledger_that_owes_something
}

/// A machine on which pfo is installed.
fn installed(debian: Debian) -> Option<PackagedNode> {
    let node = PackagedNode::boot(debian)?;
    node.install(&["pfod"]);
    node.add_users();
    Some(node)
}

fn a_fresh_install_serves_only_members_of_its_groups(debian: Debian) {
    let Some(node) = installed(debian) else { return };
    node.assert_serves();
}

fn the_units_are_as_systemd_wants_them(debian: Debian) {
    let Some(node) = installed(debian) else { return };
    let verified = node.debian.run(&format!("systemd-analyze verify --man=no {UNITS}"));
    // systemd 252 ignores these two, and says so.
    let pauses = ["'RestartSteps'", "'RestartMaxDelaySec'"];
    let known = |line: &&str| pauses.iter().any(|key| line.contains(key));
    let problems: Vec<_> = verified.stderr.lines().filter(|line| !known(line)).collect();
    assert_eq!((verified.code, problems), (Some(0), Vec::new()));
    // In tenths of 10.
    for (unit, exposure) in [("pfod.service", 15), ("pfo-agent.service", 10)] {
        let analyze = format!("systemd-analyze security --threshold={exposure} {unit}");
        node.debian.run(&analyze).printed();
    }
    // The driver's library looks there, and so does pfod.
    let seen = "nsenter --mount --target $(systemctl show --property=MainPID --value pfod.service)";
    node.debian.run(&format!("{seen} cat /proc/devices >/dev/null")).printed();
    let catalog = node.debian.run("journalctl --list-catalog").printed();
    assert!(catalog.contains("pfo: Job @PFO_JOB@ changes its plan"), "{catalog}");
    assert_eq!(node.debian.run("dpkg --verify pfod").printed(), "");
}

fn a_stopped_daemon_stays_stopped_until_it_or_a_socket_is_started(debian: Debian) {
    let Some(node) = installed(debian) else { return };
    let states = || node.debian.run("systemctl is-active pfod.service pfod.socket").stdout;
    node.debian.run("systemctl stop pfod.service").printed();
    wait::until_ok("its sockets are stopped with it", || match states().as_str() {
        "inactive\ninactive\n" => Ok(()),
        other => Err(other.to_owned()),
    });
    assert_ne!(node.debian.run_as("alice", "pfoctl status").code, Some(0));
    assert_eq!(states(), "inactive\ninactive\n");
    node.debian.run("systemctl start pfod.service").printed();
    node.debian.run_as("alice", "pfoctl status").printed();
    node.debian.run("systemctl stop pfod.service && systemctl start pfod.socket").printed();
    node.debian.run_as("alice", "pfoctl status").printed();
    assert_eq!(states(), "active\nactive\n");
}

fn a_driver_that_comes_late_is_found_and_its_devices_are_allowed(debian: Debian) {
    let Some(node) = PackagedNode::without_driver(debian) else { return };
    let debian = &node.debian;
    // The kernel knows neither device: opening one fails in another way if it is not even allowed.
    debian.run("mknod /dev/nvidiactl c 195 255; mknod /dev/foreign c 60 0").printed();
    node.install(&["pfod"]);
    let status = debian.run("pfoctl status");
    assert!(status.stdout.contains("libnvidia-ml.so.1"), "{status:?}");

    let cgroup = "/sys/fs/cgroup/system.slice/pfod.service/cgroup.procs";
    let open = |device| debian.run(&format!("echo $$ >{cgroup}; exec 3<>{device}")).stderr;
    assert!(open("/dev/foreign").contains("Operation not permitted"));
    assert!(open("/dev/nvidiactl").contains("No such device"));

    let started = node.daemon();
    node.install_driver();
    wait::until_ok("the daemon finds the driver", || {
        let status = debian.run("pfoctl status");
        if status.stdout.contains("A40") { Ok(()) } else { Err(status.stdout) }
    });
    assert_eq!(node.daemon(), started, "it took a new daemon");
}

/// `MESSAGE_ID` of a lease that is given, as administrators search for it.
const LEASED: &str = "68a35a0d90d845e5859f688b637bab95";

/// `MESSAGE_ID` of a lease that ends.
const LEASE_ENDED: &str = "bc461f6ca8594a208bedf29a45bddd0f";

fn a_training_is_in_the_journal_with_who_what_and_where(debian: Debian) {
    let Some(node) = installed(debian) else { return };
    node.train("training", "alice");
    node.debian.run("systemctl stop training").printed();
    node.assert_nothing_locked();
    let uid = node.debian.run("id --user alice").printed();
    for id in [LEASED, LEASE_ENDED] {
        let entries = node.debian.journal(&format!("--output=json MESSAGE_ID={id}"));
        let entries: Vec<Value> =
            entries.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(entries.len(), node.machine.gpu_count(), "{id}");
        for entry in entries {
            assert_eq!(
                (&entry["PFO_JOB"], &entry["PFO_UID"]),
                (&"training".into(), &uid.trim().into())
            );
            assert!(entry["PFO_PID"].is_string(), "{entry}");
            assert!(entry["PFO_GPU_UUID"].as_str().unwrap().starts_with("GPU-"), "{entry}");
            assert_eq!(entry["PFO_OLD_MHZ"].is_string(), id == LEASE_ENDED, "{entry}");
        }
    }
    let explained = node.debian.journal("--catalog --unit=pfod");
    assert!(explained.contains("The lease of GPU GPU-"), "{explained}");
}

fn doctor_and_report_show_a_warning_about_a_job(debian: Debian) {
    let Some(node) = installed(debian) else { return };
    node.train("training", "alice");
    // The GPUs are leased, so its sessions are refused.
    let again = format!(
        "{PROGRAMS}/pfo-sim-trainer launch --time-scale 0.02 --job training --steps 1 \
         --stages {STAGES} --microbatches {MICROBATCHES}"
    );
    node.debian.run_as("alice", &again);
    let refused = "refused a session on GPU";
    // Of many warnings, the text has the newest.
    let seen = node.debian.run("pfoctl doctor --json");
    assert!(seen.stdout.contains(refused), "{seen:?}");
    let report = "pfoctl report training --observe 0 -o /tmp/page.html && cat /tmp/page.html";
    let page = node.debian.run(report).printed();
    assert!(page.contains(refused), "{page}");
    let closed = node.debian.run_as("alice", "pfoctl doctor");
    assert!(closed.stdout.contains("user alice may not read the journal"), "{closed:?}");
    node.debian.run("usermod --append --groups systemd-journal alice").printed();
    let opened = node.debian.run_as("alice", "pfoctl doctor --json");
    assert!(opened.stdout.contains(refused), "{opened:?}");
}

fn a_trainer_built_against_libpfo_dev_trains_with_libpfo0(debian: Debian) {
    let Some(node) = installed(debian) else { return };
    node.build_trainer();
    let missing = node.train_in_c("alice", "");
    assert!(missing.stderr.contains("libpfo.so.0"), "without libpfo0: {missing:?}");
    node.install(&["libpfo0"]);
    let said = node.train_in_c("alice", "");
    assert_eq!(said.stderr, "");
    assert_eq!((&said.json()["problem"], &said.json()["connected"]), (&0.into(), &true.into()));
}

fn an_upgrade_restarts_the_daemon_and_nothing_else_changes(debian: Debian) {
    let Some(node) = installed(debian) else { return };
    let debian = &node.debian;
    debian.run("echo '[limits]\nconnections = 77' >/etc/pfo/pfod.toml").printed();
    debian.run("systemctl disable --now pfod-admin.socket; systemctl restart pfod.service");
    node.train("training", "alice");
    let before = node.lasting();
    let daemon = node.daemon();

    let next = "cd /shared && dpkg-deb --raw-extract pfod.deb next && \
                sed -i 's/^Version: .*/Version: 99-1/' next/DEBIAN/control && \
                echo '# more' >>next/etc/pfo/pfod.toml && \
                dpkg-deb -Znone --build next next.deb && \
                dpkg --force-confold --install next.deb";
    debian.run(next).printed();
    assert_eq!(node.lasting(), before);
    assert_ne!(node.daemon(), daemon, "the old daemon runs on");
    node.until_locked();
    let job = wait::until(|| {
        let job = debian.pfo_status()["jobs"][0].take();
        let on_plan = |ranks: &Vec<Value>| ranks.iter().all(|rank| rank["plan"] == 1);
        if job["ranks"].as_array().is_some_and(on_plan) { Ok(job) } else { Err(job) }
    })
    .unwrap_or_else(|job| panic!("the plan is lost: {job}"));
    let windows = job["windows"].as_array().unwrap().iter();
    let mut at_default_clocks = windows.filter(|window| window["plan"].is_null());
    assert!(at_default_clocks.all(|window| window["steps"].as_u64() <= Some(1)), "{job}");
    debian.run("systemctl stop training").printed();
    node.assert_nothing_locked();
}

/// Of the ledger of savings.
const LEDGER_OF_SAVINGS: &str = "/var/lib/pfo-agent/ledger";

fn a_downgrade_puts_a_later_ledger_of_savings_aside_and_an_upgrade_takes_it_back(debian: Debian) {
    let Some(node) = installed(debian) else { return };
    let debian = &node.debian;
    let savings = || {
        let printed = debian.run_as("root", "pfoctl savings --json").printed();
        serde_json::from_str::<Value>(&printed).unwrap()
    };
    // A job that ends within seconds may leave nothing: the agent looks at it every few seconds.
    let entries = [10, 30, 60].into_iter().find_map(|runs_s| {
        let unit = format!("training-{runs_s}");
        node.train(&unit, "alice");
        sleep(Duration::from_secs(runs_s));
        let jobs = debian.pfo_status()["jobs"].take();
        let windows =
            jobs.as_array().into_iter().flatten().filter_map(|job| job["windows"].as_array());
        let of_plan =
            |window: &Value| !window["plan"].is_null() && window["steps"].as_u64() > Some(4);
        assert!(windows.flatten().any(of_plan), "no step of the plan was measured: {jobs}");
        debian.run(&format!("systemctl stop {unit}")).printed();
        wait::until(|| savings()["entries"].as_u64().filter(|entries| *entries > 0).ok_or(())).ok()
    });
    let entries = entries.expect("the job is in the ledger");
    // What a later release leaves behind: its package and its format.
    let agent = "pfo-agent.socket pfo-agent-admin.socket pfo-agent.service";
    let version = |number: u32| {
        format!(
            "python3 -c 'import sqlite3; of = sqlite3.connect(\"{LEDGER_OF_SAVINGS}/ledger.sqlite\"); \
             of.execute(\"PRAGMA user_version = {number}\"); of.commit()'"
        )
    };
    let later = "cd /shared && dpkg-deb --raw-extract pfod.deb later && \
                 sed -i 's/^Version: .*/Version: 99-1/' later/DEBIAN/control && \
                 dpkg-deb -Znone --build later later.deb && dpkg --install later.deb";
    debian.run(later).printed();
    debian.run(&format!("systemctl stop {agent} && {}", version(99))).printed();
    debian.run("dpkg --install /shared/pfod.deb").printed();
    node.assert_serves();
    let after = savings();
    assert_eq!(after["entries"], 0, "{after}");
    let problem = after["ledger_problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("its version is 99") && problem.contains("unreadable-"), "{problem}");
    let journal = debian.journal("--unit=pfo-agent");
    assert!(journal.contains("its version is 99"), "{journal}");
    // The later release again, and what the page about savings says.
    debian.run("dpkg --install /shared/later.deb").printed();
    let back = format!(
        "systemctl stop {agent} && cd {LEDGER_OF_SAVINGS} && mv ledger.sqlite ledger.of-the-downgrade && \
         mv ledger.unreadable-* ledger.sqlite && {} && systemctl start {agent}",
        version(3)
    );
    debian.run(&back).printed();
    let again = savings();
    assert_eq!((&again["entries"], &again["ledger_problem"]), (&entries.into(), &Value::Null));
}

fn removal_during_training_frees_every_clock(debian: Debian) {
    let Some(node) = installed(debian) else { return };
    node.train("training", "alice");
    node.debian.run("dpkg --remove pfod").printed();
    node.assert_nothing_locked();
    assert_eq!(node.debian.run("systemctl is-active training").printed(), "active\n");
    assert!(node.debian.file("/etc/pfo/pfod.toml").exists());
    let units = node.debian.run(&format!("systemctl is-active {UNITS}")).stdout;
    assert_eq!(units, "inactive\n".repeat(UNIT_COUNT));
}

fn what_the_version_before_the_agent_measured_is_the_agents(debian: Debian) {
    let Some(node) = PackagedNode::boot(debian) else { return };
    // P2P-blocking powers as version 0.1 kept them.
    let powers = r#"{"format": "pfo-p2p/1", "powers": []}"#;
    let former = node.debian.file("/var/lib/pfo/p2p.json");
    fs::create_dir_all(former.parent().unwrap()).unwrap();
    fs::write(&former, powers).unwrap();
    node.install(&["pfod"]);
    node.debian.run("pfoctl p2p show").printed();
    let moved = node.debian.run("stat --format='%U %a' /var/lib/pfo-agent/p2p.json").printed();
    assert!(moved.starts_with("pfo-agent "), "{moved}");
    assert!(!former.exists(), "it was copied, not moved");
    let journal = node.debian.journal("--unit=pfo-agent");
    assert!(!journal.contains("p2p.json"), "{journal}");
}

/// Every file of the system, but for records of what was installed and logged.
fn files(node: &PackagedNode) -> Vec<String> {
    let list = "find / -xdev -path /var/lib/dpkg -prune -o -path /var/log -prune -o \
                -path /var/cache -prune -o -print; find /run/pfo";
    let mut files: Vec<_> = node.debian.run(list).stdout.lines().map(str::to_owned).collect();
    files.sort_unstable();
    files
}

fn a_purge_leaves_nothing_but_the_groups(debian: Debian) {
    let Some(node) = PackagedNode::boot(debian) else { return };
    let before = files(&node);
    node.install(&["pfod", "libpfo0", "libpfo-dev"]);
    node.train("training", "root");
    fs::create_dir_all(node.debian.file("/var/lib/pfo")).unwrap();
    for file in ["/var/lib/pfo/profile.csv", "/var/lib/pfo-agent/p2p.json"] {
        fs::write(node.debian.file(file), "").unwrap();
    }
    node.debian.run("dpkg --purge pfod libpfo-dev libpfo0").printed();
    let after = files(&node);
    let left: Vec<_> = after.iter().filter(|file| !before.contains(file)).collect();
    assert!(left.is_empty(), "left behind: {left:#?}");
    assert_eq!(
        node.debian.run("getent group pfo pfo-admin pfo-agent").printed().lines().count(),
        3
    );
    node.assert_nothing_locked();
}

fn a_purge_keeps_a_ledger_that_owes_something(debian: Debian) {
    let Some(node) = installed(debian) else { return };
    let purge = || {
        let purged = node.debian.run("dpkg --purge pfod");
        assert_eq!(purged.code, Some(0), "{purged:?}");
        assert!(purged.stderr.contains("the ledger in /run/pfo is kept"), "{purged:?}");
    };
    node.train("training", "root");
    node.machine.fault("*", "gpu-is-lost", Some(0));
    purge();
    assert_eq!(node.ledger_entries(), 1);
    assert!(node.machine.sm_lock(0).is_some(), "the fault has no effect");
    node.machine.clear_faults();
    node.install(&["pfod"]);
    node.debian.run("systemctl stop training").printed();
    node.assert_nothing_locked();

    // What nobody can read any more may owe anything.
    let ledger = node.debian.file("/run/pfo/ledger.json");
    node.debian.run("systemctl stop pfod.service").printed();
    fs::write(&ledger, "?").unwrap();
    purge();
    assert_eq!(fs::read_to_string(ledger.with_extension("damaged")).unwrap(), "?");
    node.install(&["pfod"]);
    node.debian.run("pfoctl clocks acknowledge && dpkg --purge pfod").printed();
    assert!(!ledger.parent().unwrap().exists(), "it owes nothing any more");
}
