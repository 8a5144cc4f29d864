//! Daemons that are not there, may not be asked, or answer nonsense.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::fake_daemon::{FakeDaemon, no_jobs, pfoctl};
use crate::ran::Ran;
use nix::unistd::{Group, User};
use pfo_protocol::{
    AgentRequest, AgentResponse, DaemonMessage, RefusalCode, Request, Response, Unsupported,
};

fn gpus() -> FakeDaemon {
    FakeDaemon::answering(|request| match request {
        Request::Gpus => Response::Gpus(Vec::new()),
        _ => no_jobs(),
    })
}

#[test]
fn a_missing_socket_is_named_with_the_remedy() {
    assert_printed!(Ran::of(&mut pfoctl(Path::new("/nowhere/pfod.sock"), &["status"])));
}

#[test]
fn a_socket_without_a_daemon_is_distinguished_from_a_missing_one() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    drop(UnixListener::bind(&socket).unwrap());
    assert_printed!(Ran::of(&mut pfoctl(&socket, &["status"])));
}

#[test]
fn the_argument_wins_over_the_environment() {
    let daemon = gpus();
    let socket = daemon.socket();
    let mut command = pfoctl(Path::new("/nowhere"), &["gpus", "--socket"]);
    command.arg(socket).env("PFO_ADMIN_SOCKET", "/nowhere");
    assert_eq!(Ran::of(&mut command).code, Some(0));
}

#[test]
fn the_administrators_socket_is_preferred_and_the_other_one_the_fallback() {
    let (admin, trainer) = (gpus(), gpus());
    let mut command = trainer.pfoctl(&["gpus"]);
    command.env("PFO_ADMIN_SOCKET", admin.socket());
    assert_eq!(Ran::of(&mut command).code, Some(0));
    admin.request();
    assert!(trainer.was_not_asked());

    command.env("PFO_ADMIN_SOCKET", "/nowhere/admin.sock");
    assert_eq!(Ran::of(&mut command).code, Some(0));
    trainer.request();
}

/// Runs as somebody who may open neither root's sockets nor, perhaps, the build directory, so
/// from a copy that everybody may run.
fn as_nobody(command: &Command, directory: &Path) -> Command {
    let copy = directory.join("pfoctl");
    // By another process: a file that this one writes is busy for as long as a child of another
    // test inherits it.
    let copied =
        Command::new("install").arg("-m755").arg(command.get_program()).arg(&copy).status();
    assert!(copied.unwrap().success());
    let mut unprivileged = Command::new(copy);
    unprivileged.args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            unprivileged.env(name, value);
        }
    }
    if nix::unistd::geteuid().is_root() {
        unprivileged.uid(65534).gid(65534);
    }
    unprivileged
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_user_who_may_open_no_socket_learns_the_group_that_may() {
    let daemon = gpus();
    let directory = tempfile::tempdir().unwrap();
    mode(directory.path(), 0o755);
    mode(daemon.socket().parent().unwrap(), 0o755);
    mode(&daemon.socket(), 0o000);
    let mut command = as_nobody(&daemon.pfoctl(&["gpus"]), directory.path());
    if nix::unistd::geteuid().is_root() {
        insta::assert_snapshot!("a_socket_of_root_alone", Ran::of(&mut command).to_string());
        std::os::unix::fs::chown(daemon.socket(), None, Some(4_000_000_001)).unwrap();
    }
    let group = std::fs::metadata(daemon.socket()).unwrap().gid();
    let group =
        Group::from_gid(group.into()).unwrap().map_or(group.to_string(), |group| group.name);
    let user = User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    let user = if user == "root" { "nobody".to_owned() } else { user };
    let run = |command: &mut Command| {
        let mut ran = Ran::of(command);
        ran.stderr = ran
            .stderr
            .replace(&format!("-aG {group} {user}`"), "-aG GROUP USER`")
            .replace(&format!("group {group} may"), "group GROUP may")
            .replace(&format!("user {user} may"), "user USER may");
        ran
    };
    // No login gives new groups to the jobs of Slurm.
    assert_printed!(run(&mut command), run(command.env("SLURM_JOB_ID", "7")));
}

#[test]
fn a_user_who_may_not_open_the_administrators_socket_uses_the_trainers() {
    let (admin, trainer) = (gpus(), gpus());
    let directory = tempfile::tempdir().unwrap();
    for daemon in [&admin, &trainer] {
        mode(daemon.socket().parent().unwrap(), 0o755);
    }
    mode(directory.path(), 0o755);
    mode(&admin.socket(), 0o000);
    mode(&trainer.socket(), 0o666);
    let mut command = trainer.pfoctl(&["gpus"]);
    command.env("PFO_ADMIN_SOCKET", admin.socket());
    let ran = Ran::of(&mut as_nobody(&command, directory.path()));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    trainer.request();
    assert!(admin.was_not_asked());
}

#[test]
fn a_missing_agent_is_named_with_what_works_without_it() {
    assert_printed!(
        gpus().run(&["profile", "list"]),
        gpus().run(&["p2p", "show"]),
        gpus().run(&["job", "straggler", "j", "2"]),
    );
}

#[test]
fn the_agent_is_found_beside_a_named_socket_unless_its_own_is_named() {
    let profiles = |_: &AgentRequest| AgentResponse::Profiles(Vec::new());
    let (beside, other) = (gpus().with_agent(profiles), gpus().with_agent(profiles));
    assert_eq!(beside.run(&["profile", "list"]).code, Some(0));
    assert_eq!(beside.agent_request(), AgentRequest::Profiles);

    let socket = other.socket().with_file_name("pfo-agent.sock");
    let mut command = beside.pfoctl(&["profile", "list"]);
    assert_eq!(Ran::of(command.env("PFO_AGENT_SOCKET", &socket)).code, Some(0));
    assert_eq!(other.agent_request(), AgentRequest::Profiles);

    let mut command = beside.pfoctl(&["profile", "list", "--agent-socket", "/nowhere"]);
    assert_eq!(Ran::of(command.env("PFO_AGENT_SOCKET", &socket)).code, Some(3));
}

#[test]
fn a_file_that_is_not_a_socket_is_named_as_such() {
    assert_printed!(Ran::of(&mut pfoctl(Path::new("/etc/passwd"), &["gpus"])));
}

#[test]
fn every_kind_of_refusal_has_its_exit_code() {
    for (code, exit) in [
        (RefusalCode::Internal, 1),
        (RefusalCode::DriverUnavailable, 1),
        (RefusalCode::ShuttingDown, 3),
        (RefusalCode::NotAuthorized, 4),
        (RefusalCode::UnknownGpu, 4),
    ] {
        let ran = FakeDaemon::refusing(code, "no", "").run(&["status"]);
        assert_eq!(ran.code, Some(exit), "{code:?}");
        assert_eq!(ran.stderr, "pfoctl: no\n", "no remedy, no second line");
    }
}

#[test]
fn a_refusal_cannot_write_to_the_terminal_what_it_likes() {
    assert_printed!(
        FakeDaemon::refusing(RefusalCode::Internal, "\x1b[2J", "\x07").run(&["status"])
    );
}

#[test]
fn a_daemon_of_another_version_is_named_as_such() {
    let unsupported = DaemonMessage::Unsupported(Unsupported { oldest: 2, newest: 3 });
    assert_printed!(FakeDaemon::answering_bytes(unsupported.to_frame().unwrap()).run(&["status"]));
}

#[test]
fn a_daemon_that_hangs_up_or_talks_nonsense_is_an_error_and_no_panic() {
    let http = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    assert_printed!(
        FakeDaemon::answering_bytes(Vec::new()).run(&["status"]),
        FakeDaemon::answering_bytes(http.to_vec()).run(&["status"]),
        FakeDaemon::answering(|_| Response::Gpus(Vec::new())).run(&["status"]),
    );
}

#[test]
fn man_pages_and_completions_are_written_for_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    for what in ["man", "completions"] {
        let ran = Ran::of(&mut pfoctl(Path::new("/nowhere"), &["generate", what, path]));
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    for file in ["pfoctl.1", "pfoctl-plan-swap.1", "pfoctl.bash", "_pfoctl", "pfoctl.fish"] {
        assert!(directory.path().join(file).exists(), "{file}");
    }
    let man = std::fs::read_to_string(directory.path().join("pfoctl.1")).unwrap();
    assert!(man.contains("EXIT STATUS"), "{man}");
    assert!(!man.contains("generate"), "the hidden command is not for the man page");
}
