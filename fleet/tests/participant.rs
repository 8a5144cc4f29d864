//! What one participant answers and decides, event by event.

use std::collections::BTreeMap;

use pfo_fleet::{
    Abort, Action, Answer, Budgeted, Change, Decision, Degrees, Digest, Event, Gpus, Guard, Late,
    Length, Member, Node, OnPartition, Participant, Place, PlanCut, Proposal, Purpose, Report, Run,
    Runs, Seen, Settings, Shared, Standing, SwapAnswer, Terms, Told, Took, Trial, View, Write,
};
use pfo_vocabulary::{DpRank, Mhz, Rank, Stage, TpRank, Uid};

const SLICE: Digest = Digest([7; 32]);

fn node(name: &str) -> Node {
    name.parse().unwrap()
}

fn place(stage: u16) -> Place {
    Place { rank: Rank(stage.into()), stage: Stage(stage), dp: DpRank(0), tp: TpRank(0) }
}

fn degrees() -> Degrees {
    Degrees { pp: 2, dp: 1, tp: 1 }
}

fn seen(next_step: u64) -> Seen {
    Seen {
        degrees: degrees(),
        places: vec![place(0)],
        gpus: Gpus::default(),
        next_step: Some(next_step),
        step_ms: Some(1000),
        runs: Runs::DefaultClocks,
        swap: 0,
        held: None,
        slow: Vec::new(),
        astray: None,
        shown: false,
    }
}

fn run() -> Run {
    let stages = vec![SLICE; 2];
    Run::Plan(PlanCut { label: "p.json".into(), num_microbatches: 4, predicted: None, stages })
}

fn proposal(step: u64, proposed_at: u64) -> Proposal {
    let members = ["a", "b"].map(node).into();
    Proposal {
        run: run(),
        step,
        members,
        proposed_at,
        by_uid: Uid(1),
        by_node: node("a"),
        trial: None,
        standing: Standing::default(),
        rollback: None,
        compared: Vec::new(),
    }
}

/// Node `a` of a job that is complete, whose next step is this, and the time of its steps.
#[derive(Clone)]
struct Alone(Participant, u64, Option<u64>);

/// What `pfod` of a node shows when its next step is this.
fn shows(next_step: u64, (runs, swap): (Runs, u64)) -> Event {
    Event::Looked(Some(Seen { runs, swap, ..seen(next_step) }))
}

impl Alone {
    fn at(next_step: u64) -> Self {
        Self::with(next_step, &["a", "b"])
    }

    fn with(next_step: u64, names: &[&str]) -> Self {
        Self::set(next_step, names, Settings::default())
    }

    /// The same, of whose steps none was measured.
    fn unmeasured(next_step: u64) -> Self {
        Self::begin(next_step, &["a", "b"], (Settings::default(), None))
    }

    fn set(next_step: u64, names: &[&str], settings: Settings) -> Self {
        Self::begin(next_step, names, (settings, Some(1000)))
    }

    fn begin(next: u64, names: &[&str], (settings, step_ms): (Settings, Option<u64>)) -> Self {
        let member = |(stage, name): (usize, &&str)| {
            let (degrees, places) = (degrees(), vec![place(stage as u16)]);
            (
                node(name),
                Member {
                    degrees,
                    places,
                    gpus: Gpus::default(),
                    measures: false,
                    slow: Vec::new(),
                },
            )
        };
        let members: BTreeMap<_, _> = names.iter().enumerate().map(member).collect();
        let mut alone = Self(Participant::new(node("a"), settings, 0), next, step_ms);
        alone.0.on(Event::Tick(0));
        let first = alone.seen();
        alone.give(Event::Looked(Some(first)));
        alone.give(Event::Snapshot(View::Whole, Shared { members, ..Shared::default() }));
        alone
    }

    fn seen(&self) -> Seen {
        Seen { step_ms: self.2, ..seen(self.1) }
    }

    /// Gives an event, and answers for `pfod` and the agents that have slices.
    fn give(&mut self, event: Event) -> Vec<Action> {
        let mut all = Vec::new();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.0.on(event) {
                match &action {
                    Action::Look => events.push(Event::Looked(Some(self.seen()))),
                    Action::Fetch(slices) => events.push(Event::Fetched(slices.clone())),
                    Action::Load(number, _) => events.push(Event::Loaded(*number, Some(Ok(())))),
                    _ => all.push(action),
                }
            }
        }
        all
    }

    fn change(&mut self, change: Change) -> Vec<Action> {
        self.give(Event::Changed(change))
    }
}

#[test]
fn a_swap_is_proposed_as_many_steps_ahead_as_the_lead_takes() {
    let mut alone = Alone::at(100);
    let actions = alone.give(Event::Wished(run(), Uid(1), Purpose::Swap, Terms::default()));
    let [Action::Propose { number: 1, proposal: sent, forget_below: 0 }] = &actions[..] else {
        panic!("{actions:?}")
    };
    // 3 s of steps of 1 s, one more, and 2 that another rank may be ahead.
    assert_eq!(*sent, proposal(106, 100));
}

#[test]
fn members_that_were_too_slow_get_twice_the_lead_and_at_the_third_time_the_user_hears_it() {
    let mut alone = Alone::at(100);
    let mut actions = alone.give(Event::Wished(run(), Uid(1), Purpose::Swap, Terms::default()));
    for (number, step) in [(1, 106), (2, 109), (3, 115)] {
        let [Action::Propose { proposal: sent, .. }] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(*sent, proposal(step, 100));
        alone.change(Change::Proposal(number, sent.clone()));
        let late = Abort::TooLate([node("b")].into());
        actions = alone.change(Change::Decision(number, Decision::Abort(late)));
    }
    let late = Abort::TooLate([node("b")].into());
    assert_eq!(actions, [Action::Tell(Told::Aborted(late, 3))]);
}

#[test]
fn a_job_that_lacks_a_rank_is_not_changed() {
    let mut alone = Alone::with(100, &["a"]);
    let actions = alone.give(Event::Wished(run(), Uid(1), Purpose::Swap, Terms::default()));
    let [Action::Tell(Told::Incomplete(why))] = &actions[..] else { panic!("{actions:?}") };
    assert!(why.to_string().starts_with("1 of 2 ranks are there, on 1 nodes"), "{why}");
}

#[test]
fn a_node_arms_what_fits_and_vetoes_what_does_not() {
    let answer = |next_step, fits: Result<(), String>| {
        let mut alone = Alone::at(next_step);
        let mut actions = alone.0.on(Event::Changed(Change::Proposal(1, proposal(106, 100))));
        actions.extend(alone.0.on(Event::Looked(Some(seen(next_step)))));
        actions.extend(alone.0.on(Event::Fetched([SLICE].into())));
        actions.extend(alone.0.on(Event::Loaded(1, Some(fits))));
        actions.into_iter().find_map(|action| match action {
            Action::Arm(1, answer) => Some(answer),
            _ => None,
        })
    };
    assert_eq!(answer(101, Ok(())), Some(Answer::Armed(101)));
    assert_eq!(answer(106, Ok(())), Some(Answer::TooLate(106)));
    let wrong = "stage 0 asks for 1000 MHz".to_owned();
    assert_eq!(answer(101, Err(wrong.clone())), Some(Answer::Veto(wrong)));
}

#[test]
fn a_node_that_counts_fewer_steps_than_the_proposer_did_before_says_so() {
    let mut alone = Alone::at(12);
    let actions = alone.change(Change::Proposal(1, proposal(5005, 5000)));
    let [Action::Arm(1, Answer::Veto(why))] = &actions[..] else { panic!("{actions:?}") };
    assert!(why.starts_with("it counts steps differently: its next one was 12 after"), "{why}");
}

#[test]
fn a_node_that_had_counted_more_steps_than_others_have_now_is_named() {
    let mut alone = Alone::at(100);
    alone.change(Change::Proposal(1, proposal(106, 100)));
    alone.change(Change::Answer(1, node("a"), Answer::Armed(100)));
    let actions = alone.change(Change::Answer(1, node("b"), Answer::Armed(103)));
    let [Action::Decide(1, Decision::Abort(why))] = &actions[..] else { panic!("{actions:?}") };
    assert!(why.to_string().starts_with("node b counts steps differently"), "{why}");
}

#[test]
fn others_finish_what_a_proposer_began_and_only_after_a_while() {
    let mut alone = Alone::at(100);
    let by_b = Proposal { by_node: node("b"), ..proposal(106, 100) };
    alone.change(Change::Proposal(1, by_b));
    alone.change(Change::Answer(1, node("a"), Answer::Armed(100)));
    let early = alone.change(Change::Answer(1, node("b"), Answer::Armed(100)));
    assert_eq!(early, []);
    assert_eq!(alone.give(Event::Tick(900)), [Action::Decide(1, Decision::Commit)]);
}

#[test]
fn a_write_is_repeated_when_it_was_lost_and_not_when_it_was_taken() {
    let mut alone = Alone::at(100);
    let armed = [Action::Arm(1, Answer::Armed(100))];
    assert_eq!(alone.change(Change::Proposal(1, proposal(106, 100))), armed);
    assert_eq!(alone.give(Event::Written(Write::Arm, None)), armed);
    assert_eq!(alone.give(Event::Written(Write::Arm, Some(true))), []);
    assert_eq!(alone.give(Event::Tick(1)), []);
}

#[test]
fn a_node_that_is_cut_off_stays_at_default_clocks_until_the_store_is_back() {
    let settings =
        Settings { on_partition: OnPartition::DefaultClocks(45_000), ..Settings::default() };
    let mut alone = Alone::set(200, &["a", "b"], settings);
    alone.change(Change::Proposal(1, proposal(106, 100)));
    // It is late, and has said so; it would change now.
    let [Action::Report(late)] = &alone.change(Change::Decision(1, Decision::Commit))[..] else {
        panic!()
    };
    alone.give(Event::StoreAway);
    alone.give(Event::Tick(50_000));
    let late = Change::Report(node("a"), late.clone());
    assert_eq!(alone.change(late), []);
    for now_ms in (51_000..60_000).step_by(500) {
        assert_eq!(alone.give(Event::Tick(now_ms)), []);
    }
    let shared = alone.0.shared().unwrap().clone();
    let back = alone.give(Event::Snapshot(View::Whole, shared));
    assert!(matches!(&back[..], [Action::Swap { at: None, .. }]), "{back:?}");
}

#[test]
fn a_store_that_has_forgotten_the_job_begins_with_its_first_swap_again() {
    let mut alone = Alone::at(100);
    for step in [106, 206] {
        alone.1 = step - 6;
        let run = Run::DefaultClocks;
        alone.change(Change::Proposal(1, Proposal { run, ..proposal(step, step - 6) }));
        alone.1 = step + 1;
        let report = Report { took: Some(Took { number: 1, step }), late: None, shown: 0 };
        let actions = alone.change(Change::Decision(1, Decision::Commit));
        assert_eq!(actions, [Action::Report(report.clone())]);
        alone.change(Change::Report(node("a"), report));
        let members = alone.0.shared().unwrap().members.clone();
        assert_eq!(
            alone.give(Event::Snapshot(View::Whole, Shared { members, ..Shared::default() })),
            []
        );
    }
}

#[test]
fn a_store_that_was_restored_from_an_older_snapshot_is_the_reason_why_a_node_is_late() {
    let mut alone = Alone::at(100);
    for (number, step) in [(1, 106), (2, 120)] {
        let sent = Proposal { run: Run::DefaultClocks, ..proposal(step, 100) };
        commit(&mut alone, number, &sent);
    }
    let mut older = alone.0.shared().unwrap().clone();
    older.swaps.remove(&2);
    older.swaps.get_mut(&1).unwrap().proposal = proposal(106, 100).into();
    older.reports.clear();
    alone.give(Event::StoreAway);
    let actions = alone.give(Event::Snapshot(View::Whole, older));
    let late = actions.iter().find_map(|action| match action {
        Action::Report(report) => report.late.clone(),
        _ => None,
    });
    let why = late.unwrap_or_else(|| panic!("{actions:?}")).why;
    assert_eq!(why, "the store is older than swap 2, which this node ran");
}

/// A look that shows this, a while after the last one. Returns what is reported late for it.
fn late_at(b: &mut Participant, now_ms: u64, looked: Event) -> Option<(u64, String)> {
    let mut actions = b.on(Event::Tick(now_ms));
    // What it looked at before the time had passed is not new enough.
    actions.extend(b.on(looked.clone()));
    actions.extend(b.on(looked));
    actions.into_iter().find_map(|action| match action {
        Action::Report(report) => report.late.map(|late| (late.from, late.why)),
        _ => None,
    })
}

/// An agent of node `a` that begins when the node has taken up default clocks, at step 106 and as the third
/// swap of its `pfod`, and what it sees first.
fn begins_after_a_swap(first: Event) -> (Participant, Option<(u64, String)>) {
    let mut shared = Shared::default();
    let sent = Proposal { run: Run::DefaultClocks, ..proposal(106, 100) };
    shared.apply(Change::Proposal(1, sent));
    shared.apply(Change::Decision(1, Decision::Commit));
    let took = Some(Took { number: 1, step: 106 });
    shared.apply(Change::Report(node("a"), Report { took, late: None, shown: 0 }));
    let mut agent = Participant::new(node("a"), Settings::default(), 0);
    agent.on(Event::Tick(0));
    agent.on(Event::Snapshot(View::Part, shared));
    agent.on(Event::Looked(None));
    let late = late_at(&mut agent, 1000, first);
    (agent, late)
}

const OTHER: (Runs, u64) = (Runs::Uniform(Mhz(900)), 4);
const SAME: (Runs, u64) = (Runs::DefaultClocks, 3);

#[test]
fn a_node_that_was_swapped_alone_is_late_from_the_step_that_may_have_differed_first() {
    let (mut agent, late) = begins_after_a_swap(shows(900, SAME));
    assert_eq!(late, None);
    assert_eq!(late_at(&mut agent, 2000, shows(942, SAME)), None);
    let why = "this node alone was swapped to something else".to_owned();
    assert_eq!(late_at(&mut agent, 3000, shows(944, OTHER)), Some((942, why)));
}

#[test]
fn a_node_that_was_swapped_alone_before_its_next_swap_is_late_from_then_on() {
    let (mut agent, _) = begins_after_a_swap(shows(900, SAME));
    agent.on(Event::Changed(Change::Proposal(2, proposal(990, 930))));
    agent.on(Event::Fetched([SLICE].into()));
    agent.on(Event::Changed(Change::Decision(2, Decision::Commit)));
    let arranges = [agent.on(shows(931, SAME)), agent.on(shows(932, SAME))].concat();
    assert!(arranges.iter().any(|action| matches!(action, Action::Swap { at: Some(990), .. })));
    agent.on(Event::Swapped(SwapAnswer::At(990)));
    let waits = || (Runs::Slices([(Stage(0), SLICE)].into()), 4);
    assert_eq!(late_at(&mut agent, 2000, shows(950, waits())), None);
    let why = "this node alone was swapped to something else".to_owned();
    let other = (Runs::Uniform(Mhz(900)), 5);
    assert_eq!(late_at(&mut agent, 3000, shows(952, other)), Some((950, why)));
}

#[test]
fn why_a_node_left_what_all_run_is_what_happened_there() {
    let (_, late) = begins_after_a_swap(shows(942, OTHER));
    let away = "this node alone was swapped to something else while its agent was away".to_owned();
    assert_eq!(late, Some((106, away)), "the agent cannot know when");
    let lost = "its pfod has forgotten what the job ran".to_owned();
    let anew = (Runs::Uniform(Mhz(900)), 0);
    let (mut agent, _) = begins_after_a_swap(shows(900, SAME));
    assert_eq!(late_at(&mut agent, 2000, shows(902, anew.clone())), Some((900, lost.clone())));
    let (mut agent, _) = begins_after_a_swap(shows(900, SAME));
    assert_eq!(late_at(&mut agent, 2000, shows(850, anew)), Some((106, lost)), "steps run again");
}

#[test]
fn a_node_whose_driver_refuses_a_plan_is_late_until_it_does_not() {
    let astray = |next_step| {
        let (runs, swap) = SAME;
        let astray = Some("rank 0 (GPU-1): no permission".to_owned());
        Event::Looked(Some(Seen { runs, swap, astray, ..seen(next_step) }))
    };
    let (mut agent, late) = begins_after_a_swap(astray(107));
    let why = "rank 0 (GPU-1): no permission".to_owned();
    assert_eq!(late, Some((106, why.clone())));
    let took = Some(Took { number: 1, step: 106 });
    let late = Some(Late { number: 1, from: 106, until: None, why });
    agent.on(Event::Written(Write::Report, Some(true)));
    agent.on(Event::Changed(Change::Report(node("a"), Report { took, late, shown: 0 })));
    assert_eq!(late_at(&mut agent, 2000, astray(109)), None, "that is known");
    let mut actions = agent.on(Event::Tick(3000));
    actions.extend([agent.on(shows(111, SAME)), agent.on(shows(111, SAME))].concat());
    let until = actions.into_iter().find_map(|action| match action {
        Action::Report(report) => report.late.map(|late| late.until),
        _ => None,
    });
    assert_eq!(until, Some(Some(111)));
}

#[test]
fn a_node_says_once_that_its_gpus_show_what_all_run() {
    let shows = |next_step, shown| {
        let (runs, swap) = SAME;
        Event::Looked(Some(Seen { runs, swap, shown, ..seen(next_step) }))
    };
    let reported = |actions: Vec<Action>| {
        actions.into_iter().find_map(|action| match action {
            Action::Report(report) => Some(report),
            _ => None,
        })
    };
    let (mut agent, _) = begins_after_a_swap(shows(107, false));
    agent.on(Event::Tick(2000));
    assert_eq!(reported(agent.on(shows(109, false))), None);
    agent.on(Event::Tick(3000));
    let said = reported(agent.on(shows(111, true)));
    let took = Some(Took { number: 1, step: 106 });
    assert_eq!(said, Some(Report { took, late: None, shown: 1 }));
    agent.on(Event::Written(Write::Report, Some(true)));
    agent.on(Event::Changed(Change::Report(node("a"), said.unwrap())));
    agent.on(Event::Tick(4000));
    assert_eq!(reported(agent.on(shows(113, true))), None);
}

#[test]
fn a_trial_is_proposed_once_the_others_know_who_holds_the_job() {
    let mut alone = Alone::at(100);
    let purpose = Purpose::Trial(Length { settling_steps: 2, steps: 10, samples: true });
    let actions = alone.give(Event::Wished(run(), Uid(1), purpose, Terms::default()));
    let [Action::Join(member)] = &actions[..] else { panic!("{actions:?}") };
    assert!(member.measures);
    let actions = alone.change(Change::Member(node("a"), Some(member.clone())));
    let [Action::Propose { number: 1, proposal, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(proposal.first_step(), Some(proposal.step + 2));
    let first_step = proposal.step + 2;
    alone.change(Change::Proposal(1, proposal.clone()));
    let actions = alone.change(Change::Decision(1, Decision::Commit));
    let measured = Action::Measure { number: 1, first_step, steps: 10, samples: true };
    assert!(actions.contains(&measured), "{actions:?}");
    assert!(!alone.give(Event::Tick(100)).contains(&measured), "once");
    let refused = alone.give(Event::Wished(run(), Uid(2), Purpose::Swap, Terms::default()));
    assert!(refused.contains(&Action::Tell(Told::Held(node("a")))), "{refused:?}");
}

#[test]
fn a_trial_after_another_one_is_as_far_ahead_as_the_nodes_took_to_agree_but_never_further() {
    for (took_ms, steps) in [(0, 1), (250, 2), (5000, 3)] {
        let mut alone = Alone::at(100);
        let trial = Purpose::Trial(Length { settling_steps: 1, steps: 5, samples: false });
        let proposed = |actions: &[Action]| match actions {
            [Action::Propose { number, proposal, .. }] => Some((*number, proposal.clone())),
            _ => None,
        };
        let actions =
            alone.give(Event::Wished(Run::DefaultClocks, Uid(1), trial, Terms::default()));
        let [Action::Join(member)] = &actions[..] else { panic!("{actions:?}") };
        let actions = alone.change(Change::Member(node("a"), Some(member.clone())));
        let (number, first) = proposed(&actions).unwrap();
        assert_eq!(first.step, 106, "3 s of steps of 1 s, 2 of slack and one more");
        alone.change(Change::Proposal(number, first.clone()));
        alone.give(Event::Tick(took_ms));
        commit(&mut alone, number, &first);
        let actions =
            alone.give(Event::Wished(Run::DefaultClocks, Uid(1), trial, Terms::default()));
        let (_, next) = proposed(&actions).unwrap_or_else(|| panic!("{actions:?}"));
        assert_eq!(next.step - next.proposed_at - 3, steps, "{took_ms} ms");
    }
}

#[test]
fn the_first_trial_after_a_swap_is_as_far_ahead_as_a_swap() {
    let mut alone = Alone::at(100);
    let actions =
        alone.give(Event::Wished(Run::DefaultClocks, Uid(1), Purpose::Swap, Terms::default()));
    let [Action::Propose { number, proposal: swap, .. }] = &actions[..] else {
        panic!("{actions:?}")
    };
    commit(&mut alone, *number, swap);
    let trial = Purpose::Trial(Length { settling_steps: 1, steps: 5, samples: false });
    let actions = alone.give(Event::Wished(Run::DefaultClocks, Uid(1), trial, Terms::default()));
    let join = actions.iter().find_map(|action| match action {
        Action::Join(member) => Some(member.clone()),
        _ => None,
    });
    let actions = alone.change(Change::Member(node("a"), Some(join.unwrap())));
    let next = actions.iter().find_map(|action| match action {
        Action::Propose { proposal, .. } => Some(proposal.clone()),
        _ => None,
    });
    let next = next.unwrap_or_else(|| panic!("{actions:?}"));
    assert_eq!(next.step - next.proposed_at - 3, 3, "3 s of steps of 1 s");
}

#[test]
fn a_wish_hears_that_another_one_is_under_way_or_that_the_job_has_changed() {
    let mut alone = Alone::at(100);
    let wished = |terms| Event::Wished(run(), Uid(1), Purpose::Swap, terms);
    let after = Terms { after: Some(4), ..Terms::default() };
    assert_eq!(alone.give(wished(after)), [Action::Tell(Told::Changed)]);
    let proposed = alone.give(wished(Terms::default()));
    assert!(matches!(proposed[..], [Action::Propose { .. }]), "{proposed:?}");
    assert_eq!(alone.give(wished(Terms::default())), [Action::Tell(Told::Busy)]);
}

/// Node `b`, which has the second rank and watches a part of the job.
fn bystander() -> Participant {
    let mut b = Participant::new(node("b"), Settings::default(), 0);
    let places = vec![place(1)];
    b.on(Event::Tick(0));
    b.on(Event::Looked(Some(Seen { places, ..seen(100) })));
    b.on(Event::Snapshot(View::Part, Shared::default()));
    b
}

fn watches(actions: &[Action]) -> Option<View> {
    actions.iter().find_map(|action| match action {
        Action::Watch(view) => Some(*view),
        _ => None,
    })
}

#[test]
fn a_bystander_watches_the_whole_job_when_it_is_its_turn_to_decide_and_until_then_decides_nothing()
{
    let mut b = bystander();
    let proposed = b.on(Event::Changed(Change::Proposal(1, proposal(106, 100))));
    assert_eq!(watches(&proposed), None);
    assert_eq!(watches(&b.on(Event::Tick(999))), None);
    assert_eq!(watches(&b.on(Event::Tick(1000))), Some(View::Whole));
    // Nobody has armed as far as it sees, and it sees no member: that is no reason to abort.
    let looked = Seen { places: vec![place(1)], ..seen(200) };
    let actions = b.on(Event::Looked(Some(looked)));
    assert!(!actions.iter().any(|action| matches!(action, Action::Decide(..))), "{actions:?}");
    let decided = b.on(Event::Changed(Change::Decision(1, Decision::Commit)));
    assert_eq!(watches(&decided), Some(View::Part));
}

#[test]
fn who_wishes_watches_the_whole_job_before_it_proposes() {
    let mut b = bystander();
    let actions = b.on(Event::Wished(run(), Uid(1), Purpose::Swap, Terms::default()));
    assert_eq!(watches(&actions), Some(View::Whole));
    let places = vec![place(1)];
    let told = b.on(Event::Looked(Some(Seen { places, ..seen(100) })));
    let is_early = |action: &Action| matches!(action, Action::Tell(_) | Action::Propose { .. });
    assert!(!told.iter().any(is_early), "one node of two is all that it sees: {told:?}");
    assert_eq!(watches(&b.on(Event::Asked)), None, "it does already");
}

/// What is proposed or said to a wish on these terms, if there is one swap so far, which all run.
fn wished(alone: &mut Alone, run: Run, terms: Terms) -> Vec<Action> {
    alone.give(Event::Wished(run, Uid(1), Purpose::Swap, terms))
}

#[test]
fn a_step_that_is_named_is_proposed_once_or_refused_with_those_that_are_possible() {
    let at = |at| Terms { at: Some(at), ..Terms::default() };
    for impossible in [1, 100, 102, 3704] {
        let told = Told::NotAt(impossible, 103..=3703);
        let actions = wished(&mut Alone::at(100), run(), at(impossible));
        assert_eq!(actions, [Action::Tell(told)]);
    }
    let mut alone = Alone::at(100);
    let actions = wished(&mut alone, run(), at(250));
    let [Action::Propose { proposal: sent, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(*sent, proposal(250, 100));
    alone.change(Change::Proposal(1, sent.clone()));
    let late = Abort::TooLate([node("b")].into());
    let actions = alone.change(Change::Decision(1, Decision::Abort(late.clone())));
    assert_eq!(actions, [Action::Tell(Told::Aborted(late, 1))]);
}

/// A node that has arranged default clocks from a step on.
fn arranged(step: u64) -> Alone {
    let mut alone = Alone::at(100);
    let sent = Proposal { run: Run::DefaultClocks, ..proposal(step, 100) };
    alone.change(Change::Proposal(1, sent));
    alone.change(Change::Decision(1, Decision::Commit));
    alone.give(Event::Swapped(SwapAnswer::At(step)));
    alone
}

#[test]
fn a_swap_that_has_not_begun_is_replaced_by_one_that_begins_no_later() {
    let actions = wished(&mut arranged(250), run(), Terms::default());
    let [Action::Propose { number: 2, proposal: sent, .. }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!((sent.step, &sent.run), (106, &run()));
    assert_eq!(sent.rollback, Some(Run::DefaultClocks), "what it replaces never runs");
    // What is nearer than another one could be has its step.
    let actions = wished(&mut arranged(105), run(), Terms::default());
    let [Action::Propose { proposal: sent, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(sent.step, 105);
}

#[test]
fn a_swap_that_has_not_begun_is_armed_to_be_replaced_by_an_earlier_one_and_not_by_a_later_one() {
    for (step, armed) in [(250, true), (251, false)] {
        let mut alone = arranged(250);
        let asked = Proposal { by_node: node("b"), ..proposal(step, 100) };
        let actions = alone.change(Change::Proposal(2, asked));
        let is_armed = actions.contains(&Action::Arm(2, Answer::Armed(100)));
        assert_eq!(is_armed, armed, "{actions:?}");
    }
}

#[test]
fn what_is_wished_for_a_step_after_a_swap_that_is_far_ahead_hears_of_that() {
    let terms = Terms { at: Some(300), ..Terms::default() };
    let actions = wished(&mut arranged(250), run(), terms);
    assert_eq!(actions, [Action::Tell(Told::ToCome { number: 1, step: 250 })]);
}

#[test]
fn before_a_step_was_measured_a_swap_waits_until_a_lead_was_watched_and_is_near_then() {
    let mut alone = Alone::unmeasured(1);
    assert_eq!(wished(&mut alone, run(), Terms::default()), []);
    assert_eq!(alone.give(Event::Tick(2900)), []);
    let actions = alone.give(Event::Tick(4000));
    let [Action::Propose { proposal: sent, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(sent.step, 3, "a step takes 4 s at least");
}

/// Commits a proposal, as the swap of this number, and lets the node run it for a while. Returns what it
/// does after that.
fn commit(alone: &mut Alone, number: u64, sent: &Proposal) -> Vec<Action> {
    alone.change(Change::Proposal(number, sent.clone()));
    alone.change(Change::Decision(number, Decision::Commit));
    alone.give(Event::Swapped(SwapAnswer::At(sent.step)));
    alone.1 = sent.step + 1;
    let mut actions = alone.give(Event::Tick(10_000 * number));
    let took = Some(Took { number, step: sent.step });
    actions.extend(alone.change(Change::Report(node("a"), Report { took, late: None, shown: 0 })));
    actions.retain(|action| !matches!(action, Action::Report(_)));
    actions
}

#[test]
fn what_stands_beside_a_plan_is_carried_on_and_another_plan_is_guarded_anew() {
    let mut alone = Alone::at(100);
    let guard = Guard::of(0.01, node("a"), 100).after(9, Some((0.5, 100)));
    let standing = Standing { guard: Some(guard.clone()), ..Standing::default() };
    // Nothing is run so that `pfod` shows what it does in this test.
    let first =
        Proposal { run: Run::DefaultClocks, standing: standing.clone(), ..proposal(106, 100) };
    commit(&mut alone, 1, &first);
    let shared = alone.0.shared().unwrap();
    assert_eq!(shared.standing(), Some(&standing));
    let proposed = |actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::Propose { proposal, .. } => Some(proposal.clone()),
            _ => None,
        })
    };
    let same = wished(&mut alone.clone(), Run::DefaultClocks, Terms::default());
    let same = proposed(&same).unwrap();
    assert_eq!((same.standing, same.rollback), (standing, Some(Run::DefaultClocks)));
    let another = proposed(&wished(&mut alone.clone(), run(), Terms::default())).unwrap();
    let anew = Standing { guard: Some(guard.anew(another.step)), ..Standing::default() };
    assert_eq!((another.standing, another.rollback), (anew, None));
    let late = Terms { after: Some(7), ..Terms::default() };
    let told = wished(&mut alone, run(), late);
    assert!(matches!(told[..], [Action::Tell(Told::Changed)]), "{told:?}");
}

#[test]
fn a_rollback_leads_to_no_plan_that_a_power_budget_had_the_job_run() {
    let proposed = |actions: &[Action]| {
        let rollback = |action: &Action| match action {
            Action::Propose { proposal, .. } => Some(proposal.rollback.clone()),
            _ => None,
        };
        actions.iter().find_map(rollback).unwrap()
    };
    let own = Run::Uniform(Mhz(900));
    let budgeted = Budgeted { before: own.clone(), time_s: 1.0, power_w: 9.0, tag: 3 };
    let standing = Standing { budgeted: Some(budgeted), ..Standing::default() };
    // Nothing is run so that `pfod` shows what it does in this test.
    let slowed =
        Proposal { run: Run::DefaultClocks, standing: standing.clone(), ..proposal(106, 100) };
    let mut alone = Alone::at(100);
    commit(&mut alone, 1, &slowed);
    let again = Terms { standing: Some(standing), ..Terms::default() };
    for terms in [again, Terms::default()] {
        let another = wished(&mut alone.clone(), run(), terms);
        assert_eq!(proposed(&another), Some(own.clone()));
    }
}

#[test]
fn a_comparison_that_nobody_runs_any_more_leads_to_what_was_compared_and_is_paid_for() {
    let mut alone = Alone::at(100);
    let guard = Guard::of(0.01, node("b"), 100);
    let length = Length { settling_steps: 1, steps: 2, samples: false };
    let compared = Proposal {
        run: Run::DefaultClocks,
        by_node: node("b"),
        trial: Some(Trial { length, before: Run::DefaultClocks, returns: true }),
        standing: Standing { guard: Some(guard.clone()), ..Standing::default() },
        rollback: Some(run()),
        ..proposal(106, 100)
    };
    let actions = commit(&mut alone, 1, &compared);
    let [Action::Propose { proposal: back, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((&back.run, &back.trial), (&Run::DefaultClocks, &None));
    let paid = guard.after(back.step - 106, None);
    assert_eq!(back.standing.guard, Some(paid));
    assert_eq!(back.rollback, Some(run()), "a rollback leads to what it led to before");
}
