//! The example trainers, in C against `libpfo.so` and in Rust: both drive a session, and neither is
//! ever harmed by the daemon.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::c::{Toolchain, library, manifest, printed, text};
use crate::fake::{Peer, Place, until};
use pfo::{Instruction, Unit};
use pfo_protocol::{ClientMessage, Mark};

enum Trainer {
    C(Toolchain, PathBuf),
    Rust(PathBuf),
}

impl Trainer {
    fn all() -> Vec<Self> {
        let examples = library().parent().unwrap().with_file_name("examples");
        let c = Toolchain::find().map(|toolchain| {
            let program = toolchain.compile(&manifest("examples/c/trainer.c"), &[]);
            Self::C(toolchain, program)
        });
        let rust = Self::Rust(examples.join("trainer"));
        c.into_iter().chain([rust]).collect()
    }

    /// The last stage of two, for so many steps of three microbatches.
    fn command(&self, socket: &Path, steps: u32) -> Command {
        let mut command = match self {
            Self::C(toolchain, program) => toolchain.command(program),
            Self::Rust(program) => {
                let mut command = Command::new(program);
                command.env_clear();
                command
            }
        };
        command
            .args([steps.to_string(), "3".into()])
            .env("PFO_SOCKET", socket)
            .env("PFO_JOB", "example")
            .env("PFO_GPU", "GPU-1234")
            .env("RANK", "1")
            .env("WORLD_SIZE", "2")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn start(&self, place: &Place, steps: u32) -> Child {
        self.command(&place.socket(), steps).spawn().unwrap()
    }
}

fn expect_step(peer: &mut Peer, step: u64) {
    assert_eq!(peer.event().mark, Mark::StepBegin(step));
    for microbatch in 0..3 {
        for instruction in [Instruction::Forward, Instruction::Backward] {
            let unit = Unit::new(instruction, microbatch);
            assert_eq!(peer.event().mark, Mark::InstructionBegin(unit));
            assert_eq!(peer.event().mark, Mark::InstructionEnd(unit));
        }
    }
    assert_eq!(peer.event().mark, Mark::StepEnd(step));
}

#[test]
fn a_trainer_in_c_and_one_in_rust_drive_a_session_alike() {
    for trainer in Trainer::all() {
        let place = Place::new();
        let daemon = place.daemon();
        let child = trainer.start(&place, 2);
        let mut peer = daemon.welcome();
        assert_eq!(peer.hello().job.as_str(), "example");
        assert_eq!(peer.hello().num_microbatches, Some(3));
        expect_step(&mut peer, 0);
        expect_step(&mut peer, 1);
        assert_eq!(peer.rest(), [ClientMessage::Goodbye]);
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            printed(&output),
            "{\"steps\": 2, \"sent\": 28, \"dropped\": 0, \"reconnects\": 0, \
             \"connected\": true, \"problem\": 0}\n"
        );
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn a_daemon_that_dies_kills_no_trainer_and_prints_nothing() {
    for trainer in Trainer::all() {
        let place = Place::new();
        let daemon = place.daemon();
        // SIGPIPE has its default disposition in the C program, which is to kill.
        let child = trainer.start(&place, 20);
        let mut peer = daemon.welcome();
        expect_step(&mut peer, 0);
        drop(peer);
        let mut peer = daemon.welcome();
        until(|| matches!(peer.event().mark, Mark::StepBegin(_)));
        drop((peer, daemon));
        let output = child.wait_with_output().unwrap();
        let report = printed(&output);
        assert!(report.contains("\"reconnects\": 1"), "{report}");
        assert!(report.contains("\"connected\": false, \"problem\": 150"), "{report}");
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn without_a_daemon_a_trainer_says_so_once_and_trains() {
    for trainer in Trainer::all() {
        let place = Place::new();
        let output = trainer.command(&place.socket(), 2).output().unwrap();
        let report = printed(&output);
        assert!(report.contains("\"sent\": 0, \"dropped\": 28"), "{report}");
        let said = text(&output.stderr);
        assert!(said.starts_with("training at default clocks: no daemon at "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_description_of_no_use_is_told_where_it_was_given() {
    for trainer in Trainer::all() {
        let place = Place::new();
        let mut command = trainer.command(&place.socket(), 2);
        let output = command.env("PFO_GPU", "nvidia0").output().unwrap();
        assert!(!output.status.success());
        let said = text(&output.stderr);
        assert!(said.contains("PFO_GPU: \"nvidia0\" names no GPU"), "{said}");
    }
}
