//! `systemctl reload` and `pfoctl doctor` under a real systemd, whose sandbox and states only it knows.

use pfo_tests::{Container, Debian, Ran, UNITS};
use serde_json::Value;

const CONFIG: &str = "/etc/pfo/pfod.toml";

fn property(debian: &Container, name: &str) -> String {
    let shown = debian.run(&format!("systemctl show --value --property={name} pfod")).printed();
    shown.trim().to_owned()
}

fn a_reload_succeeds_or_says_why_not(debian: Debian) {
    let Some(debian) = Container::boot(debian) else { return };
    debian.install_pfo("2xA40");
    // Whoever owns it chooses the library that root loads.
    assert_eq!(debian.run("stat --format=%U:%a /etc/pfo").stdout, "root:755\n");
    debian
        .run(&format!("mkdir -p /etc/pfo && echo '[[rule]]\nallow = false' > {CONFIG}"))
        .printed();
    debian.run("systemctl reload pfod").printed();
    assert_eq!(property(&debian, "ActiveState"), "active");
    let explained = debian.run("pfoctl policy explain");
    assert_eq!(explained.code, Some(4), "{explained:?}");
    assert!(explained.stdout.contains(&format!("{CONFIG}, line 1")), "{explained:?}");

    debian.run(&format!("echo oops >> {CONFIG}")).printed();
    let refused = debian.run("systemctl reload pfod");
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert_eq!(property(&debian, "ActiveState"), "active");
    let place = format!("{CONFIG}, line 3, column 5: ");
    assert!(debian.journal("--unit=pfod").contains(&place));
    assert!(property(&debian, "StatusText").contains(&place));

    // A signal has no answer, but the same effect.
    debian.run(&format!("sed -i 's/^allow.*/allow = true/; /oops/d' {CONFIG}")).printed();
    debian
        .run(
            "systemctl kill --kill-whom=main --signal=HUP pfod || systemctl kill --kill-who=main \
                --signal=HUP pfod",
        )
        .printed();
    let allowed = "for i in $(seq 100); do pfoctl policy explain && exit; sleep 0.1; done; exit 1";
    debian.run(allowed).printed();
    assert_eq!(property(&debian, "StatusText"), "");
    assert_eq!(
        (property(&debian, "ActiveState"), property(&debian, "NRestarts")),
        ("active".into(), "0".into())
    );
}

fn a_group_of_the_configuration_opens_its_socket_or_the_reload_says_how(debian: Debian) {
    let Some(debian) = Container::boot(debian) else { return };
    debian.install_pfo("2xA40");
    let configure = format!(
        "groupadd hpc && useradd --groups hpc dora && mkdir -p /etc/pfo && \
         printf '[groups]\\ntrainers = \"hpc\"\\n' | tee {CONFIG} /etc/pfo/agent.toml"
    );
    debian.run(&configure).printed();
    let refused = debian.run("pfoctl reload");
    assert_ne!(refused.code, Some(0), "{refused:?}");
    let units = "pfod.socket pfo-agent.socket";
    for named in ["group hpc", "/run/pfo/pfod.sock", "SocketGroup=hpc", units] {
        assert!(refused.stderr.contains(named), "{named}: {refused:?}");
    }
    assert!(debian.run("pfoctl doctor").stdout.contains("SocketGroup=hpc"));
    assert_ne!(debian.run_as("dora", "pfoctl status").code, Some(0));

    // `systemctl edit` is for people.
    let edit = "for unit in UNITS; do mkdir -p /etc/systemd/system/$unit.d && \
                printf '[Socket]\nSocketGroup=hpc\n' >/etc/systemd/system/$unit.d/override.conf; \
                done; systemctl daemon-reload && systemctl restart UNITS";
    debian.run(&edit.replace("UNITS", units)).printed();
    debian.run_as("dora", "pfoctl status").printed();
    debian.run_as("dora", "pfoctl profile list").printed();
    debian.run("pfoctl reload").printed();
    // The journal has the refusal for a day.
    let found = debian.run("pfoctl doctor --json").json();
    let found = found.as_array().unwrap().iter().filter(|finding| finding["check"] != "journal");
    assert_eq!(found.filter(|finding| finding.to_string().contains("SocketGroup")).count(), 0);
}

/// What each check said that has to do with the daemon, its unit and its sockets.
fn findings(ran: &Ran) -> Vec<(String, String)> {
    const CHECKS: [&str; 6] = ["unit", "daemon", "capability", "sockets", "groups", "ledger"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = ran.json();
    let findings = findings.as_array().unwrap().iter();
    let found = findings.map(|finding| (text(&finding["check"]), text(&finding["level"])));
    found.filter(|(check, level)| CHECKS.contains(&check.as_str()) && level != "ok").collect()
}

fn a_doctor_finds_what_somebody_changed(debian: Debian) {
    let Some(debian) = Container::boot(debian) else { return };
    debian.install_pfo("2xA40");
    // As a package would: not as an administrator's own units.
    let units = format!(
        "mkdir -p /usr/lib/systemd/system && systemctl disable {UNITS} && \
                         mv /etc/systemd/system/pfo* /usr/lib/systemd/system/ && systemctl daemon-reload && \
                         useradd --groups pfo alice && useradd bob"
    );
    debian.run(&units).printed();
    let found = |wanted: &[(&str, &str)], who: &str| {
        let ran = debian.run_as(who, "pfoctl doctor --json");
        let findings = findings(&ran);
        let findings: Vec<_> = findings.iter().map(|(c, l)| (c.as_str(), l.as_str())).collect();
        assert_eq!(findings, wanted, "{who}: {ran:?}");
    };
    found(&[], "root");
    found(&[], "alice");
    found(&[("groups", "wrong"), ("daemon", "unknown"), ("groups", "wrong")], "bob");

    debian.run("mkdir -p /etc/systemd/system/pfod.service.d && \
                printf '[Service]\nCapabilityBoundingSet=\n' > /etc/systemd/system/pfod.service.d/a.conf && \
                systemctl daemon-reload && systemctl restart pfod").printed();
    found(&[("unit", "warning"), ("unit", "wrong"), ("capability", "wrong")], "root");

    debian
        .run(
            &"systemctl revert pfod && systemctl daemon-reload && \
                systemctl stop UNITS"
                .replace("UNITS", UNITS),
        )
        .printed();
    found(&[("unit", "wrong"), ("daemon", "wrong"), ("unit", "wrong")], "root");
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_12_a_reload_succeeds_or_says_why_not() {
    a_reload_succeeds_or_says_why_not(Debian::Bookworm);
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_13_a_reload_succeeds_or_says_why_not() {
    a_reload_succeeds_or_says_why_not(Debian::Trixie);
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_12_a_doctor_finds_what_somebody_changed() {
    a_doctor_finds_what_somebody_changed(Debian::Bookworm);
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_13_a_doctor_finds_what_somebody_changed() {
    a_doctor_finds_what_somebody_changed(Debian::Trixie);
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_12_a_group_of_the_configuration_opens_its_socket_or_the_reload_says_how() {
    a_group_of_the_configuration_opens_its_socket_or_the_reload_says_how(Debian::Bookworm);
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn on_debian_13_a_group_of_the_configuration_opens_its_socket_or_the_reload_says_how() {
    a_group_of_the_configuration_opens_its_socket_or_the_reload_says_how(Debian::Trixie);
}
