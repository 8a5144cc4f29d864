//! `pfoctl observe`, where nothing of pfo runs, over a driver that aborts whoever changes anything.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use pfo_protocol::Pid;
use pfo_tests::programs::program_for_all;
use pfo_tests::{Identity, MachineSetup, Node, Ran, Setup, process};
use serde_json::Value;

/// GPUs without daemons, and a folder for what those of a command leave.
struct Machine {
    node: Node,
    folder: PathBuf,
}

impl Machine {
    fn new() -> Self {
        let machine = MachineSetup { gpus: "2xA100", ..MachineSetup::default() };
        let node = Node::create(&Setup { machine, ..Setup::default() });
        node.machine.fault("setters", "crash", None);
        let folder = node.directory().join("tmp");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
        for program in ["pfod", "pfo-agent", "pfo-sim-trainer"] {
            let _ = program_for_all(program, node.directory());
        }
        Self { node, folder }
    }

    fn program(&self, name: &str) -> String {
        program_for_all(name, self.node.directory()).display().to_string()
    }

    /// Begins to observe a command as a user who is nobody to pfo.
    fn begin(&self, options: &[&str], words: &[&str]) -> Child {
        let mut command = Command::new(self.program("pfoctl"));
        command.arg("observe").arg("--nvml").arg(self.node.machine.library());
        command.arg("--devices").arg(self.node.machine.devices()).args(options);
        command.arg("--").args(words);
        command.env("PFO_SIM_STATE", self.node.machine.state()).env("TMPDIR", &self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let user =
            if pfo_tests::identity::is_root() { Identity::outsider() } else { Identity::own() };
        user.assume(&mut command).spawn().unwrap()
    }

    fn observe(&self, options: &[&str], words: &[&str]) -> Ran {
        self.begin(options, words).wait_with_output().unwrap().into()
    }

    /// A training of some stages and steps, which prints nothing.
    fn training(&self, stages: u32, steps: u32) -> String {
        let trainer = self.program("pfo-sim-trainer");
        format!(
            "{trainer} launch --stages {stages} --microbatches 4 --steps {steps} --time-scale 0.3 \
             --job observed > /dev/null"
        )
    }

    /// Checks that nothing is left, and that nothing was set.
    fn end(self) {
        assert_eq!(fs::read_dir(&self.folder).unwrap().count(), 0, "a folder is left");
        for gpu in 0..self.node.machine.gpu_count() {
            assert!(self.node.machine.calls(gpu).is_empty(), "GPU {gpu}");
        }
    }
}

#[test]
fn a_user_without_rights_sees_where_the_energy_goes_and_what_clocks_would_save() {
    let machine = Machine::new();
    let page = machine.folder.join("page.html").display().to_string();
    let training = machine.training(2, 40);
    let ran = machine.observe(&["--json", "--report", &page], &["sh", "-c", &training]);
    assert_eq!(ran.code, Some(0), "{ran}");
    let seen: Value = ran.json();
    assert_eq!(seen["format"], "pfo-observed/1");
    assert!(seen["steps"].as_u64().unwrap() >= 4, "{seen}");
    let joules = ["work_j", "waiting_j", "rest_j"].map(|part| seen[part].as_f64().unwrap());
    let step_j = seen["step_energy_j"].as_f64().unwrap();
    assert!(joules[0] > 0.5 * step_j && joules[1] > 0.0, "{seen}");
    assert_eq!(seen["instructions"].as_array().unwrap().len(), 4, "{seen}");
    let predicted = seen["predicted"].as_array().unwrap();
    assert_eq!(predicted.len(), 3, "{seen}");
    for prospect in predicted {
        let [least, likely, most] =
            ["least", "likely", "most"].map(|of| prospect[of].as_f64().unwrap());
        assert!(least <= likely && likely <= most && most < 0.6, "{prospect}");
    }
    let text = fs::read_to_string(&page).unwrap();
    for words in ["set nothing", "Predicted,", "ask the administrator"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    fs::remove_file(&page).unwrap();
    machine.end();
}

#[test]
fn a_job_of_one_stage_has_a_prediction_too() {
    let machine = Machine::new();
    let training = machine.training(1, 40);
    let ran = machine.observe(&[], &["sh", "-c", &training]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran}");
    for words in
        ["Seen by pfo, which set nothing", "one stage", "Predicted, with steps up to 1.0 %"]
    {
        assert!(ran.stderr.contains(words), "{words}: {ran}");
    }
    machine.end();
}

#[test]
fn the_end_of_the_command_is_that_of_pfoctl() {
    let machine = Machine::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)] {
        let ran = machine.observe(&[], &["sh", "-c", script]);
        assert_eq!(ran.code, Some(code), "{ran}");
        assert!(ran.stderr.contains("No step was seen"), "{ran}");
    }
    let ran = machine.observe(&[], &["/no/such/trainer"]);
    assert_eq!(ran.code, Some(2), "{ran}");
    machine.end();
}

#[test]
fn a_signal_to_pfoctl_is_one_to_the_command() {
    let machine = Machine::new();
    let begun = machine.folder.join("begun");
    let script =
        format!("trap 'exit 9' TERM; touch {}; while :; do sleep 0.05; done", begun.display());
    let observing = machine.begin(&[], &["sh", "-c", &script]);
    machine.node.until_so("the command has begun", || begun.exists());
    process::send(Pid(observing.id()), Signal::SIGTERM);
    let ran: Ran = observing.wait_with_output().unwrap().into();
    assert_eq!(ran.code, Some(9), "{ran}");
    fs::remove_file(begun).unwrap();
    machine.end();
}

#[test]
fn without_a_driver_the_command_is_not_started() {
    let machine = Machine::new();
    machine.node.machine.set_driver_loaded(false);
    let begun = machine.folder.join("begun");
    let ran = machine.observe(&[], &["touch", begun.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{ran}");
    assert!(ran.stderr.contains("no GPU can be read"), "{ran}");
    assert!(!begun.exists());
    machine.end();
}
