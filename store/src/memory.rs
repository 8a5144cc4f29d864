//! A store in the memory of one process, for tests: several nodes share it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pfo_fleet::{Answer, Change, Decision, Digest, Member, Node, Proposal, Report, Shared, View};
use tokio::sync::Notify;

use crate::error::StoreError;
use crate::job::JobId;
use crate::verbs::{
    Agreed, LARGEST_RECORD, Measured, News, Note, Store, Topic, WatchedJob, fits, fits_in, named,
};

/// One node's view of a store in memory.
#[derive(Clone, Debug)]
pub struct Memory {
    me: Node,
    nodes: Arc<Mutex<BTreeMap<Node, String>>>,
    jobs: Arc<Mutex<BTreeMap<JobId, Job>>>,
    common: Arc<Common>,
}

/// What no job has.
#[derive(Debug, Default)]
struct Common {
    agreed: Mutex<BTreeMap<Agreed, (u64, Vec<u8>)>>,
    changed: Notify,
    said: Mutex<BTreeMap<(Topic, Node), Vec<u8>>>,
}

#[derive(Debug, Default)]
struct Job {
    shared: Shared,
    slices: BTreeMap<Digest, Vec<u8>>,
    notes: BTreeMap<Note, Vec<u8>>,
    measured: BTreeMap<Node, Vec<Measured>>,
    parts: BTreeMap<Node, (u64, Vec<u8>)>,
    watches: Vec<(Node, View, Arc<Queue>)>,
}

#[derive(Debug, Default)]
struct Queue {
    news: Mutex<VecDeque<News>>,
    arrived: Notify,
}

/// A job in memory that is watched.
#[derive(Debug)]
pub struct MemoryJob(Arc<Queue>);

impl Memory {
    /// An empty store, as a node sees it.
    #[must_use]
    pub fn new(me: Node) -> Self {
        Self { me, nodes: Arc::default(), jobs: Arc::default(), common: Arc::default() }
    }

    /// The same store, as another node sees it.
    #[must_use]
    pub fn seen_by(&self, me: Node) -> Self {
        Self { me, ..self.clone() }
    }

    /// Expires the lease of this node.
    pub fn expire(&self) {
        lock(&self.nodes).remove(&self.me);
        for job in lock(&self.jobs).values_mut() {
            job.measured.remove(&self.me);
            job.parts.remove(&self.me);
            if job.shared.members.contains_key(&self.me) {
                job.change(&Change::Member(self.me.clone(), None));
            }
        }
    }

    fn with<T>(&self, job: &JobId, what: impl FnOnce(&mut Job) -> T) -> T {
        what(lock(&self.jobs).entry(job.clone()).or_default())
    }
}

impl Job {
    fn change(&mut self, change: &Change) {
        self.shared.apply(change.clone());
        for (node, view, watch) in &self.watches {
            if !view.shows(change, node) {
                continue;
            }
            watch.tell(News::Changed(change.clone()));
        }
    }
}

impl Queue {
    fn tell(&self, news: News) {
        lock(&self.news).push_back(news);
        self.arrived.notify_one();
    }
}

impl Store for Memory {
    type Watch = MemoryJob;

    async fn enrol(&self, version: &str) -> Result<(), StoreError> {
        lock(&self.nodes).insert(self.me.clone(), version.to_owned());
        Ok(())
    }

    async fn nodes(&self) -> Result<BTreeMap<Node, String>, StoreError> {
        Ok(lock(&self.nodes).clone())
    }

    async fn join(&self, job: &JobId, member: &Member) -> Result<(), StoreError> {
        let change = Change::Member(self.me.clone(), Some(member.clone()));
        self.with(job, |job| job.change(&change));
        Ok(())
    }

    async fn leave(&self, job: &JobId) -> Result<(), StoreError> {
        self.with(job, |job| {
            job.measured.remove(&self.me);
            job.parts.remove(&self.me);
            job.change(&Change::Member(self.me.clone(), None));
            job.change(&Change::Report(self.me.clone(), Report::default()));
        });
        Ok(())
    }

    async fn publish(&self, job: &JobId, slice: &[u8]) -> Result<Digest, StoreError> {
        let digest = named(slice)?;
        self.with(job, |job| job.slices.insert(digest, slice.to_vec()));
        Ok(digest)
    }

    async fn fetch(&self, job: &JobId, digest: Digest) -> Result<Vec<u8>, StoreError> {
        self.with(job, |job| job.slices.get(&digest).cloned()).ok_or(StoreError::Missing(digest))
    }

    async fn note(
        &self,
        job: &JobId,
        note: Note,
        value: &[u8],
        forget: &BTreeSet<Digest>,
    ) -> Result<(), StoreError> {
        fits(value)?;
        self.with(job, |job| {
            job.notes.insert(note, value.to_vec());
            job.slices.retain(|digest, _| !forget.contains(digest));
        });
        Ok(())
    }

    async fn noted(&self, job: &JobId, note: Note) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.with(job, |job| job.notes.get(&note).cloned()))
    }

    async fn propose(
        &self,
        job: &JobId,
        number: u64,
        proposal: &Proposal,
        forget_below: u64,
    ) -> Result<bool, StoreError> {
        Ok(self.with(job, |job| {
            if job.shared.newest().checked_add(1) != Some(number) {
                let there = job.shared.swaps.get(&number);
                return proposal.by_node == self.me
                    && there.is_some_and(|swap| *swap.proposal == *proposal);
            }
            job.change(&Change::Proposal(number, proposal.clone()));
            let old: Vec<_> = job.shared.swaps.range(..forget_below).map(|(old, _)| *old).collect();
            old.into_iter().for_each(|old| job.change(&Change::Forgotten(old)));
            true
        }))
    }

    async fn arm(&self, job: &JobId, number: u64, answer: &Answer) -> Result<bool, StoreError> {
        Ok(self.with(job, |job| {
            let is_newest = number > 0 && job.shared.newest() == number;
            if is_newest {
                job.change(&Change::Answer(number, self.me.clone(), answer.clone()));
            }
            is_newest
        }))
    }

    async fn decide(
        &self,
        job: &JobId,
        number: u64,
        decision: &Decision,
    ) -> Result<bool, StoreError> {
        Ok(self.with(job, |job| {
            let swap = job.shared.swaps.get(&number);
            let is_open = swap.is_some_and(|swap| swap.decision.is_none());
            if is_open {
                job.change(&Change::Decision(number, decision.clone()));
            }
            is_open
        }))
    }

    async fn report(&self, job: &JobId, report: &Report) -> Result<(), StoreError> {
        let change = Change::Report(self.me.clone(), report.clone());
        self.with(job, |job| job.change(&change));
        Ok(())
    }

    async fn measure(&self, job: &JobId, measured: &[Measured]) -> Result<(), StoreError> {
        self.with(job, |job| job.measured.insert(self.me.clone(), measured.to_vec()));
        Ok(())
    }

    async fn measured(&self, job: &JobId) -> Result<BTreeMap<Node, Vec<Measured>>, StoreError> {
        Ok(self.with(job, |job| job.measured.clone()))
    }

    async fn hand_in(&self, job: &JobId, number: u64, part: &[u8]) -> Result<(), StoreError> {
        fits(part)?;
        self.with(job, |job| job.parts.insert(self.me.clone(), (number, part.to_vec())));
        Ok(())
    }

    async fn handed_in(
        &self,
        job: &JobId,
        number: u64,
        node: &Node,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.with(job, |job| job.parts.get(node).cloned());
        Ok(found.filter(|(of, _)| *of == number).map(|(_, part)| part))
    }

    async fn agree(
        &self,
        what: Agreed,
        revision: u64,
        record: &[u8],
    ) -> Result<Option<u64>, StoreError> {
        fits_in(record, LARGEST_RECORD)?;
        let mut agreed = lock(&self.common.agreed);
        let now = agreed.get(&what).map_or(0, |(now, _)| *now);
        if now != revision {
            return Ok(None);
        }
        agreed.insert(what, (now + 1, record.to_vec()));
        self.common.changed.notify_waiters();
        Ok(Some(now + 1))
    }

    async fn agreed(&self, what: Agreed, other_than: u64) -> Result<(u64, Vec<u8>), StoreError> {
        loop {
            let changed = self.common.changed.notified();
            let now = lock(&self.common.agreed).get(&what).cloned();
            if let Some(now) = now.filter(|(revision, _)| *revision != other_than) {
                return Ok(now);
            }
            changed.await;
        }
    }

    async fn say(&self, topic: Topic, said: &[u8]) -> Result<(), StoreError> {
        fits(said)?;
        lock(&self.common.said).insert((topic, self.me.clone()), said.to_vec());
        Ok(())
    }

    async fn own(&self, topic: Topic) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(lock(&self.common.said).get(&(topic, self.me.clone())).cloned())
    }

    async fn said(&self, topic: Topic) -> Result<BTreeMap<Node, Vec<u8>>, StoreError> {
        let said = lock(&self.common.said);
        let of_topic = said.iter().filter(|((of, _), _)| *of == topic);
        Ok(of_topic.map(|((_, node), said)| (node.clone(), said.clone())).collect())
    }

    async fn watch(&self, job: &JobId, view: View) -> Result<MemoryJob, StoreError> {
        Ok(self.with(job, |job| {
            let queue = Arc::new(Queue::default());
            queue.tell(News::Snapshot(job.shared.clone().seen(view, &self.me)));
            job.watches.push((self.me.clone(), view, Arc::clone(&queue)));
            MemoryJob(queue)
        }))
    }
}

impl WatchedJob for MemoryJob {
    async fn next(&mut self) -> Result<News, StoreError> {
        loop {
            let arrived = self.0.arrived.notified();
            if let Some(news) = lock(&self.0.news).pop_front() {
                return Ok(news);
            }
            arrived.await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
