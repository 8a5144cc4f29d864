//! What was ordered, and which jobs were slowed down for it: in memory and on disk. Orders outlive the
//! node's boot, jobs do not.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use pfo_fleet::Node;
use pfo_protocol::{BudgetOrder, BudgetScope, BudgetTerms, GpuUuid, JobName, PartitionName, Uid};
use pfo_service::{boot_id, read_versioned, replace_in_own_directory};
use serde::{Deserialize, Serialize};

use crate::budget::fleet::Record;
use crate::budget::known::{Ordered, Own};
use crate::budget::partitions::{Partitioned, Partitions};
use crate::job::JobKey;

const FORMAT: &str = "pfo-agent-budget/1";
const FLEET_FORMAT: &str = "pfo-agent-budget-fleet/2";
const SLOWED_FORMAT: &str = "pfo-agent-budget-jobs/1";
const PARTITIONS_FORMAT: &str = "pfo-agent-budget-partitions/1";

/// An order with who gave it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    pub(super) order: BudgetOrder,
    pub(super) by_uid: Uid,
    pub(super) since_unix_s: u64,
    /// What its file said when it could be read last.
    pub(super) text: Option<String>,
    /// The node whose file it is, in a budget of the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by_node: Option<Node>,
    /// The name of the key that signed it, in a budget of the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by_key: Option<String>,
}

/// A job that a budget has slowed down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Slowed {
    pub(super) uid: Uid,
    pub(super) job: JobName,
    pub(super) own: Own,
    pub(super) ordered: Vec<Ordered>,
    pub(super) given_j: f64,
    pub(super) lost_s: f64,
}

/// Orders and terms.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Book {
    pub(super) orders: BTreeMap<BudgetScope, Kept>,
    pub(super) terms: BTreeMap<BudgetScope, BudgetTerms>,
}

/// What is written of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    orders: Vec<Kept>,
    terms: Vec<BudgetTerms>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlowedOnDisk {
    format: String,
    boot_id: String,
    jobs: Vec<Slowed>,
    /// The GPUs that power limits hold.
    #[serde(default)]
    capped: Vec<GpuUuid>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartitionsOnDisk {
    format: String,
    boot_id: String,
    gpus: Vec<Partitioned>,
}

/// What was known of the budgets of the fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KnownOfFleet {
    format: String,
    /// What was signed, with the contents of its files.
    pub(super) record: Option<Record>,
    /// What this node may draw, in watts.
    pub(super) share_w: Option<f64>,
}

impl KnownOfFleet {
    pub(super) fn new(record: Option<Record>, share_w: Option<f64>) -> Self {
        Self { format: FLEET_FORMAT.into(), record, share_w }
    }
}

impl OnDisk {
    fn of(book: &Book) -> Self {
        let (orders, terms) = (book.orders.values().cloned(), book.terms.values().cloned());
        Self { format: FORMAT.into(), orders: orders.collect(), terms: terms.collect() }
    }

    fn book(self) -> Book {
        let orders = self.orders.into_iter().map(|kept| (kept.order.scope.clone(), kept));
        let terms = self.terms.into_iter().map(|terms| (terms.scope.clone(), terms));
        Book { orders: orders.collect(), terms: terms.collect() }
    }
}

/// The files.
#[derive(Debug)]
pub(crate) struct BudgetFiles {
    orders: PathBuf,
    fleet: PathBuf,
    slowed: PathBuf,
    partitions: PathBuf,
    boot_id: String,
}

/// What decides for which budget a job counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) key: &'a JobKey,
    pub(super) partition: Option<&'a PartitionName>,
    pub(super) spans_nodes: bool,
}

impl Place<'_> {
    /// The scopes that the job is in, the narrowest first. No node alone slows a job on several down.
    fn scopes(&self) -> Vec<BudgetScope> {
        let (uid, job) = (self.key.uid, self.key.selector());
        let partition =
            |scope: fn(PartitionName) -> BudgetScope| self.partition.cloned().map(scope);
        let pairs = [
            (Some(BudgetScope::Job(job.clone())), Some(BudgetScope::FleetJob(job))),
            (Some(BudgetScope::User(uid)), Some(BudgetScope::FleetUser(uid))),
            (partition(BudgetScope::Partition), partition(BudgetScope::FleetPartition)),
            (Some(BudgetScope::Node), Some(BudgetScope::Fleet)),
        ];
        let mut scopes: Vec<_> =
            pairs.into_iter().flat_map(|(node, fleet)| [node, fleet]).flatten().collect();
        if self.spans_nodes {
            scopes.sort_by_key(|scope| !scope.is_of_fleet());
        }
        scopes
    }
}

impl Book {
    /// The budget that a job counts for: that of the narrowest scope.
    pub(super) fn scope_of(&self, place: Place<'_>) -> Option<BudgetScope> {
        place.scopes().into_iter().find(|scope| self.orders.contains_key(scope))
    }

    /// The scope of the only job of this name that something is set for, on the node or in the fleet.
    pub(super) fn scope_named(&self, name: &JobName, in_fleet: bool) -> Option<BudgetScope> {
        let is_named = |scope: &&BudgetScope| match scope {
            BudgetScope::Job(job) => !in_fleet && job.job == *name,
            BudgetScope::FleetJob(job) => in_fleet && job.job == *name,
            _ => false,
        };
        let mut named: Vec<_> =
            self.orders.keys().chain(self.terms.keys()).filter(is_named).collect();
        named.sort_unstable();
        named.dedup();
        if let [only] = named[..] { Some(only.clone()) } else { None }
    }

    /// The weight and the floor of a job, each as the narrowest scope has it that says one.
    pub(super) fn terms_of(&self, place: Place<'_>) -> (Option<f64>, Option<f64>) {
        let scopes = place.scopes();
        let terms = || scopes.iter().filter_map(|scope| self.terms.get(scope));
        (terms().find_map(|terms| terms.weight), terms().find_map(|terms| terms.slowest))
    }
}

impl BudgetFiles {
    pub(crate) fn under(state: &Path, runtime: &Path) -> Self {
        Self {
            orders: state.join("budget").join("budget.json"),
            fleet: state.join("budget").join("fleet.json"),
            slowed: runtime.join("budget").join("jobs.json"),
            partitions: runtime.join("budget").join("partitions.json"),
            boot_id: boot_id(),
        }
    }

    /// # Errors
    /// If it cannot be written.
    pub(super) fn write(&self, book: &Book) -> io::Result<()> {
        let content = serde_json::to_vec_pretty(&OnDisk::of(book))?;
        replace_in_own_directory(&self.orders, &content)
    }

    /// # Errors
    /// Why there is something that cannot be read.
    pub(super) fn read(&self) -> Result<Book, String> {
        let Some(content) = read_versioned::<OnDisk>(&self.orders, FORMAT)
            .map_err(|why| format!("{} cannot be read: {why}", self.orders.display()))?
        else {
            return Ok(Book::default());
        };
        Ok(content.book())
    }

    /// Keeps what the fleet has agreed on, for an agent that does not reach the store.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn write_fleet(&self, known: &KnownOfFleet) -> io::Result<()> {
        replace_in_own_directory(&self.fleet, &serde_json::to_vec(known)?)
    }

    /// What an earlier agent knew of that.
    pub(super) fn read_fleet(&self) -> Option<KnownOfFleet> {
        read_versioned(&self.fleet, FLEET_FORMAT).unwrap_or_else(|why| {
            let path = self.fleet.display();
            tracing::warn!("{path} cannot be read, so the store has to answer first: {why}");
            None
        })
    }

    /// # Errors
    /// If it cannot be written.
    pub(super) fn write_slowed(&self, jobs: Vec<Slowed>, capped: Vec<GpuUuid>) -> io::Result<()> {
        let content = SlowedOnDisk {
            format: SLOWED_FORMAT.into(),
            boot_id: self.boot_id.clone(),
            jobs,
            capped,
        };
        replace_in_own_directory(&self.slowed, &serde_json::to_vec(&content)?)
    }

    /// The jobs of this boot that were slowed down, and the GPUs that power limits hold.
    pub(super) fn read_slowed(&self) -> (Vec<Slowed>, Vec<GpuUuid>) {
        match read_versioned::<SlowedOnDisk>(&self.slowed, SLOWED_FORMAT) {
            Ok(Some(content)) if content.boot_id == self.boot_id => (content.jobs, content.capped),
            Ok(_) => <_>::default(),
            Err(why) => {
                let path = self.slowed.display();
                tracing::warn!(
                    "{path} cannot be read, so jobs keep the plans that a budget gave them: {why}"
                );
                <_>::default()
            }
        }
    }
}

impl BudgetFiles {
    /// # Errors
    /// If it cannot be written.
    pub(super) fn write_partitions(&self, partitions: &Partitions) -> io::Result<()> {
        let content = PartitionsOnDisk {
            format: PARTITIONS_FORMAT.into(),
            boot_id: self.boot_id.clone(),
            gpus: partitions.all(),
        };
        replace_in_own_directory(&self.partitions, &serde_json::to_vec(&content)?)
    }

    /// What schedulers have said since the boot.
    pub(super) fn read_partitions(&self) -> Partitions {
        match read_versioned::<PartitionsOnDisk>(&self.partitions, PARTITIONS_FORMAT) {
            Ok(Some(content)) if content.boot_id == self.boot_id => Partitions::of(content.gpus),
            Ok(_) => Partitions::default(),
            Err(why) => {
                let path = self.partitions.display();
                tracing::warn!("{path} cannot be read, so jobs are in no partition: {why}");
                Partitions::default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::BudgetLevel;

    use super::*;

    fn kept(scope: BudgetScope) -> Kept {
        let order = BudgetOrder {
            scope,
            level: BudgetLevel::Watts(900.0),
            up_w_per_s: None,
            down_w_per_s: Some(5.0),
            emergency: false,
        };
        Kept { order, by_uid: Uid(0), since_unix_s: 7, text: None, by_node: None, by_key: None }
    }

    fn key(uid: u32, name: &str) -> JobKey {
        JobKey { uid: Uid(uid), name: name.parse().unwrap() }
    }

    fn book() -> Book {
        let mut book = Book::default();
        for scope in [BudgetScope::Node, BudgetScope::User(Uid(5))] {
            book.orders.insert(scope.clone(), kept(scope));
        }
        let scope = |scope, weight, slowest| (scope, weight, slowest);
        for (scope, weight, slowest) in [
            scope(BudgetScope::Node, None, Some(1.5)),
            scope(BudgetScope::User(Uid(5)), Some(2.0), None),
            scope(BudgetScope::Job(key(5, "j").selector()), None, Some(1.1)),
        ] {
            book.terms.insert(scope.clone(), BudgetTerms { scope, weight, slowest });
        }
        book
    }

    fn place(key: &JobKey) -> Place<'_> {
        Place { key, partition: None, spans_nodes: false }
    }

    #[test]
    fn the_narrowest_scope_has_its_say() {
        let book = book();
        assert_eq!(book.scope_of(place(&key(5, "j"))), Some(BudgetScope::User(Uid(5))));
        assert_eq!(book.scope_of(place(&key(6, "j"))), Some(BudgetScope::Node));
        assert_eq!(Book::default().scope_of(place(&key(6, "j"))), None);
        assert_eq!(book.terms_of(place(&key(5, "j"))), (Some(2.0), Some(1.1)));
        assert_eq!(book.terms_of(place(&key(5, "k"))), (Some(2.0), Some(1.5)));
        assert_eq!(book.terms_of(place(&key(6, "j"))), (None, Some(1.5)));
    }

    #[test]
    fn a_partition_is_wider_than_a_user_and_narrower_than_the_node() {
        let (j, k, big) = (key(5, "j"), key(6, "k"), "big".parse().unwrap());
        let mut book = book();
        let terms = |scope: BudgetScope, weight| {
            (scope.clone(), BudgetTerms { scope, weight: Some(weight), slowest: None })
        };
        book.terms.extend([
            terms(BudgetScope::FleetPartition("big".parse().unwrap()), 3.0),
            terms(BudgetScope::Partition("other".parse().unwrap()), 7.0),
        ]);
        let of_partition = BudgetScope::Partition("big".parse().unwrap());
        book.orders.insert(of_partition.clone(), kept(of_partition.clone()));
        let is_in = |key| Place { key, partition: Some(&big), spans_nodes: false };
        assert_eq!(book.scope_of(is_in(&j)), Some(BudgetScope::User(Uid(5))));
        assert_eq!(book.scope_of(is_in(&k)), Some(of_partition));
        assert_eq!(book.scope_of(place(&k)), Some(BudgetScope::Node));
        assert_eq!(book.terms_of(is_in(&j)), (Some(2.0), Some(1.1)));
        assert_eq!(book.terms_of(is_in(&k)), (Some(3.0), Some(1.5)));
        let fleet = BudgetScope::Fleet;
        book.orders.insert(fleet.clone(), kept(fleet.clone()));
        let over_nodes = |key| Place { spans_nodes: true, ..is_in(key) };
        assert_eq!(book.scope_of(over_nodes(&k)), Some(fleet));
        let of_partition = BudgetScope::FleetPartition("big".parse().unwrap());
        book.orders.insert(of_partition.clone(), kept(of_partition.clone()));
        assert_eq!(book.scope_of(over_nodes(&k)), Some(of_partition));
    }

    #[test]
    fn what_is_set_for_a_job_that_has_ended_is_found_by_its_name_unless_two_have_it() {
        let mut book = book();
        let name = "j".parse().unwrap();
        let of_5 = BudgetScope::Job(key(5, "j").selector());
        assert_eq!(book.scope_named(&name, false), Some(of_5.clone()));
        book.orders.insert(of_5.clone(), kept(of_5.clone()));
        assert_eq!(book.scope_named(&name, false), Some(of_5));
        let of_6 = BudgetScope::Job(key(6, "j").selector());
        book.orders.insert(of_6.clone(), kept(of_6));
        assert_eq!(book.scope_named(&name, false), None);
        assert_eq!(book.scope_named(&"k".parse().unwrap(), false), None);
    }

    #[test]
    fn the_next_agent_finds_orders_after_a_boot_and_jobs_of_this_one() {
        let directory = tempfile::tempdir().unwrap();
        let (state, runtime) = (directory.path().join("s"), directory.path().join("r"));
        let files = BudgetFiles::under(&state, &runtime);
        assert_eq!(files.read(), Ok(Book::default()));
        let slowed = Slowed {
            uid: Uid(5),
            job: "j".parse().unwrap(),
            own: Own { label: None, plan: None, time_s: 1.0, power_w: 9.0 },
            ordered: vec![Ordered { label: "f in budget 3".into(), tag: 3, swap: Some(4) }],
            given_j: 1.0,
            lost_s: 2.0,
        };
        files.write(&book()).unwrap();
        let capped: Vec<GpuUuid> = vec!["GPU-1".parse().unwrap()];
        files.write_slowed(vec![slowed.clone()], capped.clone()).unwrap();
        assert_eq!(BudgetFiles::under(&state, &runtime).read(), Ok(book()));
        assert_eq!(files.read_slowed(), (vec![slowed], capped));
        let mut partitions = Partitions::default();
        let gpus: Vec<GpuUuid> = vec!["GPU-1".parse().unwrap()];
        partitions.begin(Uid(5), gpus, &"big".parse().unwrap()).unwrap();
        files.write_partitions(&partitions).unwrap();
        assert_eq!(files.read_partitions(), partitions);
        let rebooted = BudgetFiles { boot_id: "another".into(), ..files };
        assert_eq!(rebooted.read_slowed(), (vec![], vec![]));
        assert_eq!(rebooted.read_partitions(), Partitions::default());
        assert_eq!(rebooted.read(), Ok(book()));
        std::fs::write(&rebooted.orders, "{").unwrap();
        assert!(rebooted.read().unwrap_err().contains("budget.json cannot be read"));
    }
}
