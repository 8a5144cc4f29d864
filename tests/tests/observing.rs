//! All readers of a GPU together leave its driver to those who work with it.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pfo_protocol::{AgentRequest, ClientMessage, TrialLength, TrialRun};
use pfo_tests::control::job;
use pfo_tests::{MachineSetup, Node, Rank, Setup, TestPlan, honest};

const JOB: &str = "job";

/// How long GPU 0 is observed.
const OBSERVED: Duration = Duration::from_secs(24);

/// Seconds of the budget that may be used at once: by what a session reads as it begins, and after a
/// silence.
const BURST: f64 = 65.0;

fn node() -> Node {
    let machine = MachineSetup { made: honest, ..MachineSetup::default() };
    Node::start_with(&Setup { machine, ..Setup::default() })
}

/// Everybody reads GPU 0: a recording, the watch over a rank with short steps, and `status` from two
/// connections without a pause. Returns the seconds that it took and the calls that its driver saw.
fn observed(node: &Node) -> (f64, u64) {
    let rank = Rank::open(node, JOB, 0, 1, 2);
    node.take_up(JOB, &TestPlan::new(1, 2, |_, _| 900));
    let _computing = node.machine.compute(0);
    let calls = || node.machine.gpu(0).driver_time().calls;
    let (began, before) = (Instant::now(), calls());
    let is_over = || began.elapsed() > OBSERVED;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut control = node.control();
                while !is_over() {
                    let _ = control.status();
                }
            });
        }
        scope.spawn(|| {
            let length = TrialLength { settling_steps: 1, steps: 10_000 };
            let run = TrialRun::DefaultClocks;
            let record = AgentRequest::Record { job: job(JOB), run, length, samples: false };
            let mut agent = node.agent_control();
            agent.say(&ClientMessage::AgentRequest(record));
            while !is_over() {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        while !is_over() {
            rank.session.step_begin();
            rank.instructions();
            std::thread::sleep(Duration::from_millis(2));
            rank.session.step_end();
        }
    });
    (began.elapsed().as_secs_f64(), calls() - before)
}

#[test]
fn a_driver_whose_calls_are_long_is_asked_for_one_part_in_twelve_of_the_time() {
    let node = node();
    let took_s = 0.004;
    node.machine.fault("*", &format!("latency:{}", took_s * 1e3), Some(0));
    let (seconds, calls) = observed(&node);
    let (share, most) = (calls as f64 * took_s / seconds, (1.0 + BURST / seconds) / 12.0);
    assert!(share <= most, "{calls} calls in {seconds} s: {share}, at most {most}");
    let shown = node.status().gpus[0].driver_use;
    assert!(shown.reads_per_s <= calls as f64 / seconds * 1.5 && shown.reads_per_s > 0.0);
    assert!(shown.reading_share >= shown.reads_per_s * took_s, "{shown:?}");
}

#[test]
fn a_driver_whose_calls_are_short_is_not_asked_more_often_than_it_may_be() {
    let node = node();
    let (seconds, calls) = observed(&node);
    let most = 400.0 * (seconds + BURST);
    assert!((calls as f64) < most, "{calls} calls in {seconds} s, at most {most}");
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn who_asks_at_the_same_moment_gets_an_answer_too() {
    const ROUNDS: usize = 100;
    let node = node();
    let unanswered = AtomicUsize::new(0);
    for _ in 0..ROUNDS {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let gpus = node.status().gpus;
                    let problems = gpus.iter().filter(|gpu| gpu.problem.is_some()).count();
                    unanswered.fetch_add(problems, Relaxed);
                });
            }
        });
        // Until what was read is paid for.
        std::thread::sleep(Duration::from_millis(30));
    }
    assert_eq!(unanswered.into_inner(), 0, "of {ROUNDS} times");
}
