//! What an agent asks of a store.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use pfo_fleet::{Answer, Change, Decision, Digest, Member, Node, Proposal, Report, Shared, View};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::StoreError;
use crate::job::JobId;

/// The largest slice of a plan, in bytes: some thousand instructions. What a node hands in of a trial is
/// no larger.
pub const LARGEST_SLICE: usize = 256 * 1024;

/// A record that the whole fleet shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Agreed {
    /// The power budgets, and on which terms jobs count for them.
    Budgets,
    /// Which job runs which point for them.
    Blueprint,
}

/// What each node says of itself to the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// What it draws.
    Draw,
    /// What its jobs can run.
    Curves,
    /// What it saved.
    Savings,
}

/// The largest record of the fleet, in bytes: below what etcd takes at once. What a node says is no larger
/// than a slice.
pub const LARGEST_RECORD: usize = 1024 * 1024;

/// What is noted with a job, for the node that continues it when another one is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// The frontier that was loaded last.
    Frontier,
    /// The profile that was measured last.
    Profile,
    /// The sweep that is not over.
    Sweep,
}

impl Note {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Frontier => "frontier",
            Self::Profile => "profile",
            Self::Sweep => "sweep",
        }
    }
}

/// What a watch says.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, each for a moment")]
pub enum News {
    /// As much of the job as is watched, as it is; first.
    Snapshot(Shared),
    /// A change after it.
    Changed(Change),
}

/// What a node has measured of the steps of a job under a swap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The swap of the whole job that the node had taken up, 0 before the first one.
    pub swap: u64,
    /// What the plan is called; none for default clocks.
    pub plan: Option<String>,
    /// The ranks that were measured.
    pub ranks: usize,
    /// Mean time of a step of the slowest of them, in seconds.
    pub time_s: f64,
    /// Mean energy of a step of all of them, in joules; none if one has no energy counter.
    pub energy_j: Option<f64>,
}

/// A store that all agents of a fleet reach. It may forget a job a while after its last node has left.
///
/// Writes are linearizable: once an agent knows that a write was taken, every later read sees it. A
/// write that failed with [`StoreError::Away`] may have been taken all the same.
pub trait Store: Send + Sync + 'static {
    /// What [`watch`](Self::watch) returns.
    type Watch: WatchedJob;

    /// Writes this node and the version of its agent into the fleet, until its lease expires. Repeat it
    /// now and then, in case somebody has deleted that: while it is there, nothing is written.
    fn enrol(&self, version: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The nodes of the fleet, each with the version of its agent.
    fn nodes(&self) -> impl Future<Output = Result<BTreeMap<Node, String>, StoreError>> + Send;

    /// Writes this node into a job, until its lease expires because the agent does not renew it.
    fn join(
        &self,
        job: &JobId,
        member: &Member,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes this node out of a job, with what it has reported.
    fn leave(&self, job: &JobId) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Keeps a slice of a plan, under its digest.
    fn publish(
        &self,
        job: &JobId,
        slice: &[u8],
    ) -> impl Future<Output = Result<Digest, StoreError>> + Send;

    /// A slice that was published. It is what its digest says.
    fn fetch(
        &self,
        job: &JobId,
        digest: Digest,
    ) -> impl Future<Output = Result<Vec<u8>, StoreError>> + Send;

    /// Notes something beside a job, in place of what was noted before, and deletes these slices.
    fn note(
        &self,
        job: &JobId,
        note: Note,
        value: &[u8],
        forget: &BTreeSet<Digest>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What is noted beside a job; none if nothing is.
    fn noted(
        &self,
        job: &JobId,
        note: Note,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// Creates a swap if its number is the next one, and deletes those below `forget_below`.
    /// Returns whether this node has, then or when it asked before.
    fn propose(
        &self,
        job: &JobId,
        number: u64,
        proposal: &Proposal,
        forget_below: u64,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Writes this node's answer to a swap, if that is the newest one. Returns whether it is.
    fn arm(
        &self,
        job: &JobId,
        number: u64,
        answer: &Answer,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Creates the decision of a swap if there is none. Returns whether it has.
    fn decide(
        &self,
        job: &JobId,
        number: u64,
        decision: &Decision,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Writes what became of the swaps at this node.
    fn report(
        &self,
        job: &JobId,
        report: &Report,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Writes what this node has measured of a job under the last swaps, the newest last, until its
    /// lease expires.
    fn measure(
        &self,
        job: &JobId,
        measured: &[Measured],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What the nodes of a job have measured.
    fn measured(
        &self,
        job: &JobId,
    ) -> impl Future<Output = Result<BTreeMap<Node, Vec<Measured>>, StoreError>> + Send;

    /// Hands in what this node has measured of a trial, the swap of this number, until its lease
    /// expires. What it handed in of earlier ones is deleted.
    fn hand_in(
        &self,
        job: &JobId,
        number: u64,
        part: &[u8],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What a node has handed in of a trial; none if it has not.
    fn handed_in(
        &self,
        job: &JobId,
        number: u64,
        node: &Node,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// Replaces a record of the fleet, if it has this revision: 0 if there is none. Returns its new revision,
    /// which is higher; none if it has another one.
    fn agree(
        &self,
        what: Agreed,
        revision: u64,
        record: &[u8],
    ) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send;

    /// A record of the fleet with its revision, as soon as that is another one than this: 0 for none.
    fn agreed(
        &self,
        what: Agreed,
        other_than: u64,
    ) -> impl Future<Output = Result<(u64, Vec<u8>), StoreError>> + Send;

    /// Says something of this node in place of what it said before. It stays when the node is gone.
    fn say(&self, topic: Topic, said: &[u8])
    -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What this node said last; none if it never did.
    fn own(&self, topic: Topic)
    -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// What each node says.
    fn said(
        &self,
        topic: Topic,
    ) -> impl Future<Output = Result<BTreeMap<Node, Vec<u8>>, StoreError>> + Send;

    /// So much of the job, and every change of that: those of the swaps and their decisions, and those of
    /// all else, in the order in which they were made; in a whole job all of them in one order.
    fn watch(
        &self,
        job: &JobId,
        view: View,
    ) -> impl Future<Output = Result<Self::Watch, StoreError>> + Send;
}

/// A job that is watched.
pub trait WatchedJob: Send {
    /// What is new. Cancel safe. After an error the watch has ended.
    fn next(&mut self) -> impl Future<Output = Result<News, StoreError>> + Send;
}

/// The name of a slice.
#[must_use]
pub fn digest_of(slice: &[u8]) -> Digest {
    Digest(Sha256::digest(slice).into())
}

/// Checks the size of a slice, and returns its name.
pub(crate) fn named(slice: &[u8]) -> Result<Digest, StoreError> {
    fits(slice).map(|()| digest_of(slice))
}

pub(crate) fn fits(value: &[u8]) -> Result<(), StoreError> {
    fits_in(value, LARGEST_SLICE)
}

pub(crate) fn fits_in(value: &[u8], most: usize) -> Result<(), StoreError> {
    if value.len() > most { Err(StoreError::TooLarge(value.len(), most)) } else { Ok(()) }
}
