//! What is wrong with the set-up of the fleet, found by using it, and without touching what this node has
//! in the store.

use std::collections::BTreeMap;
use std::time::Duration;

use pfo_fleet::Node;
use pfo_protocol::FleetFinding;
use pfo_store::{Etcd, EtcdSettings, Store, StoreError};
use tokio::time::timeout;

use super::parts::Fleet;

/// How long each member may take to answer, and then one of them to be used: together less than
/// `pfoctl` waits for an answer.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(4);
const USE_TIMEOUT: Duration = Duration::from_secs(5);

/// How many nodes of another version are named.
const NAMED: usize = 8;

/// Looks at the certificate, asks each endpoint, and uses everything that the node's role must allow.
pub(crate) async fn check(fleet: &Fleet) -> Vec<FleetFinding> {
    let settings = &fleet.settings;
    let opened = Etcd::open(settings).await;
    let certificate = opened.and_then(|etcd| etcd.check_certificate());
    let mut findings =
        vec![finding(format!("the certificate of node {}", fleet.node()), certificate)];
    let asked: Vec<_> = settings
        .endpoints
        .iter()
        .map(|endpoint| {
            let alone = EtcdSettings { endpoints: vec![endpoint.clone()], ..settings.clone() };
            (endpoint, tokio::spawn(async move { connect(&alone).await }))
        })
        .collect();
    let mut answering = None;
    for (endpoint, asked) in asked {
        let answered = asked.await.unwrap_or_else(|error| Err(StoreError::Away(error.to_string())));
        let answered = answered.map(|etcd| {
            answering.get_or_insert(etcd);
        });
        findings.push(finding(endpoint.clone(), answered));
    }
    let nodes = used(answering.as_ref()).await;
    let (used, nodes) =
        nodes.map_or_else(|error| (Err(error), None), |nodes| (Ok(()), Some(nodes)));
    findings.push(finding(format!("what node {} may do there", fleet.node()), used));
    if nodes.is_some()
        && let Some(etcd) = &answering
    {
        let bounds = in_time(USE_TIMEOUT, etcd.check_bounds()).await;
        findings.push(finding(format!("what node {} may not do there", fleet.node()), bounds));
    }
    // Without the store, every finding above says so.
    findings.extend(nodes.as_ref().map(same_version));
    findings
}

async fn connect(settings: &EtcdSettings) -> Result<Etcd, StoreError> {
    in_time(MEMBER_TIMEOUT, Etcd::connect(settings)).await
}

/// Uses what a member has, if any answers. Returns the nodes of the fleet.
async fn used(etcd: Option<&Etcd>) -> Result<BTreeMap<Node, String>, StoreError> {
    let no_member = || StoreError::Away("no member of it does".into());
    let etcd = etcd.ok_or_else(no_member)?;
    let using = async {
        etcd.check_rights().await?;
        etcd.nodes().await
    };
    in_time(USE_TIMEOUT, using).await
}

async fn in_time<T>(
    limit: Duration,
    asking: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late = |_| StoreError::Away(format!("nothing came within {} s", limit.as_secs()));
    timeout(limit, asking).await.map_err(late)?
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
