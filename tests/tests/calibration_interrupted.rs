//! A calibration that does not come to its end: the job is at default clocks, nothing is locked or
//! held, and it is calibrated again at once.

use std::process::Child;

use nix::sys::signal::Signal;
use pfo_protocol::Pid;
use pfo_tests::{Identity, MachineSetup, Node, Ran, STAGES, Setup, Training, process, profile_of};

/// The job, and the one after it.
const JOB: &str = "job";
const NEXT: &str = "next";

/// Instructions long enough that a change of clocks shows in them.
const TIME_SCALE: &str = "0.15";

struct Calibrating {
    node: Node,
    job: &'static str,
    training: Option<Training>,
    profile: String,
}

impl Calibrating {
    fn start() -> Self {
        let machine = MachineSetup {
            gpus: "4xA100",
            set_latency_ms: 4,
            settle_ms: 10,
            ..MachineSetup::default()
        };
        let node = Node::start_with(&Setup { machine, ..Setup::default() });
        let profile = profile_of("A100", &["--ideal"], TIME_SCALE);
        let profile = node.plan_file("profile.csv", profile.as_bytes());
        let mut calibrating = Self { node, job: JOB, training: None, profile };
        calibrating.train(JOB);
        calibrating
    }

    fn train(&mut self, job: &'static str) {
        let options = ["--time-scale", TIME_SCALE];
        let training = Training::start(&self.node, job, &Identity::own(), &options);
        training.until_leased(&self.node);
        training.until_step(&self.node, 1);
        (self.job, self.training) = (job, Some(training));
    }

    fn training(&self) -> &Training {
        self.training.as_ref().unwrap()
    }

    fn begin(&self, arguments: &[&str]) -> Child {
        let calibrate = ["gpu", "calibrate", self.job, "--profile", &self.profile];
        self.node.begin_pfoctl(&Identity::own(), &[&calibrate[..], arguments].concat())
    }

    /// Begins to calibrate, and waits until the job changes clocks for it.
    fn until_under_way(&self, arguments: &[&str]) -> Child {
        let calibrating = self.begin(arguments);
        self.node.until_so("clocks change", || {
            self.node.find_job(self.job).is_some_and(|job| job.measured_by.is_some())
                && self.locked() > 0
        });
        calibrating
    }

    fn locked(&self) -> usize {
        (0..STAGES as usize).filter(|&gpu| self.node.machine.sm_lock(gpu).is_some()).count()
    }

    /// Waits until the job is as if nobody had begun to calibrate.
    fn until_left_alone(&self) {
        self.node.until_is("who measures", &None, || {
            self.node.find_job(self.job).and_then(|job| job.measured_by)
        });
        self.node.until_is("GPUs with a lock", &0, || self.locked());
        self.node.until_is("the job's plan", &None, || {
            self.node.find_job(self.job).and_then(|job| job.plan)
        });
    }

    /// Calibrates anew, without waiting for the end.
    fn assert_begins_anew(self) {
        let mut calibrating = self.until_under_way(&[]);
        calibrating.kill().unwrap();
        calibrating.wait().unwrap();
        self.until_left_alone();
    }

    /// Calibrates anew, to the end.
    fn assert_works(mut self) {
        self.training().until_step(&self.node, 1);
        let ran = ran(self.begin(&[]));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.contains("In force"), "{ran:?}");
        self.until_left_alone();
        let report = self.training.take().unwrap().stop();
        assert_eq!(report["mismatches"].as_u64().unwrap_or(0), 0, "{report}");
    }
}

fn ran(calibrating: Child) -> Ran {
    calibrating.wait_with_output().unwrap().into()
}

#[test]
fn a_trainer_that_dies_ends_it_and_the_next_one_is_calibrated() {
    let mut it = Calibrating::start();
    let calibrating = it.until_under_way(&[]);
    it.training().signal_ranks(&it.node, Signal::SIGKILL);
    let ran = ran(calibrating);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stderr.contains(JOB), "{ran:?}");
    it.until_left_alone();
    it.train(NEXT);
    it.assert_works();
}

#[test]
fn a_job_that_ends_in_order_ends_it() {
    let mut it = Calibrating::start();
    let calibrating = it.until_under_way(&[]);
    it.training.take().unwrap().stop();
    let ran = ran(calibrating);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    it.until_left_alone();
    it.train(NEXT);
    it.assert_begins_anew();
}

#[test]
fn an_agent_that_is_killed_ends_it_and_the_next_one_begins_anew() {
    let mut it = Calibrating::start();
    let calibrating = it.until_under_way(&[]);
    it.node.kill_agent();
    let ran = ran(calibrating);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    it.until_left_alone();
    it.node.start_agent();
    it.assert_works();
}

#[test]
fn a_daemon_that_is_killed_ends_it_and_the_next_one_begins_anew() {
    let mut it = Calibrating::start();
    let calibrating = it.until_under_way(&[]);
    it.node.kill_daemon();
    let ran = ran(calibrating);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    it.node.start_daemon();
    it.training().until_leased(&it.node);
    let ranks = it.training().ranks(&it.node);
    assert!(ranks.iter().all(|rank| rank.1.is_some_and(|step| step > 0)), "{ranks:?}");
    it.until_left_alone();
    it.assert_begins_anew();
}

#[test]
fn whoever_asked_may_be_killed_or_interrupted() {
    let it = Calibrating::start();
    for (signal, code) in [(Signal::SIGKILL, None), (Signal::SIGINT, Some(130))] {
        let calibrating = it.until_under_way(&[]);
        process::send(Pid(calibrating.id()), signal);
        let ran = ran(calibrating);
        assert_eq!(ran.code, code, "{ran:?}");
        it.until_left_alone();
    }
    it.assert_begins_anew();
}

#[test]
fn of_two_at_once_one_is_refused_and_the_other_one_unharmed() {
    let it = Calibrating::start();
    let first = it.until_under_way(&[]);
    let second = ran(it.begin(&[]));
    assert_eq!(second.code, Some(4), "{second:?}");
    assert!(second.stderr.contains("holds job"), "{second:?}");
    let first = ran(first);
    assert_eq!(first.code, Some(0), "{first:?}");
    it.until_left_alone();
    it.assert_begins_anew();
}

#[test]
fn a_job_that_stands_still_is_given_up_after_the_time_that_it_was_given() {
    let it = Calibrating::start();
    let calibrating = it.until_under_way(&["--within", "4"]);
    let ranks: Vec<_> = it.training().ranks(&it.node).into_iter().map(|rank| rank.0).collect();
    ranks.iter().for_each(|pid| process::send(*pid, Signal::SIGSTOP));
    let ran = ran(calibrating);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("within 4 s"), "{ran:?}");
    assert!(ran.stderr.contains("--within"), "{ran:?}");
    // What a rank that stands still is to run cannot change any more.
    ranks.iter().for_each(|pid| process::send(*pid, Signal::SIGCONT));
    it.until_left_alone();
    it.assert_begins_anew();
}
