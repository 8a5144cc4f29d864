//! What one participant answers and decides, event by event.

use std::collections::BTreeMap;

use pfo_fleet::{
    Abort, Action, Answer, Change, Decision, Degrees, Digest, Event, Gpus, Length, Member, Node,
    OnPartition, Participant, Place, PlanCut, Proposal, Purpose, Report, Run, Runs, Seen, Settings,
    Shared, Told, Took, Write,
};
use pfo_vocabulary::{DpRank, Rank, Stage, TpRank, Uid};

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
        held: None,
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
    }
}

/// Node `a` of a job that is complete, whose next step is this.
struct Alone(Participant, u64);

impl Alone {
    fn at(next_step: u64) -> Self {
        Self::with(next_step, &["a", "b"])
    }

    fn with(next_step: u64, names: &[&str]) -> Self {
        Self::set(next_step, names, Settings::default())
    }

    fn set(next_step: u64, names: &[&str], settings: Settings) -> Self {
        let member = |(stage, name): (usize, &&str)| {
            let (degrees, places) = (degrees(), vec![place(stage as u16)]);
            (node(name), Member { degrees, places, gpus: Gpus::default(), measures: false })
        };
        let members: BTreeMap<_, _> = names.iter().enumerate().map(member).collect();
        let mut alone = Self(Participant::new(node("a"), settings, 0), next_step);
        alone.0.on(Event::Tick(0));
        alone.give(Event::Looked(Some(seen(next_step))));
        alone.give(Event::Snapshot(Shared { members, ..Shared::default() }));
        alone
    }

    /// Gives an event, and answers for `pfod` and whoever has slices.
    fn give(&mut self, event: Event) -> Vec<Action> {
        let mut all = Vec::new();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.0.on(event) {
                match &action {
                    Action::Look => events.push(Event::Looked(Some(seen(self.1)))),
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
    let actions = alone.give(Event::Wished(run(), Uid(1), Purpose::Swap));
    let [Action::Propose { number: 1, proposal: sent, forget_below: 0 }] = &actions[..] else {
        panic!("{actions:?}")
    };
    // 3 s of steps of 1 s, one more, and 2 that another rank may be ahead.
    assert_eq!(*sent, proposal(106, 100));
}

#[test]
fn members_that_were_too_slow_get_twice_the_lead_and_at_the_third_time_the_user_hears_it() {
    let mut alone = Alone::at(100);
    let mut actions = alone.give(Event::Wished(run(), Uid(1), Purpose::Swap));
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
    let actions = alone.give(Event::Wished(run(), Uid(1), Purpose::Swap));
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
    let back = alone.give(Event::Snapshot(shared));
    assert!(matches!(&back[..], [Action::Swap(_, None)]), "{back:?}");
}

#[test]
fn a_store_that_has_forgotten_the_job_begins_with_its_first_swap_again() {
    let mut alone = Alone::at(100);
    for step in [106, 206] {
        alone.1 = step - 6;
        let run = Run::DefaultClocks;
        alone.change(Change::Proposal(1, Proposal { run, ..proposal(step, step - 6) }));
        alone.1 = step + 1;
        let report = Report { took: Some(Took { number: 1, step }), late: None };
        let actions = alone.change(Change::Decision(1, Decision::Commit));
        assert_eq!(actions, [Action::Report(report.clone())]);
        alone.change(Change::Report(node("a"), report));
        let members = alone.0.shared().unwrap().members.clone();
        assert_eq!(alone.give(Event::Snapshot(Shared { members, ..Shared::default() })), []);
    }
}

#[test]
fn a_trial_is_proposed_once_the_others_know_who_holds_the_job() {
    let mut alone = Alone::at(100);
    let purpose = Purpose::Trial(Length { settling_steps: 2, steps: 10 });
    let actions = alone.give(Event::Wished(run(), Uid(1), purpose));
    let [Action::Join(member)] = &actions[..] else { panic!("{actions:?}") };
    assert!(member.measures);
    let actions = alone.change(Change::Member(node("a"), Some(member.clone())));
    let [Action::Propose { number: 1, proposal, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(proposal.first_step(), Some(proposal.step + 2));
    let first_step = proposal.step + 2;
    alone.change(Change::Proposal(1, proposal.clone()));
    let actions = alone.change(Change::Decision(1, Decision::Commit));
    let measured = Action::Measure { number: 1, first_step, steps: 10 };
    assert!(actions.contains(&measured), "{actions:?}");
    assert!(!alone.give(Event::Tick(100)).contains(&measured), "once");
    let refused = alone.give(Event::Wished(run(), Uid(2), Purpose::Swap));
    assert!(refused.contains(&Action::Tell(Told::Held(node("a")))), "{refused:?}");
}
