//! The decision for a fleet, without a store.

use std::collections::{BTreeMap, BTreeSet};

use pfo_fleet::Node;
use pfo_protocol::{BudgetFileTrouble, BudgetLevel, BudgetOrder, BudgetScope, BudgetSteering, Uid};

use super::decider::Decider;
use super::record::{Blueprint, Curves, Given, JobCurve, JobDraw, NodeDraw, Told, json};
use crate::budget::book::{Book, Kept};
use crate::budget::known::OWN;

const BASE_W: f64 = 100.0;

fn node(name: &str) -> Node {
    name.parse().unwrap()
}

fn book(budget_w: f64, emergency: bool) -> Book {
    let scope = BudgetScope::Fleet;
    let level = BudgetLevel::Watts(budget_w);
    let order = BudgetOrder {
        scope: scope.clone(),
        level,
        up_w_per_s: None,
        down_w_per_s: None,
        emergency,
    };
    let kept =
        Kept { order, by_uid: Uid(0), since_unix_s: 1, text: None, by_node: None, by_key: None };
    Book { orders: [(scope, kept)].into(), terms: BTreeMap::new() }
}

/// A curve from 1,000 W on.
fn curve(job: &str) -> JobCurve {
    JobCurve {
        uid: Uid(5),
        job: job.parse().unwrap(),
        steering: BudgetSteering::Plans,
        points: vec![(1.0, 1000.0, OWN), (1.1, 800.0, 7), (1.3, 700.0, 8)],
    }
}

/// A job at its own point, as a node tells of it.
fn job(name: &str, [ranks, all]: [u32; 2], drawn_w: f64, tells: bool) -> JobDraw {
    JobDraw {
        uid: Uid(5),
        job: name.parse().unwrap(),
        partition: None,
        scope: BudgetScope::Fleet,
        ranks,
        all,
        weight: None,
        slowest: None,
        drawn_w,
        free_w: drawn_w,
        measured_w: Some(drawn_w),
        running: Some(OWN),
        is_known: true,
        is_held: false,
        is_limited: false,
        curve: tells.then(|| curve(name).digest()),
        problem: None,
        given_j: 0.0,
        lost_s: 0.0,
    }
}

fn draw(number: u64, jobs: Vec<JobDraw>) -> NodeDraw {
    NodeDraw {
        number,
        every_s: 2,
        blueprint: u64::MAX,
        base_w: BASE_W,
        site_w: 5.0,
        limits_w: Some(3000.0),
        jobs,
        files: Vec::new(),
        disobeys: None,
        unread: None,
    }
}

/// Four nodes with a job over all of them, of which node b has the frontier, and one of node a alone.
fn said(number: u64) -> BTreeMap<Node, NodeDraw> {
    let mut said = BTreeMap::new();
    for name in ["a", "b", "c", "d"] {
        let mut jobs = vec![job("whole", [1, 4], 250.0, name == "b")];
        if name == "a" {
            jobs.push(job("local", [4, 4], 1000.0, true));
        }
        said.insert(node(name), draw(number, jobs));
    }
    said
}

fn curves() -> BTreeMap<Node, Curves> {
    let of = |name: &str, job: &str| (node(name), Curves(vec![curve(job)]));
    [of("a", "local"), of("b", "whole")].into()
}

fn decider(before: Option<Blueprint>, said: BTreeMap<Node, NodeDraw>) -> Decider {
    let mut decider = Decider::after(node("a"), before);
    decider.hear(said, 2.0);
    assert!(!decider.lacking().is_empty(), "no curve is known yet");
    decider.learn(curves());
    decider
}

fn given<'a>(blueprint: &'a Blueprint, job: &str) -> &'a Given {
    blueprint.jobs.iter().find(|given| given.shown.job.as_str() == job).unwrap()
}

fn nobody() -> BTreeSet<Node> {
    BTreeSet::new()
}

#[test]
fn a_job_over_all_nodes_counts_once_and_one_node_has_it_change() {
    let blueprint = decider(None, said(1)).decide(&book(2100.0, false), &nobody(), 2.0);
    let whole = given(&blueprint, "whole");
    assert_eq!((whole.by.clone(), whole.is_whole, whole.gpus), (Some(node("b")), true, 4));
    let status = &blueprint.budgets[0];
    assert_eq!((status.drawn_w, status.base_w), (Some(2400.0), 400.0));
    let changes: Vec<_> = blueprint.jobs.iter().filter_map(|given| given.to).collect();
    assert!(!changes.is_empty() && changes.iter().all(|tag| [7, 8].contains(tag)), "{changes:?}");
    let shares_w: f64 = blueprint.nodes.values().map(|share| share.share_w).sum();
    assert!((shares_w - 2100.0).abs() < 1.0, "all of the budget is shared out: {shares_w}");
    assert_eq!(Blueprint::read(&json(&blueprint)), Some(blueprint));
}

#[test]
fn jobs_of_one_name_on_two_nodes_are_two() {
    let mut said = said(1);
    let again = job("local", [4, 4], 1000.0, false);
    said.get_mut(&node("c")).unwrap().jobs.push(again);
    let blueprint = decider(None, said).decide(&book(2900.0, false), &nobody(), 2.0);
    let locals = blueprint.jobs.iter().filter(|given| given.shown.job.as_str() == "local");
    let by: Vec<_> = locals.map(|given| given.by.clone()).collect();
    assert_eq!(by, [Some(node("a")), Some(node("c"))]);
    assert_eq!(blueprint.budgets[0].problem, None);
}

#[test]
fn a_silent_node_counts_for_its_share_and_later_for_its_power_limits() {
    let mut decider = decider(None, said(1));
    let full = book(3000.0, false);
    let first = decider.decide(&full, &nobody(), 2.0);
    let share_w = first.nodes[&node("d")].share_w;
    assert!(share_w > 350.0);
    let base_w = |blueprint: &Blueprint| blueprint.budgets[0].base_w;
    for number in 2..10 {
        let mut said = said(number);
        said.insert(node("d"), draw(1, vec![job("whole", [1, 4], 250.0, false)]));
        decider.hear(said, 2.0);
        decider.decide(&full, &nobody(), 2.0);
    }
    let decided = decider.decide(&full, &[node("e")].into(), 2.0);
    assert!((base_w(&decided) - (300.0 + share_w)).abs() < 1e-6, "{decided:?}");
    let said_of = decided.budgets[0].problem.clone().unwrap();
    assert!(said_of.contains("node d has said nothing for 16 s"), "{said_of}");
    assert!(said_of.contains("node e does not say"), "{said_of}");
    assert_eq!(given(&decided, "whole").to, None, "not all of its nodes are there");
    assert_eq!(given(&decided, "whole").limit_w, None, "there is enough");
    assert_eq!(decided.nodes[&node("d")].share_w, share_w);
    let mut later = said(99);
    later.insert(node("d"), draw(1, vec![job("whole", [1, 4], 250.0, false)]));
    decider.hear(later, 60.0);
    assert_eq!(base_w(&decider.decide(&full, &nobody(), 60.0)), 300.0 + 3000.0);
    // It is back.
    decider.hear(said(100), 2.0);
    assert_eq!(base_w(&decider.decide(&full, &nobody(), 2.0)), 400.0);
}

#[test]
fn a_node_that_does_not_know_what_a_job_runs_makes_it_count_for_no_more() {
    let mut slowed = said(1);
    for job in slowed.values_mut().flat_map(|draw| &mut draw.jobs) {
        let drawn_w = 700.0 * f64::from(job.ranks) / f64::from(job.all);
        (job.running, job.drawn_w, job.measured_w) = (Some(8), drawn_w, Some(drawn_w));
    }
    let whole = |said: &mut BTreeMap<Node, NodeDraw>, running, is_known| {
        let job = &mut said.get_mut(&node("d")).unwrap().jobs[0];
        (job.running, job.is_known) = (running, is_known);
    };
    let is_short = |said| {
        let decided = decider(None, said).decide(&book(1850.0, false), &nobody(), 2.0);
        decided.budgets[0].missing_w.is_some() || given(&decided, "whole").limit_w.is_some()
    };
    assert!(!is_short(slowed.clone()));
    whole(&mut slowed, None, false);
    assert!(!is_short(slowed.clone()), "its agent has just begun");
    let decided = |said| decider(None, said).decide(&book(1900.0, false), &nobody(), 2.0);
    assert_eq!(given(&decided(slowed.clone()), "whole").ordered, Some(8));
    whole(&mut slowed, None, true);
    assert_ne!(decided(slowed).jobs.iter().find_map(|given| given.to), None, "it may run anything");
}

#[test]
fn a_share_is_taken_away_only_from_a_node_that_knows_it() {
    let mut decider = decider(None, said(1));
    let ample = decider.decide(&book(3000.0, false), &nobody(), 2.0);
    let mut deaf = said(2);
    deaf.get_mut(&node("d")).unwrap().blueprint = 0;
    decider.hear(deaf, 2.0);
    let tight = decider.decide(&book(2100.0, false), &nobody(), 2.0);
    let [before, now] = [&ample, &tight].map(|of| of.nodes[&node("d")]);
    assert!(now.share_w < before.share_w && now.most_w == before.share_w, "{now:?}");
    let mut said = said(3);
    said.get_mut(&node("d")).unwrap().blueprint = tight.number;
    decider.hear(said, 2.0);
    let known = decider.decide(&book(2100.0, false), &nobody(), 2.0).nodes[&node("d")];
    assert!(known.most_w < before.share_w, "{known:?}");
}

#[test]
fn the_next_decider_counts_what_the_one_before_has_ordered() {
    let mut slowed = said(1);
    for draw in slowed.values_mut() {
        draw.jobs.iter_mut().for_each(|job| job.running = Some(8));
    }
    // The job over all nodes was ordered back to its own, and has not changed yet.
    let mut before = decider(None, slowed.clone()).decide(&book(9000.0, false), &nobody(), 2.0);
    assert_eq!(given(&before, "whole").ordered, Some(OWN));
    before.jobs.iter_mut().filter(|given| !given.is_whole).for_each(|given| {
        (given.to, given.ordered) = (None, Some(8));
    });
    let budget = book(2120.0, false);
    let next = decider(Some(before), slowed).decide(&budget, &nobody(), 2.0);
    assert_eq!(next.number, 2);
    let [whole, local] = ["whole", "local"].map(|job| given(&next, job).ordered);
    let watts = |tag| match tag {
        Some(OWN) => 1000.0,
        Some(7) => 800.0,
        _ => 700.0,
    };
    // Until it has changed, it may still become as fast as it was ordered first.
    assert!(400.0 + 1000.0 + watts(local) <= 2120.0, "{whole:?} {local:?}");
}

#[test]
fn what_no_agent_writes_is_not_read() {
    let sound = draw(1, vec![job("j", [1, 2], 10.0, false)]);
    assert_eq!(NodeDraw::read(&json(&sound)), Some(sound.clone()));
    let wrong: [fn(&mut NodeDraw); 7] = [
        |draw| draw.base_w = -1.0,
        |draw| draw.limits_w = Some(1e300),
        |draw| draw.jobs[0].drawn_w = -5.0,
        |draw| draw.jobs[0].measured_w = Some(1e13),
        |draw| draw.jobs[0].weight = Some(0.0),
        |draw| draw.jobs[0].ranks = 3,
        |draw| draw.jobs[0].scope = BudgetScope::Node,
    ];
    for wrong in wrong {
        let mut draw = sound.clone();
        wrong(&mut draw);
        assert_eq!(NodeDraw::read(&json(&draw)), None, "{draw:?}");
    }
    assert_eq!(NodeDraw::read(b"\xff"), None);
}

#[test]
fn a_curve_that_is_no_curve_makes_its_job_count_for_what_it_draws() {
    let mut decider = Decider::after(node("a"), None);
    let hostile = JobCurve { points: vec![(-1.0, 1.0, 7)], ..curve("local") };
    let mut said = said(1);
    let jobs = &mut said.get_mut(&node("a")).unwrap().jobs;
    jobs.last_mut().unwrap().curve = Some(hostile.digest());
    decider.hear(said, 2.0);
    let mut all = curves();
    all.insert(node("a"), Curves(vec![hostile]));
    decider.learn(all);
    let decided = decider.decide(&book(9000.0, false), &nobody(), 2.0);
    assert_eq!(decided.budgets[0].drawn_w, Some(2400.0));
    assert_eq!(given(&decided, "local").shown.steering, BudgetSteering::Nothing);
}

#[test]
fn a_job_is_in_the_partition_that_one_of_its_nodes_knows() {
    let partition = || BudgetScope::FleetPartition("big".parse().unwrap());
    let mut said = said(1);
    let known = &mut said.get_mut(&node("c")).unwrap().jobs[0];
    known.partition = Some("big".parse().unwrap());
    (known.scope, known.weight) = (partition(), Some(9.0));
    let unknown = &mut said.get_mut(&node("a")).unwrap().jobs[0];
    unknown.weight = Some(2.0);
    let mut book = book(9000.0, false);
    let kept = book.orders[&BudgetScope::Fleet].clone();
    let order = BudgetOrder { scope: partition(), level: BudgetLevel::Watts(700.0), ..kept.order };
    book.orders.insert(partition(), Kept { order, ..kept });
    let decided = decider(None, said).decide(&book, &nobody(), 2.0);
    let [whole, local] = ["whole", "local"].map(|job| &given(&decided, job).shown);
    assert_eq!((&whole.scope, whole.weight), (&partition(), 9.0));
    assert_eq!(whole.partition.as_ref().map(pfo_protocol::PartitionName::as_str), Some("big"));
    assert_eq!((&local.scope, local.given_w), (&BudgetScope::Fleet, 0.0));
    assert!(given(&decided, "whole").is_bound && !given(&decided, "local").is_bound);
}

#[test]
fn what_an_older_agent_says_is_in_no_partition() {
    let sound = draw(1, vec![job("j", [1, 2], 10.0, false)]);
    let mut older: serde_json::Value = serde_json::from_slice(&json(&sound)).unwrap();
    let _ = older["jobs"][0].as_object_mut().unwrap().remove("partition").unwrap();
    assert_eq!(NodeDraw::read(&json(&older)), Some(sound));
}

#[test]
fn what_is_wrong_with_a_file_is_shown_from_the_node_where_the_budget_was_set_alone() {
    let trouble = |node: &str| BudgetFileTrouble {
        node: Some(node.into()),
        why: format!("/etc/pfo/{node}.csv: line 1"),
        since_unix_s: 7,
    };
    let mut said = said(1);
    for name in ["b", "c"] {
        said.get_mut(&node(name)).unwrap().files = vec![(BudgetScope::Fleet, trouble(name))];
    }
    let mut book = book(2100.0, false);
    let kept = book.orders.get_mut(&BudgetScope::Fleet).unwrap();
    kept.order.level = BudgetLevel::File("/etc/pfo/c.csv".into());
    (kept.text, kept.by_node) = (Some("0,2100W".into()), Some(node("c")));
    let mut decider = decider(None, said.clone());
    let status = decider.decide(&book, &nobody(), 2.0).budgets.remove(0);
    assert_eq!((status.budget_w, status.file), (Some(2100.0), Some(trouble("c"))));
    // What it has said last holds while the node is silent, which is a problem of its own.
    decider.hear(said.clone(), 30.0);
    let status = decider.decide(&book, &nobody(), 30.0).budgets.remove(0);
    assert!(status.file.is_some() && status.problem.unwrap().contains("node c has said nothing"));
    for draw in said.values_mut() {
        (draw.number, draw.files) = (2, Vec::new());
    }
    decider.hear(said, 2.0);
    assert_eq!(decider.decide(&book, &nobody(), 2.0).budgets[0].file, None);
}

#[test]
fn a_ramp_begins_when_every_node_has_said_what_it_draws_and_not_at_a_part_of_it() {
    let mut book = book(2000.0, false);
    let kept = book.orders.get_mut(&BudgetScope::Fleet).unwrap();
    (kept.order.down_w_per_s, kept.order.up_w_per_s) = (Some(1.0), Some(1.0));
    let enrolled: BTreeSet<_> = ["a", "b", "c", "d"].map(node).into();
    // What the other nodes said for an earlier budget is in the store.
    let mut earlier = said(1);
    for draw in earlier.values_mut() {
        draw.jobs.clear();
    }
    let mut decider = Decider::after(node("a"), None);
    let budget_w = |decider: &mut Decider, said| {
        decider.hear(said, 2.0);
        if !decider.lacking().is_empty() {
            decider.learn(curves());
        }
        decider.decide(&book, &enrolled, 2.0).budgets[0].budget_w
    };
    assert_eq!(budget_w(&mut decider, earlier.clone()), None);
    let mut some = said(2);
    some.insert(node("d"), earlier[&node("d")].clone());
    assert_eq!(budget_w(&mut decider, some), None);
    let begins_w = budget_w(&mut decider, said(3)).unwrap();
    assert!((2390.0..=2400.0).contains(&begins_w), "{begins_w} W of 2400 W");
    // What was in the store when it began to listen is old, but for what it has said itself.
    let mut decider = Decider::after(node("a"), None);
    let mut own = said(4);
    own.retain(|name, _| *name == node("a"));
    assert_eq!(budget_w(&mut decider, own), None);
    assert!(budget_w(&mut decider, said(4)).is_some());
    // A node that never says anything holds nothing up for ever.
    let mut decider = Decider::after(node("a"), None);
    let levels: Vec<_> = (4..12)
        .map(|number| {
            let mut said = said(number);
            said.remove(&node("d"));
            budget_w(&mut decider, said)
        })
        .collect();
    assert!(levels[0].is_none() && levels[7].is_some(), "{levels:?}");
}
