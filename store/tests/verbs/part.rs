//! A part of a job that is watched.

use pfo_fleet::{Answer, Change, Decision, Report, Shared, View};
use pfo_store::{News, Store};

use super::{changes, job, member, next, node, proposal};

/// Who watches a part of a job learns of its swaps and of what it has written itself, and of nothing else.
pub(crate) async fn has_no_answers_of_others(a: &impl Store, b: &impl Store) {
    let one = job("part");
    let mut watch = a.watch(&one, View::Part).await.unwrap();
    assert_eq!(next(&mut watch).await, News::Snapshot(Shared::default()));
    b.join(&one, &member(1)).await.unwrap();
    a.join(&one, &member(0)).await.unwrap();
    assert!(b.propose(&one, 1, &proposal(10), 0).await.unwrap());
    assert!(b.arm(&one, 1, &Answer::Armed(4)).await.unwrap());
    b.report(&one, &Report::default()).await.unwrap();
    assert!(a.arm(&one, 1, &Answer::Armed(5)).await.unwrap());
    assert!(b.decide(&one, 1, &Decision::Commit).await.unwrap());
    let seen = changes(&mut watch, 4).await;
    let expected = [
        Change::Member(node("node-a"), Some(member(0))),
        Change::Proposal(1, proposal(10)),
        Change::Answer(1, node("node-a"), Answer::Armed(5)),
        Change::Decision(1, Decision::Commit),
    ];
    assert!(expected.iter().all(|change| seen.contains(change)), "{seen:?}");

    let mut shared = Shared::default();
    expected.into_iter().for_each(|change| shared.apply(change));
    let mut late = a.watch(&one, View::Part).await.unwrap();
    assert_eq!(next(&mut late).await, News::Snapshot(shared));
    assert!(b.propose(&one, 2, &proposal(20), 2).await.unwrap());
    assert!(!a.arm(&one, 1, &Answer::Armed(5)).await.unwrap(), "there is a newer one");
    a.leave(&one).await.unwrap();
    let seen = changes(&mut late, 3).await;
    assert!(seen.contains(&Change::Member(node("node-a"), None)), "{seen:?}");
    let mut whole = a.watch(&one, View::Whole).await.unwrap();
    let News::Snapshot(shared) = next(&mut whole).await else { panic!() };
    assert_eq!(shared.members.keys().collect::<Vec<_>>(), [&node("node-b")]);
}
