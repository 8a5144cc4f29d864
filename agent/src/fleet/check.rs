//! What is wrong with the set-up of the fleet, found by using it.

use std::collections::{BTreeMap, BTreeSet};

use pfo_fleet::{Degrees, Gpus, Member, Node, View};
use pfo_protocol::{FleetFinding, Uid};
use pfo_store::{
    Agreed, Etcd, EtcdSettings, JobId, Measured, Note, Store, StoreError, Topic, WatchedJob,
};

use super::parts::Fleet;

/// A job that no user can have: this uid is no user's.
const CHECKED: Uid = Uid(u32::MAX);

/// How many nodes of another version are named.
const NAMED: usize = 8;

/// Uses each endpoint and everything that the node's role must allow.
pub(crate) async fn check(fleet: &Fleet) -> Vec<FleetFinding> {
    let asked: Vec<_> = fleet
        .settings
        .endpoints
        .iter()
        .map(|endpoint| {
            let settings =
                EtcdSettings { endpoints: vec![endpoint.clone()], ..fleet.settings.clone() };
            (endpoint, tokio::spawn(async move { Etcd::connect(&settings).await.map(drop) }))
        })
        .collect();
    let mut findings = Vec::new();
    for (endpoint, asked) in asked {
        let answered = asked.await.unwrap_or_else(|error| Err(StoreError::Away(error.to_string())));
        findings.push(finding(endpoint.clone(), answered));
    }
    let used = match Etcd::connect(&fleet.settings).await {
        Ok(etcd) => use_all(&etcd, fleet).await,
        Err(error) => Err(error),
    };
    findings.push(finding(format!("what node {} may do there", fleet.node()), used));
    // Without the store, every finding above says so.
    if let Ok(store) = fleet.store_now()
        && let Ok(nodes) = store.nodes().await
    {
        findings.push(same_version(&nodes));
    }
    findings
}

/// Whether all agents of the fleet have this version.
fn same_version(nodes: &BTreeMap<Node, String>) -> FleetFinding {
    const OWN: &str = env!("CARGO_PKG_VERSION");
    let others = nodes.iter().filter(|(_, version)| *version != OWN);
    let mut named: Vec<_> = others.map(|(node, version)| format!("{node}: {version}")).collect();
    let more = named.len().saturating_sub(NAMED);
    named.truncate(NAMED);
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    let wrong = (!named.is_empty()).then(|| {
        let named = named.join(", ");
        format!(
            "other nodes have another ({named}): they may refuse what this one proposes, and it what \
             they do; install the same version of pfo-agent on all"
        )
    });
    FleetFinding { what: format!("version {OWN} on all nodes"), wrong }
}

fn finding(what: String, found: Result<(), StoreError>) -> FleetFinding {
    FleetFinding { what, wrong: found.err().map(|error| error.to_string()) }
}

/// Reads and writes where an agent does.
async fn use_all(etcd: &Etcd, fleet: &Fleet) -> Result<(), StoreError> {
    etcd.enrol(env!("CARGO_PKG_VERSION")).await?;
    etcd.nodes().await?;
    let Ok(name) = format!("fleet-check/{}", fleet.node()).parse() else { return Ok(()) };
    let job = JobId { uid: CHECKED, name, run: None };
    etcd.watch(&job, View::Whole).await?.next().await?;
    let (degrees, places) = (Degrees { pp: 1, dp: 1, tp: 1 }, Vec::new());
    let member =
        Member { degrees, places, gpus: Gpus::default(), measures: false, slow: Vec::new() };
    etcd.join(&job, &member).await?;
    let measured = Measured { swap: 0, plan: None, ranks: 0, time_s: 0.0, energy_j: None };
    etcd.measure(&job, &[measured]).await?;
    etcd.measured(&job).await?;
    etcd.hand_in(&job, 1, b"").await?;
    etcd.handed_in(&job, 1, fleet.node()).await?;
    etcd.leave(&job).await?;
    etcd.said(Topic::Draw).await?;
    // No record has this revision, so none is replaced.
    etcd.agree(Agreed::Budgets, u64::MAX, b"").await?;
    etcd.note(&job, Note::Frontier, b"{}", &BTreeSet::new()).await?;
    etcd.noted(&job, Note::Frontier).await?;
    let slice = etcd.publish(&job, b"{}").await?;
    etcd.fetch(&job, slice).await.map(drop)
}
