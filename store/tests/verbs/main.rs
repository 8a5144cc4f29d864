//! What every store has to do, of the one in memory and of a real etcd with TLS and roles.

mod agents;
mod checked;
mod members;
mod part;
mod scratch;
mod server;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use pfo_fleet::{
    Abort, Answer, Change, Decision, Degrees, Digest, Gpus, Member, Node, Place, Proposal, Report,
    Run, Shared, Standing, Took, View,
};
use pfo_store::{
    Agreed, Etcd, EtcdSettings, JobId, LARGEST_RECORD, LARGEST_SLICE, Measured, Memory, News, Note,
    Store, StoreError, Topic, WatchedJob, digest_of,
};
use pfo_vocabulary::{DpRank, Rank, Stage, TpRank, Uid};
use tokio::time::{sleep, timeout};

use server::{Server, ServerSetup, VALID_DAYS};

fn node(name: &str) -> Node {
    name.parse().unwrap()
}

fn job(name: &str) -> JobId {
    JobId { uid: Uid(1000), name: name.parse().unwrap(), run: None }
}

fn member(stage: u16) -> Member {
    let rank = Rank(stage.into());
    let place = Place { rank, stage: Stage(stage), dp: DpRank(0), tp: TpRank(0) };
    let degrees = Degrees { pp: 2, dp: 1, tp: 1 };
    Member {
        degrees,
        places: vec![place],
        gpus: Gpus::default(),
        measures: false,
        slow: Vec::new(),
    }
}

fn proposal(step: u64) -> Proposal {
    Proposal {
        run: Run::DefaultClocks,
        step,
        members: ["node-a", "node-b"].map(node).into(),
        proposed_at: 3,
        by_uid: Uid(1000),
        by_node: node("node-a"),
        trial: None,
        standing: Standing::default(),
        rollback: None,
        compared: Vec::new(),
    }
}

/// What one node notes beside a job, another one reads: the last of it, and nothing of another job.
async fn notes_are_replaced_with_their_slices(
    a: &impl Store,
    b: &impl Store,
    [one, another]: [&JobId; 2],
) {
    assert_eq!(b.noted(one, Note::Frontier).await, Ok(None));
    let old = a.publish(one, b"old").await.unwrap();
    a.note(one, Note::Frontier, b"first", &BTreeSet::new()).await.unwrap();
    a.note(one, Note::Sweep, b"sweep", &BTreeSet::new()).await.unwrap();
    assert_eq!(b.noted(one, Note::Frontier).await, Ok(Some(b"first".to_vec())));
    b.note(one, Note::Frontier, b"second", &[old].into()).await.unwrap();
    assert_eq!(a.noted(one, Note::Frontier).await, Ok(Some(b"second".to_vec())));
    assert_eq!(a.fetch(one, old).await, Err(StoreError::Missing(old)));
    assert_eq!(a.noted(one, Note::Sweep).await, Ok(Some(b"sweep".to_vec())));
    assert_eq!(a.noted(one, Note::Profile).await, Ok(None));
    assert_eq!(a.noted(another, Note::Frontier).await, Ok(None));
    let large = vec![0; LARGEST_SLICE + 1];
    let refused = a.note(one, Note::Frontier, &large, &BTreeSet::new()).await;
    assert_eq!(refused, Err(StoreError::TooLarge(large.len(), LARGEST_SLICE)));
}

fn one_member() -> Option<Server> {
    Server::start(&ServerSetup::default())
}

fn settings(server: &Server, node: &str) -> EtcdSettings {
    server.settings(node, Ipv4Addr::LOCALHOST)
}

async fn connect(server: &Server, node: &str) -> Result<Etcd, StoreError> {
    Etcd::connect(&settings(server, node)).await
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// The next piece of news, which has to come.
async fn next(watch: &mut impl WatchedJob) -> News {
    timeout(Duration::from_secs(60), watch.next()).await.expect("nothing new").unwrap()
}

async fn changes(watch: &mut impl WatchedJob, number: usize) -> Vec<Change> {
    let mut changes = Vec::new();
    while changes.len() < number {
        match next(watch).await {
            News::Changed(change) => changes.push(change),
            other @ News::Snapshot(_) => panic!("{other:?}"),
        }
    }
    changes
}

/// Everything that two nodes may do with a store, which `a` and `b` are for them.
async fn two_nodes_agree(a: &impl Store, b: &impl Store) {
    a.enrol("0.2.0").await.unwrap();
    a.enrol("0.2.0").await.unwrap();
    b.enrol("0.3.0").await.unwrap();
    let nodes = [(node("node-a"), "0.2.0".to_owned()), (node("node-b"), "0.3.0".to_owned())];
    assert_eq!(a.nodes().await, Ok(nodes.into()));

    let (one, another) = (job("team/77"), job("77"));
    let mut watch = b.watch(&one, View::Whole).await.unwrap();
    assert_eq!(next(&mut watch).await, News::Snapshot(Shared::default()));

    a.join(&one, &member(0)).await.unwrap();
    b.join(&one, &member(1)).await.unwrap();
    a.join(&another, &member(0)).await.unwrap();

    assert!(!a.arm(&one, 1, &Answer::Armed(4)).await.unwrap(), "there is no swap");
    assert!(!a.decide(&one, 1, &Decision::Commit).await.unwrap());
    assert!(!a.propose(&one, 2, &proposal(9), 0).await.unwrap(), "the first one is 1");
    assert!(!a.propose(&one, 0, &proposal(9), 0).await.unwrap());
    assert!(a.propose(&one, 1, &proposal(10), 0).await.unwrap());
    assert!(!b.propose(&one, 1, &proposal(11), 0).await.unwrap(), "a number is given once");
    assert!(!b.propose(&one, 1, &proposal(10), 0).await.unwrap(), "this is node-a's");
    assert!(!a.propose(&one, 1, &proposal(11), 0).await.unwrap(), "this is another one");
    assert!(a.propose(&one, 1, &proposal(10), 0).await.unwrap(), "its answer may have been lost");

    assert!(b.arm(&one, 1, &Answer::Armed(4)).await.unwrap());
    assert!(a.decide(&one, 1, &Decision::Commit).await.unwrap());
    let abort = Decision::Abort(Abort::Left(node("node-b")));
    assert!(!b.decide(&one, 1, &abort).await.unwrap(), "a decision is created once");
    let report = Report { took: Some(Took { number: 1, step: 10 }), late: None, shown: 0 };
    b.report(&one, &report).await.unwrap();

    let seen = changes(&mut watch, 6).await;
    let expected = [
        Change::Member(node("node-a"), Some(member(0))),
        Change::Member(node("node-b"), Some(member(1))),
        Change::Proposal(1, proposal(10)),
        Change::Answer(1, node("node-b"), Answer::Armed(4)),
        Change::Decision(1, Decision::Commit),
        Change::Report(node("node-b"), report.clone()),
    ];
    assert_eq!(seen, expected);
    let mut shared = Shared::default();
    seen.into_iter().for_each(|change| shared.apply(change));
    let mut late = a.watch(&one, View::Whole).await.unwrap();
    assert_eq!(next(&mut late).await, News::Snapshot(shared));

    notes_are_replaced_with_their_slices(a, b, [&one, &another]).await;
    the_next_run_begins_with_nothing(a, &one).await;

    assert!(a.propose(&one, 2, &proposal(20), 2).await.unwrap());
    let seen = changes(&mut late, 2).await;
    assert!(seen.contains(&Change::Forgotten(1)), "{seen:?}");
    assert!(seen.contains(&Change::Proposal(2, proposal(20))), "{seen:?}");
    assert!(!a.propose(&one, 1, &proposal(30), 0).await.unwrap(), "nor after it is forgotten");
    assert!(!a.decide(&one, 1, &abort).await.unwrap());
    assert!(!a.arm(&one, 1, &Answer::Armed(4)).await.unwrap(), "there is a newer one");

    both_say_what_they_measured(a, b, &one).await;
    assert_eq!(a.measured(&another).await.unwrap().len(), 0);

    b.leave(&one).await.unwrap();
    assert_eq!(a.measured(&one).await.unwrap().len(), 1);
    let seen = changes(&mut late, 2).await;
    assert!(seen.contains(&Change::Member(node("node-b"), None)), "{seen:?}");
    assert!(seen.contains(&Change::Report(node("node-b"), Report::default())), "{seen:?}");
}

/// The next run of a job has the same name, and nothing of the former one.
/// What is agreed on without a job, and said beside it.
async fn one_of_two_agrees(a: &impl Store, b: &impl Store) {
    let what = Agreed::Blueprint;
    let mut waits = Box::pin(b.agreed(what, 0));
    assert!(timeout(Duration::from_millis(300), &mut waits).await.is_err(), "there is none");
    assert_eq!(a.agree(what, 7, b"{}").await, Ok(None), "there is none to replace");
    let first = a.agree(what, 0, b"one").await.unwrap().unwrap();
    assert_eq!(b.agree(what, 0, b"another").await, Ok(None), "a record is created once");
    let seen = timeout(Duration::from_secs(60), waits).await.unwrap().unwrap();
    assert_eq!(seen, (first, b"one".to_vec()));
    assert_eq!(b.agreed(what, 0).await, Ok(seen));
    let mut waits = Box::pin(a.agreed(what, first));
    assert!(timeout(Duration::from_millis(300), &mut waits).await.is_err(), "it is known");
    let second = b.agree(what, first, b"two").await.unwrap().unwrap();
    assert!(second > first);
    assert_eq!(a.agree(what, first, b"late").await, Ok(None), "it was replaced meanwhile");
    let seen = timeout(Duration::from_secs(60), waits).await.unwrap();
    assert_eq!(seen, Ok((second, b"two".to_vec())));
    let large = vec![7; LARGEST_RECORD + 1];
    let refused = a.agree(what, second, &large).await;
    assert_eq!(refused, Err(StoreError::TooLarge(LARGEST_RECORD + 1, LARGEST_RECORD)));

    assert_eq!(a.said(Topic::Draw).await, Ok([].into()));
    assert_eq!(a.own(Topic::Savings).await, Ok(None));
    a.say(Topic::Savings, b"5 J").await.unwrap();
    assert_eq!(a.own(Topic::Savings).await, Ok(Some(b"5 J".to_vec())));
    assert_eq!(b.own(Topic::Savings).await, Ok(None), "it is another node's");
    assert_eq!(b.said(Topic::Savings).await, Ok([(node("node-a"), b"5 J".to_vec())].into()));
    a.say(Topic::Draw, b"1 W").await.unwrap();
    a.say(Topic::Draw, b"2 W").await.unwrap();
    b.say(Topic::Draw, b"3 W").await.unwrap();
    b.say(Topic::Curves, b"\xff").await.unwrap();
    let each = [(node("node-a"), b"2 W".to_vec()), (node("node-b"), b"3 W".to_vec())];
    assert_eq!(a.said(Topic::Draw).await, Ok(each.into()));
    assert_eq!(a.said(Topic::Curves).await, Ok([(node("node-b"), vec![0xff])].into()));
}

async fn the_next_run_begins_with_nothing(store: &impl Store, former: &JobId) {
    let next_run = JobId { run: Some("77.1".into()), ..former.clone() };
    let mut watch = store.watch(&next_run, View::Whole).await.unwrap();
    assert_eq!(next(&mut watch).await, News::Snapshot(Shared::default()));
    assert!(store.propose(&next_run, 1, &proposal(5), 0).await.unwrap());
}

/// What each of two nodes has measured of a job is there for the other one.
async fn both_say_what_they_measured(a: &impl Store, b: &impl Store, one: &JobId) {
    let measured = Measured { swap: 1, plan: None, ranks: 1, time_s: 0.5, energy_j: Some(125.5) };
    a.measure(one, std::slice::from_ref(&measured)).await.unwrap();
    b.measure(one, &[Measured { energy_j: None, ..measured.clone() }]).await.unwrap();
    assert_eq!(b.measured(one).await.unwrap()[&node("node-a")], [measured]);
    assert_eq!(a.measured(one).await.unwrap()[&node("node-b")][0].energy_j, None);
}

/// What is handed in of a trial is there until the next one, or until its node leaves.
async fn the_newest_part_of_a_trial_is_kept(a: &impl Store, b: &impl Store) {
    let one = job("trials");
    a.join(&one, &member(0)).await.unwrap();
    let measured = Measured { swap: 1, plan: None, ranks: 1, time_s: 0.5, energy_j: None };
    b.measure(&one, &[measured]).await.unwrap();
    let part = |number, name| async move { a.handed_in(&job("trials"), number, &node(name)).await };
    b.hand_in(&one, 7, b"seven").await.unwrap();
    b.hand_in(&one, 8, b"eight").await.unwrap();
    assert_eq!(part(8, "node-b").await, Ok(Some(b"eight".to_vec())));
    assert_eq!(part(7, "node-b").await, Ok(None));
    assert_eq!(part(8, "node-a").await, Ok(None));
    let large = vec![7; LARGEST_SLICE + 1];
    assert_eq!(
        b.hand_in(&one, 9, &large).await,
        Err(StoreError::TooLarge(LARGEST_SLICE + 1, LARGEST_SLICE))
    );
    assert_eq!(b.measured(&one).await.unwrap().len(), 1, "that is something else");
    b.leave(&one).await.unwrap();
    assert_eq!(part(8, "node-b").await, Ok(None));
}

/// Slices are kept under their digests, and are no news.
async fn slices_are_what_they_are_called(a: &impl Store, b: &impl Store) {
    let job = job("slices");
    let mut watch = b.watch(&job, View::Whole).await.unwrap();
    next(&mut watch).await;
    let slice = vec![7; LARGEST_SLICE];
    let digest = a.publish(&job, &slice).await.unwrap();
    assert_eq!(digest, digest_of(&slice));
    assert_eq!(a.publish(&job, &slice).await, Ok(digest), "twice is no harm");
    assert_eq!(b.fetch(&job, digest).await, Ok(slice));
    let missing = Digest([0; 32]);
    assert_eq!(b.fetch(&job, missing).await, Err(StoreError::Missing(missing)));
    let large = vec![7; LARGEST_SLICE + 1];
    assert_eq!(
        a.publish(&job, &large).await,
        Err(StoreError::TooLarge(LARGEST_SLICE + 1, LARGEST_SLICE))
    );
    a.join(&job, &member(0)).await.unwrap();
    let joined = Change::Member(node("node-a"), Some(member(0)));
    assert_eq!(changes(&mut watch, 1).await, [joined]);
}

#[test]
fn nodes_agree_over_a_store_in_memory() {
    let a = Memory::new(node("node-a"));
    let b = a.seen_by(node("node-b"));
    run(async {
        two_nodes_agree(&a, &b).await;
        one_of_two_agrees(&a, &b).await;
        part::has_no_answers_of_others(&a, &b).await;
        slices_are_what_they_are_called(&a, &b).await;
        the_newest_part_of_a_trial_is_kept(&a, &b).await;
    });
}

#[test]
fn a_lease_in_memory_expires_when_a_test_says_so() {
    let a = Memory::new(node("node-a"));
    let b = a.seen_by(node("node-b"));
    run(async {
        a.join(&job("j"), &member(0)).await.unwrap();
        let mut watch = b.watch(&job("j"), View::Whole).await.unwrap();
        next(&mut watch).await;
        a.expire();
        assert_eq!(changes(&mut watch, 1).await, [Change::Member(node("node-a"), None)]);
    });
}

#[test]
fn nodes_agree_over_etcd() {
    let Some(server) = one_member() else { return };
    run(async {
        let a = connect(&server, "node-a").await.unwrap();
        let b = connect(&server, "node-b").await.unwrap();
        two_nodes_agree(&a, &b).await;
        one_of_two_agrees(&a, &b).await;
        part::has_no_answers_of_others(&a, &b).await;
        slices_are_what_they_are_called(&a, &b).await;
        the_newest_part_of_a_trial_is_kept(&a, &b).await;
    });
}

#[test]
fn a_node_that_is_gone_leaves_its_jobs_and_one_that_is_there_does_not() {
    let Some(server) = one_member() else { return };
    run(async {
        let [a, b] = ["node-a", "node-b"].map(|name| connect(&server, name));
        let (a, b): (Etcd, Etcd) = (a.await.unwrap(), b.await.unwrap());
        a.join(&job("j"), &member(0)).await.unwrap();
        b.join(&job("j"), &member(1)).await.unwrap();
        let mut watch = b.watch(&job("j"), View::Whole).await.unwrap();
        let News::Snapshot(shared) = next(&mut watch).await else { panic!() };
        assert_eq!(shared.members.len(), 2);
        // Longer than a lease: both are renewed.
        assert!(timeout(Duration::from_secs(5), watch.next()).await.is_err());
        drop(a);
        assert_eq!(changes(&mut watch, 1).await, [Change::Member(node("node-a"), None)]);
    });
}

#[test]
fn what_is_kept_of_a_job_is_deleted_a_while_after_its_last_node_has_left() {
    let Some(server) = one_member() else { return };
    let connect = async |name| {
        let settings = EtcdSettings { keep_s: 2, ..settings(&server, name) };
        Etcd::connect(&settings).await.unwrap()
    };
    run(async {
        let (a, b) = (connect("node-a").await, connect("node-b").await);
        let job = job("j");
        a.join(&job, &member(0)).await.unwrap();
        let slice = a.publish(&job, b"slice").await.unwrap();
        assert!(a.propose(&job, 1, &proposal(10), 0).await.unwrap());
        assert!(a.decide(&job, 1, &Decision::Commit).await.unwrap());
        // Who joins does its part to keep what others have written.
        b.join(&job, &member(1)).await.unwrap();
        drop(a);
        sleep(Duration::from_secs(6)).await;
        assert_eq!(b.fetch(&job, slice).await, Ok(b"slice".to_vec()));
        assert!(!b.propose(&job, 1, &proposal(10), 0).await.unwrap());

        let mut watch = b.watch(&job, View::Whole).await.unwrap();
        next(&mut watch).await;
        b.leave(&job).await.unwrap();
        let forgotten =
            async { while next(&mut watch).await != News::Changed(Change::Forgotten(1)) {} };
        timeout(Duration::from_secs(60), forgotten).await.unwrap();
        assert_eq!(b.fetch(&job, slice).await, Err(StoreError::Missing(slice)));
        assert!(b.propose(&job, 1, &proposal(10), 0).await.unwrap(), "the first one again");
    });
}

#[test]
fn a_node_that_etcd_does_not_know_is_refused_and_told_so() {
    let Some(server) = one_member() else { return };
    run(async {
        let stranger = connect(&server, "stranger").await.unwrap();
        let refused = stranger.join(&job("j"), &member(0)).await.unwrap_err();
        assert!(matches!(refused, StoreError::Refused(_)), "{refused:?}");
        let refused = stranger.watch(&job("j"), View::Whole).await.err().unwrap();
        assert!(matches!(refused, StoreError::Refused(_)), "{refused:?}");
    });
}

#[test]
fn without_a_certificate_nobody_is_let_in_and_a_missing_file_is_named() {
    let Some(server) = one_member() else { return };
    run(async {
        let mut settings = settings(&server, "node-a");
        let mut credentials = settings.credentials.take().unwrap();
        let bare = Etcd::connect(&settings).await.err().unwrap();
        assert!(matches!(bare, StoreError::Away(_)), "{bare:?}");
        credentials.key = "/nowhere/node-a.key".into();
        settings.credentials = Some(credentials);
        let missing = Etcd::connect(&settings).await.err().unwrap().to_string();
        assert!(missing.starts_with("/nowhere/node-a.key: No such file"), "{missing}");
    });
}

#[test]
fn an_etcd_that_dies_is_away_and_what_was_written_is_there_when_it_is_back() {
    let Some(mut server) = one_member() else { return };
    run(async {
        let a = connect(&server, "node-a").await.unwrap();
        assert!(a.propose(&job("j"), 1, &proposal(10), 0).await.unwrap());
        let mut watch = a.watch(&job("j"), View::Whole).await.unwrap();
        next(&mut watch).await;
        server.kill(0);
        let away = timeout(Duration::from_secs(60), watch.next()).await.unwrap().unwrap_err();
        assert!(matches!(away, StoreError::Away(_)), "{away:?}");
        server.restart(0);
        let began = Instant::now();
        let shared = loop {
            let Ok(mut watch) = a.watch(&job("j"), View::Whole).await else {
                assert!(began.elapsed() < Duration::from_secs(60), "it does not come back");
                continue;
            };
            let News::Snapshot(shared) = next(&mut watch).await else { panic!() };
            break shared;
        };
        assert_eq!(shared.newest(), 1);
    });
}

#[test]
fn one_member_of_three_that_dies_costs_nobody_an_answer() {
    let setup = ServerSetup { members: 3, ..ServerSetup::default() };
    let Some(mut server) = Server::start(&setup) else { return };
    run(async {
        let a = connect(&server, "node-a").await.unwrap();
        let b = connect(&server, "node-b").await.unwrap();
        a.join(&job("j"), &member(0)).await.unwrap();
        for dead in 0..setup.members {
            server.kill(dead);
            // As long as the others may take to choose a leader.
            let began = Instant::now();
            while let Err(error) = b.nodes().await {
                assert!(began.elapsed() < Duration::from_secs(60), "{error}");
            }
            for number in 0..40 {
                let slice = format!("{dead} {number}");
                let digest = a.publish(&job("j"), slice.as_bytes()).await.unwrap();
                assert_eq!(b.fetch(&job("j"), digest).await, Ok(slice.into_bytes()));
            }
            server.restart(dead);
        }
    });
}

/// A full store names itself, costs nobody a lease, and takes writes again once it has room.
#[test]
fn a_store_that_is_full_says_so_and_forgets_nobody() {
    let setup = ServerSetup { quota_bytes: Some(4 << 20), ..ServerSetup::default() };
    let Some(server) = Server::start(&setup) else { return };
    run(async {
        let a = connect(&server, "node-a").await.unwrap();
        let b = connect(&server, "node-b").await.unwrap();
        a.join(&job("j"), &member(0)).await.unwrap();
        let mut watch = b.watch(&job("j"), View::Whole).await.unwrap();
        next(&mut watch).await;
        let measured = Measured { swap: 0, plan: None, ranks: 1, time_s: 0.5, energy_j: None };
        let mut number = 0_u64;
        let full = loop {
            let slice = number.to_le_bytes().repeat(LARGEST_SLICE / 8);
            match a.publish(&job("filling"), &slice).await {
                Ok(_) => number += 1,
                Err(full) => break full,
            }
            assert!(number < 1000, "nothing is full");
        };
        assert!(full.to_string().starts_with("the store is full"), "{full}");
        for _ in 0..3 {
            let full = a.measure(&job("j"), std::slice::from_ref(&measured)).await.unwrap_err();
            assert!(full.to_string().starts_with("the store is full"), "{full}");
        }
        // Longer than a lease.
        assert!(timeout(Duration::from_secs(5), watch.next()).await.is_err());
        server.ctl("del --prefix /pfo/1/slice/").unwrap();
        let status = server.ctl("endpoint status --write-out=json").unwrap();
        let (_, revision) = status.split_once("\"revision\":").unwrap();
        let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
        server.ctl(&format!("compaction {revision}")).unwrap();
        server.ctl("defrag").unwrap();
        server.ctl("alarm disarm").unwrap();
        a.measure(&job("j"), std::slice::from_ref(&measured)).await.unwrap();
        assert_eq!(b.measured(&job("j")).await.unwrap()[&node("node-a")], [measured]);
    });
}

#[test]
fn a_certificate_that_has_expired_is_named_as_the_reason() {
    let Some(server) = one_member() else { return };
    server.certify("node-a", 0);
    run(async {
        sleep(Duration::from_secs(2)).await;
        let expired = connect(&server, "node-a").await.err().unwrap().to_string();
        assert!(expired.contains("node-a.pem: the certificate expired"), "{expired}");
        server.certify("node-a", VALID_DAYS);
        connect(&server, "node-a").await.unwrap();
    });
}

#[test]
fn agents_over_a_store_in_memory_change_a_job_at_one_step() {
    let first = Memory::new(node("node-a"));
    let seen = |name: &str| first.seen_by(node(name));
    let stores = ["node-a", "node-b", "node-c", "node-d"].map(seen).into();
    run(agents::all_nodes_change_at_the_same_step(stores, async || seen("node-d")));
}

#[test]
fn trials_of_agents_over_a_store_in_memory_end_with_who_runs_them() {
    let first = Memory::new(node("node-a"));
    let seen = |name: &str| first.seen_by(node(name));
    let stores = ["node-a", "node-b", "node-c", "node-d"].map(seen).into();
    run(agents::trials_end_with_who_runs_them(stores));
}

#[test]
fn agents_over_etcd_change_a_job_at_one_step() {
    let Some(server) = one_member() else { return };
    run(async {
        let mut stores = Vec::new();
        for name in ["node-a", "node-b", "node-c", "node-d"] {
            stores.push(connect(&server, name).await.unwrap());
        }
        let again = async || connect(&server, "node-d").await.unwrap();
        agents::all_nodes_change_at_the_same_step(stores, again).await;
    });
}

#[test]
fn trials_of_agents_over_etcd_end_with_who_runs_them() {
    let Some(server) = one_member() else { return };
    run(async {
        let mut stores = Vec::new();
        for name in ["node-a", "node-b", "node-c", "node-d"] {
            stores.push(connect(&server, name).await.unwrap());
        }
        agents::trials_end_with_who_runs_them(stores).await;
    });
}

/// `PFO_AGENTS` (1000) agents of one job and one etcd: what they take is printed.
#[test]
#[ignore = "a measurement: minutes, and a gigabyte"]
fn a_job_on_many_nodes_changes_at_one_step() {
    let Some(server) = one_member() else { return };
    let agents = std::env::var("PFO_AGENTS").ok().and_then(|agents| agents.parse().ok());
    let agents: usize = agents.unwrap_or(1000);
    run(async {
        let mut stores = Vec::new();
        for index in 0..agents {
            let settings = settings(&server, "node-a");
            let settings =
                EtcdSettings { node: node(&agents::name(index)), lease_s: 15, ..settings };
            stores.push(Etcd::connect(&settings).await.unwrap());
        }
        let began = Instant::now();
        let fleet = agents::Fleet::new(stores, Duration::from_millis(200));
        for label in ["first", "second"] {
            let (number, step) = fleet.swap(0, label).await;
            println!("{agents} agents: swap {number} committed after {:.1?}", began.elapsed());
            fleet.begins(step + 1).await;
            println!("{} run it at step {step}", fleet.running(label, step));
            assert_eq!(fleet.running(label, step), agents);
        }
    });
}
