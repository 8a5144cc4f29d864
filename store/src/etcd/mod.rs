//! The verbs, spoken to etcd 3.4 or later over mutual TLS.

mod certificate;
mod check;
mod connect;
mod keys;
mod lease;
mod members;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, Error, GetOptions, KeyValue, PutOptions,
    ResponseHeader, Txn, TxnOp, TxnResponse,
};
use pfo_fleet::{Answer, Decision, Digest, Member, Node, Proposal, Report, View};
use serde::Serialize;
use tokio::sync::Mutex;

use self::certificate::OwnCertificate;
use self::keys::{Keys, NODES};
use self::lease::Lease;
use self::members::Members;
use crate::error::StoreError;
use crate::job::JobId;
use crate::verbs::{
    Agreed, LARGEST_RECORD, Measured, Note, Store, Topic, digest_of, fits, fits_in, named,
};

pub use self::connect::{Credentials, EtcdSettings};
pub use self::watch::EtcdJob;

/// etcd, as one node speaks to it.
pub struct Etcd {
    me: Node,
    members: Members,
    certificate: Option<OwnCertificate>,
    lease: Lease,
    keep_s: u16,
    /// For what is kept of the jobs in which this node takes part.
    kept: Mutex<BTreeMap<JobId, Arc<Lease>>>,
}

impl Etcd {
    /// A client that connects when it is used: etcd may be away, and come back.
    ///
    /// # Errors
    /// If the credentials cannot be read or used.
    pub async fn open(settings: &EtcdSettings) -> Result<Self, StoreError> {
        let (members, certificate) = connect::members(settings).await?;
        let lease = Lease::of(members.clone(), settings.lease_s);
        Ok(Self {
            me: settings.node.clone(),
            members,
            certificate,
            lease,
            keep_s: settings.keep_s,
            kept: Mutex::default(),
        })
    }

    /// Connects. A member has to answer once; later etcd may go away and come back.
    ///
    /// # Errors
    /// If the credentials cannot be read, or no endpoint answers.
    pub async fn connect(settings: &EtcdSettings) -> Result<Self, StoreError> {
        let etcd = Self::open(settings).await?;
        etcd.members.answer().await.map_err(|error| etcd.explained(error.into()))?;
        Ok(etcd)
    }

    fn explained(&self, error: StoreError) -> StoreError {
        connect::explained(self.certificate.as_ref(), error)
    }

    async fn transact(&self, transaction: Txn) -> Result<TxnResponse, Error> {
        let commit = |client: &Client| {
            let (mut kv, transaction) = (client.kv_client(), transaction.clone());
            async move { kv.txn(transaction).await }
        };
        self.members.ask(commit).await
    }

    /// Commits a transaction. Returns whether it was so when it had to be.
    async fn commit(&self, transaction: Txn) -> Result<bool, Error> {
        Ok(self.transact(transaction).await?.succeeded())
    }

    /// What is at a key, or below it.
    async fn read(
        &self,
        key: &str,
        options: Option<GetOptions>,
    ) -> Result<Vec<KeyValue>, StoreError> {
        let read = |client: &Client| {
            let (mut kv, options) = (client.kv_client(), options.clone());
            async move { kv.get(key, options).await }
        };
        Ok(self.members.ask(read).await.map_err(at(key))?.take_kvs())
    }

    /// Writes something under the lease.
    async fn put_leased(&self, key: String, value: Vec<u8>) -> Result<(), StoreError> {
        let lease = self.lease.id().await?;
        let options = PutOptions::new().with_lease(lease);
        let put = Txn::new().and_then([TxnOp::put(key.as_str(), value, Some(options))]);
        let done = self.commit(put).await;
        self.lease.forget_if_expired(lease, &done).await;
        done.map(drop).map_err(at(&key))
    }

    /// What each node has written under its name, as far as it can be read.
    async fn by_node<T>(
        &self,
        prefix: &str,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<BTreeMap<Node, T>, StoreError> {
        let all = GetOptions::new().with_prefix();
        let node = |kv: KeyValue| {
            let name = kv.key_str().ok()?.strip_prefix(prefix)?;
            Some((name.parse().ok()?, read(kv.value())?))
        };
        Ok(self.read(prefix, Some(all)).await?.into_iter().filter_map(node).collect())
    }

    /// The lease of what is kept of a job, which is renewed until this node leaves it.
    async fn lease_of(&self, job: &JobId) -> Arc<Lease> {
        let mut kept = self.kept.lock().await;
        let number = Keys::of(job).lease();
        let lease = || Arc::new(Lease::in_common(self.members.clone(), self.keep_s, number));
        Arc::clone(kept.entry(job.clone()).or_insert_with(lease))
    }

    /// Writes what is kept of a job, if all of this is so. Returns whether it was.
    async fn keep<const N: usize>(
        &self,
        job: &JobId,
        when: impl Into<Vec<Compare>>,
        puts: [(String, Vec<u8>); N],
        delete: impl IntoIterator<Item = TxnOp>,
    ) -> Result<bool, StoreError> {
        let lease = self.lease_of(job).await;
        let id = lease.id().await?;
        let first = puts.first().map_or_else(String::new, |(key, _)| key.clone());
        let put = |(key, value)| TxnOp::put(key, value, Some(PutOptions::new().with_lease(id)));
        let operations: Vec<_> = puts.into_iter().map(put).chain(delete).collect();
        let done = self.commit(Txn::new().when(when).and_then(operations)).await;
        lease.forget_if_expired(id, &done).await;
        done.map_err(at(&first))
    }
}

/// What a question about a key fails with.
fn at(key: &str) -> impl Fn(Error) -> StoreError + '_ {
    move |error| match error.into() {
        StoreError::Refused(why) => StoreError::Refused(format!("{why}, at {key}")),
        other => other,
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // What goes into the store has no map with keys that are no strings, and nothing else fails.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Deletes what a node has handed in of trials below a number.
fn delete_parts(keys: &Keys, node: &Node, below: u64) -> TxnOp {
    let range = DeleteOptions::new().with_range(keys.part(node, below));
    TxnOp::delete(keys.part(node, 0), Some(range))
}

fn is_absent(key: impl Into<Vec<u8>>) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, 0)
}

fn is_there(key: impl Into<Vec<u8>>) -> Compare {
    Compare::create_revision(key, CompareOp::Greater, 0)
}

impl Store for Etcd {
    type Watch = EtcdJob;

    async fn enrol(&self, version: &str) -> Result<(), StoreError> {
        let lease = self.lease.id().await.map_err(|error| self.explained(error))?;
        let (key, value) = (format!("{NODES}{}", self.me), json(&version));
        // Somebody may have deleted it.
        let there = self.read(&key, None).await?;
        if !there.iter().any(|kv| kv.lease() == lease && kv.value() == value) {
            self.put_leased(key, value).await?;
        }
        Ok(())
    }

    async fn nodes(&self) -> Result<BTreeMap<Node, String>, StoreError> {
        self.by_node(NODES, keys::read).await
    }

    async fn join(&self, job: &JobId, member: &Member) -> Result<(), StoreError> {
        self.lease_of(job).await.id().await?;
        self.put_leased(Keys::of(job).member(&self.me), json(member)).await
    }

    async fn leave(&self, job: &JobId) -> Result<(), StoreError> {
        self.kept.lock().await.remove(job);
        let keys = Keys::of(job);
        let below = DeleteOptions::new().with_prefix();
        let delete = [
            TxnOp::delete(keys.of_node(&self.me), Some(below)),
            TxnOp::delete(keys.measured(&self.me), None),
            delete_parts(&keys, &self.me, u64::MAX),
        ];
        let left = self.commit(Txn::new().and_then(delete)).await;
        left.map(drop).map_err(at(&keys.of_node(&self.me)))
    }

    async fn publish(&self, job: &JobId, slice: &[u8]) -> Result<Digest, StoreError> {
        let digest = named(slice)?;
        let key = Keys::of(job).slice(digest);
        self.keep(job, [is_absent(key.as_str())], [(key, slice.to_vec())], None).await?;
        Ok(digest)
    }

    async fn fetch(&self, job: &JobId, digest: Digest) -> Result<Vec<u8>, StoreError> {
        let mut found = self.read(&Keys::of(job).slice(digest), None).await?;
        let slice = found.pop().ok_or(StoreError::Missing(digest))?;
        let (_, slice) = slice.into_key_value();
        if digest_of(&slice) == digest { Ok(slice) } else { Err(StoreError::Differs(digest)) }
    }

    async fn note(
        &self,
        job: &JobId,
        note: Note,
        value: &[u8],
        forget: &BTreeSet<Digest>,
    ) -> Result<(), StoreError> {
        fits(value)?;
        let keys = Keys::of(job);
        let forget = forget.iter().map(|digest| TxnOp::delete(keys.slice(*digest), None));
        self.keep(job, [], [(keys.note(note), value.to_vec())], forget).await?;
        Ok(())
    }

    async fn noted(&self, job: &JobId, note: Note) -> Result<Option<Vec<u8>>, StoreError> {
        let mut found = self.read(&Keys::of(job).note(note), None).await?;
        Ok(found.pop().map(|kv| kv.into_key_value().1))
    }

    async fn propose(
        &self,
        job: &JobId,
        number: u64,
        proposal: &Proposal,
        forget_below: u64,
    ) -> Result<bool, StoreError> {
        let keys = Keys::of(job);
        let head = keys.head();
        let is_next = match number.checked_sub(1) {
            None => return Ok(false),
            Some(0) => is_absent(head.as_str()),
            Some(before) => Compare::value(head.as_str(), CompareOp::Equal, json(&before)),
        };
        let old = DeleteOptions::new().with_range(keys.swap(forget_below));
        let delete = (forget_below > 0).then(|| TxnOp::delete(keys.swap(0), Some(old)));
        let (key, proposed) = (keys.proposal(number), json(proposal));
        let puts = [(head, json(&number)), (key.clone(), proposed.clone())];
        if self.keep(job, [is_next], puts, delete).await? {
            return Ok(true);
        }
        // Or the answer to an earlier question was lost.
        let there = self.read(&key, None).await?;
        let is_there = there.iter().any(|kv| kv.value() == proposed);
        Ok(proposal.by_node == self.me && is_there)
    }

    async fn arm(&self, job: &JobId, number: u64, answer: &Answer) -> Result<bool, StoreError> {
        let keys = Keys::of(job);
        let put = (keys.armed(&self.me), json(&(number, answer)));
        let is_newest = Compare::value(keys.head(), CompareOp::Equal, json(&number));
        self.keep(job, [is_newest, is_there(keys.proposal(number))], [put], None).await
    }

    async fn decide(
        &self,
        job: &JobId,
        number: u64,
        decision: &Decision,
    ) -> Result<bool, StoreError> {
        let keys = Keys::of(job);
        let is_open = [is_there(keys.proposal(number)), is_absent(keys.decision(number))];
        self.keep(job, is_open, [(keys.decision(number), json(decision))], None).await
    }

    async fn report(&self, job: &JobId, report: &Report) -> Result<(), StoreError> {
        self.keep(job, [], [(Keys::of(job).report(&self.me), json(report))], None).await?;
        Ok(())
    }

    async fn measure(&self, job: &JobId, measured: &[Measured]) -> Result<(), StoreError> {
        self.put_leased(Keys::of(job).measured(&self.me), json(&measured)).await
    }

    async fn measured(&self, job: &JobId) -> Result<BTreeMap<Node, Vec<Measured>>, StoreError> {
        self.by_node(&Keys::of(job).all_measured(), keys::read).await
    }

    async fn hand_in(&self, job: &JobId, number: u64, part: &[u8]) -> Result<(), StoreError> {
        fits(part)?;
        let (keys, lease) = (Keys::of(job), self.lease.id().await?);
        let leased = PutOptions::new().with_lease(lease);
        let key = keys.part(&self.me, number);
        let put = TxnOp::put(key.as_str(), part, Some(leased));
        let operations = [delete_parts(&keys, &self.me, number), put];
        let done = self.commit(Txn::new().and_then(operations)).await;
        self.lease.forget_if_expired(lease, &done).await;
        done.map(drop).map_err(at(&key))
    }

    async fn handed_in(
        &self,
        job: &JobId,
        number: u64,
        node: &Node,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let key = Keys::of(job).part(node, number);
        let mut found = self.read(&key, None).await?;
        Ok(found.pop().map(|kv| kv.into_key_value().1))
    }

    async fn agree(
        &self,
        what: Agreed,
        revision: u64,
        record: &[u8],
    ) -> Result<Option<u64>, StoreError> {
        fits_in(record, LARGEST_RECORD)?;
        let key = keys::agreed(what);
        let revision = i64::try_from(revision).unwrap_or(i64::MAX);
        let is_known = Compare::mod_revision(key, CompareOp::Equal, revision);
        let put = TxnOp::put(key, record, None);
        let transaction = Txn::new().when([is_known]).and_then([put]);
        let done = self.transact(transaction).await.map_err(at(key))?;
        let new = done.header().map_or(0, ResponseHeader::revision);
        Ok(done.succeeded().then_some(new.unsigned_abs()))
    }

    async fn agreed(&self, what: Agreed, other_than: u64) -> Result<(u64, Vec<u8>), StoreError> {
        watch::until_other(&self.members, keys::agreed(what), other_than).await
    }

    async fn say(&self, topic: Topic, said: &[u8]) -> Result<(), StoreError> {
        fits(said)?;
        let key = format!("{}{}", keys::said(topic), self.me);
        let put = Txn::new().and_then([TxnOp::put(key.as_str(), said, None)]);
        self.commit(put).await.map(drop).map_err(at(&key))
    }

    async fn own(&self, topic: Topic) -> Result<Option<Vec<u8>>, StoreError> {
        let key = format!("{}{}", keys::said(topic), self.me);
        Ok(self.read(&key, None).await?.first().map(|kv| kv.value().to_vec()))
    }

    async fn said(&self, topic: Topic) -> Result<BTreeMap<Node, Vec<u8>>, StoreError> {
        self.by_node(keys::said(topic), |said| Some(said.to_vec())).await
    }

    async fn watch(&self, job: &JobId, view: View) -> Result<EtcdJob, StoreError> {
        let keys = Keys::of(job);
        let ranges = match view {
            View::Part => vec![keys.swaps(), keys.of_node(&self.me)],
            View::Whole => vec![keys.prefix()],
        };
        EtcdJob::watch(&self.members, keys, &ranges).await
    }
}

/// gRPC's codes for a caller that may not, and one that it does not know.
const REFUSED: [i32; 2] = [7, 16];

/// gRPC's code for something that is used up, and what etcd calls its room.
const FULL: (i32, &str) = (8, "space");

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match &error {
            Error::GRpcStatus(status) if REFUSED.contains(&i32::from(status.code())) => {
                Self::Refused(status.message().to_owned())
            }
            Error::GRpcStatus(status)
                if i32::from(status.code()) == FULL.0 && status.message().contains(FULL.1) =>
            {
                Self::Full(status.message().to_owned())
            }
            Error::GRpcStatus(status) => Self::Away(in_full(status.message().to_owned(), status)),
            Error::TransportError(error) => Self::Away(in_full(error.to_string(), error)),
            other => Self::Away(in_full(other.to_string(), other)),
        }
    }
}

/// A message with the reasons below it, of which gRPC shows none by itself.
fn in_full(message: String, error: &dyn std::error::Error) -> String {
    let reasons = std::iter::successors(error.source(), |reason| reason.source());
    reasons.fold(message, |message, reason| {
        let reason = reason.to_string();
        if message.contains(&reason) { message } else { format!("{message}: {reason}") }
    })
}
