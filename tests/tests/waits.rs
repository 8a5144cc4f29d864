//! The wait before an instruction may have a clock of its own: it is asked for when the
//! wait begins, and the instruction's own is in force again when the wait ends.

use std::thread::sleep;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nvidia_ml::machine::MachinePlan;
use pfo::Call;
use pfo_protocol::{ClockTable, Mhz, PlannedUnit, TrialLength, TrialRun};
use pfo_tests::{
    Client, Identity, MICROBATCHES, MachineSetup, Node, Rank, STAGES, Setup, TestPlan, Training,
};

const JOB: &str = "job";

/// The clocks of the plan, and that of its waits.
const CLOCKS: [u32; 2] = [900, 1200];
const WAIT: u32 = 300;

/// Steps from which the length of a wait is known.
const STEPS: u32 = 3;

/// Steps that a trial measures.
const MEASURED: usize = 8;

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().into()
}

/// A plan in which every wait has this clock, if any.
fn table(plan: &TestPlan, wait: Option<u32>) -> ClockTable {
    let table = ClockTable::from(plan);
    let (microbatches, predicted) = (table.num_microbatches(), table.predicted());
    let unit = |unit| PlannedUnit { wait_mhz: wait.map(Mhz), ..unit };
    let stages = table.into_stages().into_iter();
    let stages = stages.map(|units| units.into_iter().map(unit).collect()).collect();
    ClockTable::new(microbatches, predicted, stages).unwrap()
}

/// A rank that follows such a plan.
fn rank_with_waits(node: &Node) -> Rank {
    let rank = Rank::open(node, JOB, 0, 1, 2);
    node.take_up(JOB, table(&TestPlan::new(1, 2, |_, at| CLOCKS[at % 2]), Some(WAIT)));
    rank
}

/// A step that, as the rank says, takes no time but for the wait after its first instruction.
fn step_of(node: &Node, rank: &Rank, wait: Duration) {
    let mut at = now();
    rank.session.step_begin();
    // What comes in one read with the beginning of a plan is not learned from.
    node.until_is("the plan of the rank", &Some(1), || node.rank(JOB, 0).plan);
    for (position, &(instruction, microbatch)) in rank.order().iter().enumerate() {
        let begin = Call::InstructionBegin { instruction, chunk: 0, microbatch: Some(microbatch) };
        rank.session.tell_at(begin, at.as_nanos() as u64);
        rank.session.tell_at(Call::InstructionEnd, at.as_nanos() as u64);
        at += if position == 0 { wait } else { Duration::ZERO };
    }
    rank.session.step_end();
}

/// A rank that has waited so long in some steps, and begins to wait now.
fn in_the_wait(node: &Node, wait: Duration) -> Rank {
    let rank = rank_with_waits(node);
    for _ in 0..STEPS {
        step_of(node, &rank, wait);
        node.until_is("the clock of the next step", &Some(CLOCKS[0]), || locked(node));
    }
    rank.session.step_begin();
    rank.instruction(0);
    rank
}

fn locked(node: &Node) -> Option<u32> {
    node.machine.sm_lock(0)
}

#[test]
fn a_long_wait_has_its_own_clock_and_the_next_one_is_locked_before_it_ends() {
    let node = Node::start_with(&Setup::without_agent());
    let rank = in_the_wait(&node, Duration::from_secs(1));
    node.until_is("the clock of the wait", &Some(WAIT), || locked(&node));
    node.until_is("the clock of the second instruction", &Some(CLOCKS[1]), || locked(&node));
    let calls = node.machine.gpu(0).set_call_count();
    sleep(Duration::from_millis(5));
    rank.begin(1);
    node.until_is("an instruction", &Some(4), || node.rank(JOB, 0).step.map(|step| step + 1));
    assert_eq!(node.machine.gpu(0).set_call_count(), calls);
    rank.session.instruction_end();
    node.until_is("the clock of the third instruction", &Some(CLOCKS[0]), || locked(&node));
    assert_eq!(node.rank(JOB, 0).late_instructions, 0);
}

#[test]
fn an_instruction_that_begins_in_such_a_wait_gets_its_clock_at_once_and_is_reported_as_late() {
    let node = Node::start_with(&Setup::without_agent());
    let rank = in_the_wait(&node, Duration::from_secs(50));
    node.until_is("the clock of the wait", &Some(WAIT), || locked(&node));
    rank.begin(1);
    node.until_is("the clock of the second instruction", &Some(CLOCKS[1]), || locked(&node));
    assert_eq!(node.rank(JOB, 0).late_instructions, 1);
    let ran = node.pfoctl(&Identity::own(), &["status", "--job", JOB]);
    assert!(ran.printed().contains("Late"));
}

#[test]
fn a_wait_of_a_step_that_leaves_the_plan_has_the_highest_clock() {
    let node = Node::start_with(&Setup::without_agent());
    let rank = in_the_wait(&node, Duration::from_secs(50));
    node.until_is("the clock of the wait", &Some(WAIT), || locked(&node));
    rank.begin(3);
    node.until_is("the highest clock", &Some(1740), || locked(&node));
    assert_eq!(node.rank(JOB, 0).mismatched_steps, 1);
}

#[test]
fn a_rank_that_may_change_its_clock_seldom_changes_it_for_no_wait() {
    let setup = Setup { changes_per_second: 2, ..Setup::without_agent() };
    let node = Node::start_with(&setup);
    let rank = rank_with_waits(&node);
    for _ in 0..STEPS + 3 {
        step_of(&node, &rank, Duration::from_secs(50));
    }
    node.until_is("the last step", &Some(u64::from(STEPS) + 2), || node.rank(JOB, 0).step);
    rank.session.step_begin();
    node.until_is("a step", &Some(u64::from(STEPS) + 3), || node.rank(JOB, 0).step);
    assert!(!node.machine.clocks_set(0).contains(&WAIT), "{:?}", node.machine.clocks_set(0));
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn a_job_whose_waits_become_irregular_is_late_a_few_times_and_then_no_more() {
    const SETTLE: Duration = Duration::from_millis(10);
    let machine = MachineSetup { settle_ms: 10, ..MachineSetup::default() };
    let node = Node::start_with(&Setup { machine, ..Setup::without_agent() });
    let rank = rank_with_waits(&node);
    let mut begins = Vec::new();
    for step in 0..60_u64 {
        rank.session.step_begin();
        rank.instruction(0);
        let is_short = step > 20 && step * step % 7 < 3;
        sleep(if is_short { SETTLE / 2 } else { 12 * SETTLE });
        begins.push(now());
        (1..4).for_each(|position| rank.instruction(position));
        rank.session.step_end();
    }
    node.until_is("instructions", &240, || node.rank(JOB, 0).instructions);
    // As seen from behind the driver: the wait's clock was still in force.
    let calls = node.machine.calls(0);
    let is_late = |began: &&Duration| {
        let settled_ns = (**began - SETTLE).as_nanos() as u64;
        let before = calls.iter().rev().find(|call| call.entered.0 <= settled_ns);
        before.is_some_and(|call| call.max.0 == WAIT)
    };
    let late = begins.iter().filter(is_late).count();
    let lowered = calls.iter().filter(|call| call.max.0 == WAIT).count();
    assert!(lowered >= 10, "{lowered} waits of the regular steps had a clock");
    assert!(late <= 4, "{late} of {lowered}");
    assert!(
        node.rank(JOB, 0).late_instructions <= 4 + u64::from(late > 0),
        "{:?}",
        node.rank(JOB, 0)
    );
}

/// What a step takes, in seconds and joules, the median and the mean of a trial.
fn measured(client: &mut Client, plan: &TestPlan, wait: Option<u32>) -> (f64, f64) {
    let run = TrialRun::Plan { label: format!("{wait:?}"), table: table(plan, wait) };
    let length = TrialLength { settling_steps: STEPS + 2, steps: MEASURED as u32 };
    let trial = client.record(JOB, run, length, false).unwrap().trial;
    let mut times_s: Vec<_> = trial.steps.iter().map(|step| step.time_s).collect();
    times_s.sort_by(f64::total_cmp);
    let energy_j: f64 = trial.steps.iter().filter_map(|step| step.energy_j).sum();
    (times_s[MEASURED / 2], energy_j / MEASURED as f64)
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn clocks_of_waits_save_energy_and_no_step_takes_longer_however_slowly_a_gpu_settles() {
    for settle_ms in [15, 60] {
        let machine = MachineSetup {
            settle_ms,
            set_latency_ms: 8,
            made: |plan| MachinePlan { waits_follow_the_clock: Some(true), ..plan },
            ..MachineSetup::default()
        };
        let node = Node::start_with(&Setup { machine, ..Setup::default() });
        let scale = ["--time-scale", "0.2"];
        let training = Training::start(&node, JOB, &Identity::own(), &scale);
        training.until_leased(&node);
        training.until_step(&node, 1);
        let plan = TestPlan::new(STAGES, MICROBATCHES, |_, _| 1500);
        let mut client = node.agent_control();
        let before = measured(&mut client, &plan, None);
        let with = measured(&mut client, &plan, Some(210));
        let after = measured(&mut client, &plan, None);
        let without_j = f64::min(before.1, after.1);
        assert!(with.1 < 0.985 * without_j, "{settle_ms} ms: {before:?} {with:?} {after:?}");
        let without_s = f64::max(before.0, after.0);
        // Waits whose clocks were asked back at their end would make steps longer by 15 % and more.
        assert!(with.0 < 1.05 * without_s, "{settle_ms} ms: {before:?} {with:?} {after:?}");
        let late: u64 = node.job(JOB).ranks.iter().map(|rank| rank.late_instructions).sum();
        println!("{settle_ms} ms: {before:?} {with:?} {after:?}, {late} late");
        drop(client);
        training.stop();
    }
}
