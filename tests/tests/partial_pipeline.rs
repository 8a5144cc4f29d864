//! A job of which only the first half of the pipeline is on this node.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, sleep};
use std::time::Duration;

use pfo_protocol::{AgentRequest, AgentResponse, Mhz, Stage, TrialRun};
use pfo_tests::{Identity, Node, Rank, TestPlan, assert_printed};

const JOB: &str = "job";
const STAGES: u32 = 4;
const MICROBATCHES: u32 = 2;

/// Long enough for the energy counter.
const INSTRUCTION: Duration = Duration::from_millis(60);

/// Runs something while stages 0 and 1 train.
fn while_half_trains(run: impl FnOnce(&Node)) {
    let node = Node::start();
    let ranks = [0, 1].map(|stage| Rank::open(&node, JOB, stage, STAGES, MICROBATCHES));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for rank in ranks {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    step(&rank);
                }
            });
        }
        // Also if it panics, or the ranks would train for ever.
        let _over = Over(&is_over);
        let steps = || node.job(JOB).ranks.iter().filter(|rank| rank.step >= Some(1)).count();
        node.until_is("ranks that have trained", &2, steps);
        run(&node);
    });
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn step(rank: &Rank) {
    rank.session.step_begin();
    for position in 0..rank.order().len() {
        rank.begin(position);
        sleep(INSTRUCTION);
        rank.session.instruction_end();
    }
    rank.session.step_end();
}

#[test]
fn commands_that_compare_whole_steps_name_the_stages_elsewhere() {
    while_half_trains(|node| {
        let plan = TestPlan::new(STAGES, MICROBATCHES, |_, _| 1005).to_json();
        let plans = node.directory().join("plans");
        std::fs::create_dir(&plans).unwrap();
        std::fs::write(plans.join("plan.json"), plan).unwrap();
        let (plans, csv) = (plans.display().to_string(), node.directory().join("measured.csv"));
        let csv = csv.display().to_string();
        assert_printed!(
            node.pfoctl(&Identity::own(), &["tune", JOB]),
            node.pfoctl(&Identity::own(), &["plan", "sweep", JOB, &plans, "-o", &csv]),
        );
        let job = node.job(JOB);
        assert_eq!((job.plan, job.swap_at_step, job.measured_by), (None, None, None));
        let sweeps = node.agent_control().ask_agent(AgentRequest::Sweeps);
        assert_eq!(sweeps, Ok(AgentResponse::Sweeps(Vec::new())));
    });
}

#[test]
fn trials_and_profiles_are_of_the_stages_that_are_here() {
    while_half_trains(|node| {
        let trial = node.agent_control().trial(JOB, TrialRun::Uniform(Mhz(1005)), 1).unwrap();
        let stages: Vec<_> = trial.ranks.iter().map(|rank| rank.stage).collect();
        assert_eq!(stages, [Stage(0), Stage(1)]);
        let user = Identity::own();
        let sweep = ["--steps", "1", "--stride", "900", "--wait"];
        let said = node.pfoctl(&user, &[&["profile", "start", JOB], &sweep[..]].concat());
        assert!(said.printed().contains("pp4-dp1-tp1-mb2-ranks0.1"));
        let csv = node.pfoctl(&user, &["profile", "export", JOB]).printed();
        let stages: Vec<_> = csv.lines().skip(1).map(|row| row.split(',').next()).collect();
        assert!(stages.contains(&Some("0")) && stages.contains(&Some("1")), "{csv}");
        assert!(stages.iter().all(|stage| matches!(stage, Some("0" | "1"))), "{csv}");
    });
}
