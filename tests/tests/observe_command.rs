//! `pfoctl observe`, where nothing of pfo runs, over a driver that aborts whoever changes anything.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use pfo::{Gpu, RankDescription, Session};
use pfo_protocol::Pid;
use pfo_tests::programs::program_for_all;
use pfo_tests::{Identity, MachineSetup, Node, Ran, Setup, Tmux, process, wait};
use serde_json::Value;

/// GPUs without daemons, and a folder for what those of a command leave.
struct Machine {
    node: Node,
    folder: PathBuf,
    /// What names the job in the environment.
    job: Option<(&'static str, &'static str)>,
}

impl Machine {
    fn new() -> Self {
        Self::with("2xA100")
    }

    fn with(gpus: &'static str) -> Self {
        let machine = MachineSetup { gpus, ..MachineSetup::default() };
        let node = Node::create(&Setup { machine, ..Setup::default() });
        node.machine.fault("setters", "crash", None);
        let folder = node.directory().join("tmp");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
        for program in ["pfod", "pfo-agent", "pfo-sim-trainer"] {
            let _ = program_for_all(program, node.directory());
        }
        Self { node, folder, job: None }
    }

    fn program(&self, name: &str) -> String {
        program_for_all(name, self.node.directory()).display().to_string()
    }

    /// Begins to observe a command as a user who is nobody to pfo.
    fn begin(&self, options: &[&str], words: &[impl AsRef<OsStr>]) -> Child {
        let nobody = pfo_tests::identity::is_root();
        self.begin_as(&if nobody { Identity::outsider() } else { Identity::own() }, options, words)
    }

    fn begin_as(&self, user: &Identity, options: &[&str], words: &[impl AsRef<OsStr>]) -> Child {
        let mut command = Command::new(self.program("pfoctl"));
        command.arg("observe").arg("--nvml").arg(self.node.machine.library());
        command.arg("--devices").arg(self.node.machine.devices()).args(options);
        command.arg("--").args(words);
        command.env("PFO_SIM_STATE", self.node.machine.state()).env("TMPDIR", &self.folder);
        // As in a container or a unit.
        command.env_remove("HOME").env_remove("PFO_JOB").env_remove("SLURM_JOB_ID").envs(self.job);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        user.assume(&mut command).spawn().unwrap()
    }

    fn observe(&self, options: &[&str], words: &[impl AsRef<OsStr>]) -> Ran {
        ended(self.begin(options, words))
    }

    /// A shell that says that it has begun, and runs a script. `$1` is the folder of the test.
    fn shell(&self, script: &str) -> [String; 5] {
        let script = format!("touch $1/begun; {script}");
        ["sh", "-c", &script, "sh", &self.folder.display().to_string()].map(str::to_owned)
    }

    fn has(&self, file: &str) -> bool {
        self.folder.join(file).exists()
    }

    /// Waits until there is a file that the command makes, and removes it.
    fn take(&self, file: &str) {
        self.node.until_so(&format!("there is {file}"), || self.has(file));
        fs::remove_file(self.folder.join(file)).unwrap();
    }

    /// A training of some stages and steps, which prints nothing.
    fn training(&self, stages: u32, steps: u32) -> String {
        let trainer = self.program("pfo-sim-trainer");
        format!(
            "{trainer} launch --stages {stages} --microbatches 4 --steps {steps} --time-scale 0.3 \
             > /dev/null"
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

fn ended(child: Child) -> Ran {
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_training_that_nobody_named_has_a_name() {
    let mut machine = Machine::new();
    for (given, job) in [
        (None, "observed"),
        (Some(("PFO_JOB", "llama")), "llama"),
        (Some(("SLURM_JOB_ID", "7")), ""),
    ] {
        machine.job = given;
        let ran = machine.observe(&[], &["sh", "-c", "echo \"job: $PFO_JOB\""]);
        assert_eq!(
            ran.stdout,
            format!(
                "job: {job}
"
            ),
            "{ran}"
        );
    }
    machine.end();
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
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
    {
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
    for (signal, name) in [(Signal::SIGTERM, "TERM"), (Signal::SIGINT, "INT")] {
        let script = format!("trap 'exit 9' {name}; touch $1/ready; while :; do sleep 0.05; done");
        let observing = machine.begin(&[], &machine.shell(&script));
        machine.take("ready");
        process::send(Pid(observing.id()), signal);
        let ran = ended(observing);
        assert_eq!(ran.code, Some(9), "{name}: {ran}");
        machine.take("begun");
    }
    machine.end();
}

#[test]
fn without_a_driver_the_command_is_not_started() {
    let machine = Machine::new();
    machine.node.machine.set_driver_loaded(false);
    let ran = machine.observe(&[], &machine.shell(""));
    assert_eq!(ran.code, Some(1), "{ran}");
    assert!(ran.stderr.contains("no GPU can be read"), "{ran}");
    assert!(!machine.has("begun"));
    machine.end();
}

#[test]
fn ctrl_c_before_the_command_has_started_leaves_nothing() {
    let machine = Machine::new();
    machine.node.machine.fault("nvmlInit_v2", "latency:4000", None);
    let observing = machine.begin(&[], &machine.shell(""));
    let folders = || fs::read_dir(&machine.folder).unwrap().count();
    machine.node.until_so("pfod is starting", || folders() == 1);
    process::send(Pid(observing.id()), Signal::SIGINT);
    let ran = ended(observing);
    assert_eq!(ran.code, Some(130), "{ran}");
    assert!(ran.stderr.contains("interrupted before the command started"), "{ran}");
    assert!(!machine.has("begun"));
    machine.end();
}

#[test]
fn ctrl_c_at_a_terminal_reaches_the_command_once_each_time() {
    if !Tmux::is_installed() {
        return;
    }
    let machine = Machine::new();
    let (node, folder) = (&machine.node, machine.folder.display());
    // Its standard input is not the terminal.
    let script = format!(
        "export PFO_SIM_STATE={} TMPDIR={folder}\n\
         exec {} observe --nvml {} --devices {} -- sh {folder}/command < /dev/null\n",
        node.machine.state().display(),
        machine.program("pfoctl"),
        node.machine.library().display(),
        node.machine.devices().display(),
    );
    let command = format!(
        "trap 'echo >> {folder}/interrupts' INT\ntouch {folder}/begun\n\
         while [ ! -e {folder}/enough ]; do sleep 0.05; done\nexit 3\n"
    );
    fs::write(machine.folder.join("observe"), script).unwrap();
    fs::write(machine.folder.join("command"), command).unwrap();
    let terminal = Tmux::open(node, 200, 40);
    terminal.type_text(&format!("sh {folder}/observe; echo code=$?"));
    terminal.press(&["Enter"]);
    machine.take("begun");
    let interrupts = || fs::read(machine.folder.join("interrupts")).unwrap_or_default().len();
    for count in [1, 2] {
        terminal.press(&["C-c"]);
        node.until_is("interrupts", &count, interrupts);
    }
    fs::write(machine.folder.join("enough"), "").unwrap();
    terminal.until("its exit code is shown", |screen| screen.contains("\ncode=3"));
    assert_eq!(interrupts(), 2);
    for file in ["observe", "command", "interrupts", "enough"] {
        fs::remove_file(machine.folder.join(file)).unwrap();
    }
    // Its socket is in the folder of the node.
    drop(terminal);
    machine.end();
}

#[test]
fn what_the_command_leaves_running_is_left_alone_and_not_waited_for() {
    let machine = Machine::new();
    let ran = machine.observe(&[], &["sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo $!"]);
    assert_eq!(ran.code, Some(0), "{ran}");
    // It ends here, if it has not ended before.
    process::send(Pid(ran.stdout.trim().parse().unwrap()), Signal::SIGKILL);
    machine.end();
}

#[test]
fn a_gpu_whose_counter_cannot_be_read_is_named_and_nothing_is_predicted() {
    let machine = Machine::new();
    machine.node.machine.fault("nvmlDeviceGetTotalEnergyConsumption", "not-supported", Some(1));
    let ran = machine.observe(&[], &["sh", "-c", &machine.training(2, 40)]);
    assert_eq!(ran.code, Some(0), "{ran}");
    for words in ["A step takes ", "predicted: pfod reads no energy of the GPUs of ranks 1."] {
        assert!(ran.stderr.contains(words), "{words}: {ran}");
    }
    assert!(!ran.stderr.contains("Predicted,") && !ran.stderr.contains("goes into"), "{ran}");
    machine.end();
}

#[test]
fn one_user_observes_two_commands_at_once() {
    let machine = Machine::new();
    let training = machine.training(1, 40);
    let begin = |gpu| {
        let on_gpu = training.replace(" > ", &format!(" --gpus {gpu} > "));
        machine.begin(&["--json"], &["sh", "-c", &on_gpu])
    };
    for observing in [begin("0"), begin("1")] {
        let ran = ended(observing);
        assert_eq!(ran.code, Some(0), "{ran}");
        assert!(ran.json()["steps"].as_u64().unwrap() >= 4, "{ran}");
    }
    machine.end();
}

#[test]
fn a_folder_that_cannot_be_written_is_named_before_the_command_starts() {
    let machine = Machine::new();
    let folder = machine.folder.join("locked");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    let page = folder.join("page.html").display().to_string();
    let ran = machine.observe(&["--report", &page], &machine.shell(""));
    assert!(ran.stderr.contains(&format!("cannot write {page}: Permission denied")), "{ran}");
    assert!(ran.code == Some(1) && !machine.has("begun"), "{ran}");
    let under = Machine { node: machine.node, folder: folder.clone(), job: None };
    let ran = under.observe(&[], &["true"]);
    assert!(ran.stderr.contains("cannot make a folder for the daemons: Permission"), "{ran}");
    assert!(ran.code == Some(1) && ran.stderr.contains("TMPDIR"), "{ran}");
    under.end();
}

#[test]
fn a_job_that_reports_steps_and_no_instruction_has_the_time_of_a_step() {
    let machine = Machine::new();
    let script = "echo $PFO_SOCKET > $1/socket.part; mv $1/socket.part $1/socket
                  while [ ! -e $1/enough ]; do sleep 0.05; done; rm $1/socket $1/enough $1/begun";
    let observing = machine.begin_as(&Identity::own(), &[], &machine.shell(script));
    machine.node.until_so("there is a socket", || machine.has("socket"));
    let socket = fs::read_to_string(machine.folder.join("socket")).unwrap();
    let description = RankDescription {
        job: Some("silent".into()),
        gpu: Some(Gpu::Uuid(machine.node.machine.uuid(0))),
        socket: Some(socket.trim().into()),
        devices: Some(machine.node.machine.devices()),
        setup_timeout: wait::LONG,
        ..RankDescription::default()
    };
    let session = Session::open(description).unwrap();
    assert_eq!(session.problem(), None);
    let steps = || {
        session.step_begin();
        thread::sleep(Duration::from_millis(20));
        session.step_end();
    };
    // Whatever a trial takes, some of them are over by then.
    (0..400).for_each(|_| steps());
    fs::write(machine.folder.join("enough"), "").unwrap();
    let ran = ended(observing);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(ran.stderr.contains("A step takes "), "{ran}");
    assert!(ran.stderr.contains("reports steps, but none of their instructions"), "{ran}");
    machine.end();
}

#[test]
fn four_pipelines_of_four_stages_are_one_job() {
    let machine = Machine::with("16xA100");
    let training = machine.training(4, 30).replace(" > ", " --replicas 4 > ");
    let ran = machine.observe(&["--json"], &["sh", "-c", &training]);
    assert_eq!(ran.code, Some(0), "{ran}");
    let seen = ran.json();
    let count = |list: &str| match &seen[list] {
        Value::Array(list) => list.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    };
    assert_eq!([count("gpus"), count("instructions"), count("predicted")], [16, 8, 3], "{seen}");
    // Of each of the four replicas, and not of all together.
    for row in seen["instructions"].as_array().unwrap() {
        assert_eq!(row["per_step"], 4.0, "{row}");
    }
    machine.end();
}
