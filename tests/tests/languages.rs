//! Trainers that are not ours: the examples of the shim, in C and in Rust.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use pfo_tests::{Identity, Node, TestPlan, process::Process, programs};
use serde_json::Value;

const JOB: &str = "job";
const STEPS: &str = "120";

/// Compiles the C example as a user would: against `pfo.h`, with `-lpfo`.
fn compile_c_trainer(node: &Node) -> PathBuf {
    let directory = node.directory();
    // What a package installs: the library by its SONAME, and a link without for the linker.
    fs::copy(programs::library("libpfo.so"), directory.join("libpfo.so.0")).unwrap();
    std::os::unix::fs::symlink("libpfo.so.0", directory.join("libpfo.so")).unwrap();
    let shim = programs::source_root().join("shim");
    let program = directory.join("c-trainer");
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(shim.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(shim.join("examples/c/trainer.c"))
        .arg("-L")
        .arg(directory)
        .arg("-lpfo")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Starts a trainer as the given rank of two.
fn start(node: &Node, program: PathBuf, name: &str, rank: usize) -> Process {
    let mut command = Command::new(program);
    command
        .args([STEPS, "4"])
        .env("LD_LIBRARY_PATH", node.directory())
        .env("PFO_SOCKET", node.socket())
        .env("PFO_DEVICES", node.machine.devices())
        .env("PFO_JOB", JOB)
        .env("PFO_GPU", node.machine.uuid(rank).as_str())
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", "2");
    Process::start(name, node.directory(), Identity::trainer().assume(&mut command))
}

#[test]
fn a_trainer_in_c_and_one_in_rust_train_together_on_a_plan() {
    let node = Node::start();
    let c_program = compile_c_trainer(&node);
    let rust_program = programs::example_for_all("trainer", node.directory());
    let mut trainers =
        [start(&node, c_program, "in-c", 0), start(&node, rust_program, "in-rust", 1)];
    node.until_is("ranks", &2, || node.find_job(JOB).map_or(0, |job| job.ranks.len()));
    let plan = TestPlan::distinct(2, 4, 600);
    node.take_up(JOB, &plan);
    node.until_is("ranks on the plan", &2, || {
        node.job(JOB).ranks.iter().filter(|rank| rank.plan == Some(1)).count()
    });
    let job = node.job(JOB);
    for (rank, trainer) in job.ranks.iter().zip(&trainers) {
        assert_eq!((rank.pid, job.uid), (trainer.pid(), Identity::trainer().uid));
    }
    for (rank, trainer) in trainers.iter_mut().enumerate() {
        assert!(trainer.wait().success(), "{}", trainer.errors());
        assert_eq!(trainer.errors(), "");
        let said: Value = serde_json::from_str(&trainer.printed()).unwrap();
        assert_eq!((&said["problem"], &said["connected"]), (&0.into(), &true.into()), "{said}");
        // Two events of each step, and two of each of its eight instructions.
        assert_eq!((&said["sent"], &said["dropped"]), (&(120 * 18).into(), &0.into()), "{said}");
        let clocks = node.machine.clocks_set(rank);
        assert!(clocks.len() > 2 * plan.clocks(0).len(), "{clocks:?}");
        assert!(plan.steps_for(rank as u32, &clocks) <= 121, "{clocks:?}");
    }
    node.assert_only_locked(&[]);
}

#[test]
fn without_a_daemon_both_say_so_once_and_train_to_their_end() {
    let node = Node::create(&pfo_tests::Setup::default());
    let programs = [
        (compile_c_trainer(&node), "in-c"),
        (programs::example_for_all("trainer", node.directory()), "in-rust"),
    ];
    for (rank, (program, name)) in programs.into_iter().enumerate() {
        let mut trainer = start(&node, program, name, rank);
        assert!(trainer.wait().success());
        let complaint = trainer.errors();
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert!(complaint.starts_with("training at default clocks: "), "{complaint}");
        let said: Value = serde_json::from_str(&trainer.printed()).unwrap();
        assert_eq!((&said["problem"], &said["sent"]), (&150.into(), &0.into()), "{said}");
    }
}
