//! Ranks that do not what their plan has.

use pfo_protocol::{ClientMessage, Instruction, Mark, SwapTarget, Unit};
use pfo_tests::{Client, Node, Rank, Setup, TestPlan, assert_printed, hello};

const JOB: &str = "job";

/// The highest clock of the nodes here, an A40's.
const HIGHEST: u32 = 1740;

/// A node, one rank of one stage, and the plan that it runs: six instructions, each with a clock of
/// its own.
struct OnPlan {
    rank: Rank,
    plan: TestPlan,
    node: Node,
}

impl OnPlan {
    fn start() -> Self {
        let node = Node::start();
        let rank = Rank::open(&node, JOB, 0, 1, 3);
        let plan = TestPlan::distinct(1, 3, 600);
        node.take_up(JOB, &plan);
        Self { node, rank, plan }
    }

    fn until_locked(&self, mhz: u32) {
        self.node.until_is("the lock", &Some(mhz), || self.node.machine.sm_lock(0));
    }

    fn good_step(&self) {
        self.rank.step();
        self.until_locked(self.plan.clocks(0)[0]);
    }

    /// A step whose first two instructions are swapped.
    fn swapped_step(&self) {
        self.rank.session.step_begin();
        for position in [1, 0, 2, 3, 4, 5] {
            self.rank.instruction(position);
        }
        self.rank.session.step_end();
    }

    fn until_mismatched(&self, steps: u64) {
        self.node
            .until_is("the mismatched steps", &steps, || self.node.rank(JOB, 0).mismatched_steps);
    }

    fn last_mismatch(&self) -> String {
        self.node.until("the last mismatch is reported", || {
            self.node.rank(JOB, 0).last_mismatch.ok_or_else(|| "it is not".to_owned())
        })
    }
}

#[test]
fn the_rest_of_a_step_in_the_wrong_order_runs_at_the_highest_clock() {
    let on = OnPlan::start();
    on.good_step();
    on.rank.session.step_begin();
    on.rank.instruction(1);
    on.until_locked(HIGHEST);
    let set_so_far = on.node.machine.clocks_set(0).len();
    for position in [0, 2, 3, 4, 5] {
        on.rank.instruction(position);
    }
    on.rank.session.step_end();
    on.until_mismatched(1);
    assert_eq!(
        on.last_mismatch(),
        "instruction 0 was backward of microbatch 0, but the plan has forward of microbatch 0"
    );
    on.rank.session.step_begin();
    on.until_locked(on.plan.clocks(0)[0]);
    // From the mismatch on, there was no other clock until the next step began.
    assert_eq!(on.node.machine.clocks_set(0)[set_so_far], on.plan.clocks(0)[0]);
    let status = on.node.rank(JOB, 0);
    assert_eq!((status.mismatched_steps, status.plan), (1, Some(1)), "{status:?}");
}

#[test]
fn an_instruction_that_begins_before_the_last_one_has_ended_is_a_mismatch() {
    let on = OnPlan::start();
    on.good_step();
    on.rank.session.step_begin();
    on.rank.begin(0);
    on.rank.begin(1);
    on.until_locked(HIGHEST);
    on.until_mismatched(1);
    assert_eq!(
        on.last_mismatch(),
        "backward of microbatch 0 began before forward of microbatch 0 had ended"
    );
}

#[test]
fn a_step_that_is_cut_short_is_a_mismatch_and_costs_only_itself() {
    let on = OnPlan::start();
    on.rank.session.step_begin();
    on.rank.instruction(0);
    on.rank.session.step_end();
    on.until_mismatched(1);
    assert_eq!(on.last_mismatch(), "the step ended after 1 of the plan's 6 instructions");
    on.good_step();
    assert_eq!(on.node.rank(JOB, 0).mismatched_steps, 1);
}

#[test]
fn an_instruction_too_many_is_a_mismatch() {
    let on = OnPlan::start();
    on.rank.session.step_begin();
    on.rank.instructions();
    on.rank.session.instruction_begin(Instruction::Other, 0);
    on.until_locked(HIGHEST);
    on.until_mismatched(1);
    assert_eq!(
        on.last_mismatch(),
        "other of microbatch 0 began after the last of the plan's 6 instructions"
    );
}

#[test]
fn an_instruction_of_fixed_time_that_the_plan_has_no_place_for_is_no_mismatch() {
    let on = OnPlan::start();
    let extra = |instruction| {
        on.rank.session.instruction_begin(instruction, 0);
        on.rank.session.instruction_end();
    };
    on.rank.session.step_begin();
    extra(Instruction::Load);
    on.rank.instructions();
    extra(Instruction::Collective);
    extra(Instruction::OptimizerStep);
    on.rank.session.step_end();
    on.swapped_step();
    on.until_mismatched(1);
    assert!(on.last_mismatch().starts_with("instruction 0 was backward"), "the first mismatch");
}

#[test]
fn untimed_calls_are_in_the_status_and_no_mismatch() {
    let on = OnPlan::start();
    on.good_step();
    for _ in 0..3 {
        on.rank.session.count_untimed();
    }
    on.good_step();
    on.node.until_is("the untimed calls", &3, || on.node.rank(JOB, 0).untimed_calls);
    on.rank.session.count_untimed();
    on.good_step();
    on.node.until_is("the untimed calls", &4, || on.node.rank(JOB, 0).untimed_calls);
    let status = on.node.rank(JOB, 0);
    assert_eq!((status.mismatched_steps, status.lost_events, status.plan), (0, 0, Some(1)));
}

#[test]
fn steps_that_keep_mismatching_suspend_the_plan_on_all_ranks() {
    let node = Node::start();
    let ranks = Rank::open_all(&node, JOB, 2, 3);
    node.take_up(JOB, &TestPlan::distinct(2, 3, 600));
    ranks.iter().for_each(Rank::step);
    let wrong_step = |rank: &Rank| {
        rank.session.step_begin();
        rank.instruction(5);
        rank.session.step_end();
    };
    // A good step in between starts the count anew.
    wrong_step(&ranks[0]);
    wrong_step(&ranks[0]);
    ranks[0].step();
    wrong_step(&ranks[0]);
    wrong_step(&ranks[0]);
    node.until_is("the mismatched steps", &4, || node.rank(JOB, 0).mismatched_steps);
    assert_eq!(node.job(JOB).plan.unwrap().suspended, None);
    wrong_step(&ranks[0]);
    let suspended = node.until("the plan is suspended", || {
        node.job(JOB).plan.unwrap().suspended.ok_or_else(|| "it is not".to_owned())
    });
    assert_eq!(
        suspended,
        "rank 0 did not follow it for 3 steps in a row: instruction 0 was backward of microbatch 2, \
         but the plan has forward of microbatch 0"
    );
    // The rank that did nothing wrong takes no part in a plan for all either.
    ranks.iter().for_each(|rank| rank.session.step_begin());
    node.until_is("GPU 0 is free", &None, || node.machine.sm_lock(0));
    node.until_is("GPU 1 is free", &None, || node.machine.sm_lock(1));
    assert!(node.status().gpus.iter().all(|gpu| gpu.requested_mhz.is_none()));
}

#[test]
fn after_a_suspension_a_new_swap_starts_over() {
    let on = OnPlan::start();
    for _ in 0..3 {
        on.swapped_step();
    }
    on.until_mismatched(3);
    on.node
        .until_so("the plan is suspended", || on.node.job(JOB).plan.unwrap().suspended.is_some());
    let other = TestPlan::new(1, 3, |_, _| 1200);
    // What the rank really runs is known by now, and a plan for anything else does not fit.
    let refusal = on.node.load(JOB, &other).unwrap_err();
    assert_printed!(refusal);
    on.rank.step();
    on.rank.session.step_begin();
    on.node.until_is("the rank's step", &Some(4), || on.node.rank(JOB, 0).step);
    // What a rank ran is published only after its clock is set.
    on.node.until("the plan fits", || {
        on.node.load(JOB, &other).map_err(|refusal| refusal.to_string())
    });
    on.node.swap(JOB, SwapTarget::Loaded).unwrap();
    on.rank.step();
    on.until_locked(1200);
    assert_eq!(on.node.job(JOB).plan.unwrap().suspended, None);
}

#[test]
fn lost_events_are_counted_and_make_their_step_a_mismatch() {
    let node = Node::start();
    let mut rank = Client::connect(&node.socket());
    rank.open(hello(JOB, 0, 1, pfo_protocol::GpuName::Uuid(node.machine.uuid(0)))).unwrap();
    let plan = TestPlan::distinct(1, 2, 600);
    node.take_up(JOB, &plan);
    let forward = Unit::new(Instruction::Forward, 0);
    rank.tell(Mark::StepBegin(0));
    node.until_is("the lock", &Some(plan.clocks(0)[0]), || node.machine.sm_lock(0));
    rank.lose(3);
    rank.tell(Mark::InstructionBegin(forward));
    node.until_is("the lock", &Some(HIGHEST), || node.machine.sm_lock(0));
    rank.tell(Mark::StepEnd(0));
    rank.tell(Mark::StepBegin(1));
    node.until_is("the lock", &Some(plan.clocks(0)[0]), || node.machine.sm_lock(0));
    let status = node.rank(JOB, 0);
    assert_eq!((status.lost_events, status.mismatched_steps), (3, 1), "{status:?}");
    let expected = "3 events before sequence number 4 did not arrive";
    node.until_is("the last mismatch", &Some(expected.to_owned()), || {
        node.rank(JOB, 0).last_mismatch
    });
    rank.say(&ClientMessage::Goodbye);
    node.assert_only_locked(&[]);
}

#[test]
fn a_mismatch_runs_at_the_highest_clock_that_the_rule_allows() {
    let node = Node::start_with(&Setup { max_mhz: 1500, ..Setup::default() });
    let rank = Rank::open(&node, JOB, 0, 1, 3);
    node.take_up(JOB, &TestPlan::distinct(1, 3, 600));
    rank.session.step_begin();
    rank.instruction(4);
    node.until_is("the lock", &Some(1500), || node.machine.sm_lock(0));
}
