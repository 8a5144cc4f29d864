//! What is wrong with the set-up of the fleet, found by using it.

use pfo_fleet::{Degrees, Gpus, Member};
use pfo_protocol::{FleetFinding, Uid};
use pfo_store::{Etcd, EtcdSettings, JobId, Measured, Store, StoreError, WatchedJob};

use super::parts::Fleet;

/// A job that no user can have: this uid is no user's.
const CHECKED: Uid = Uid(u32::MAX);

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
    findings
}

fn finding(what: String, found: Result<(), StoreError>) -> FleetFinding {
    FleetFinding { what, wrong: found.err().map(|error| error.to_string()) }
}

/// Reads and writes where an agent does.
async fn use_all(etcd: &Etcd, fleet: &Fleet) -> Result<(), StoreError> {
    etcd.enrol(env!("CARGO_PKG_VERSION")).await?;
    etcd.nodes().await?;
    let Ok(name) = format!("fleet-check/{}", fleet.node()).parse() else { return Ok(()) };
    let job = JobId { uid: CHECKED, name };
    etcd.watch(&job).await?.next().await?;
    let (degrees, places) = (Degrees { pp: 1, dp: 1, tp: 1 }, Vec::new());
    let member = Member { degrees, places, gpus: Gpus::default(), measures: false };
    etcd.join(&job, &member).await?;
    let measured = Measured { swap: 0, plan: None, ranks: 0, time_s: 0.0, energy_j: None };
    etcd.measure(&job, &[measured]).await?;
    etcd.measured(&job).await?;
    etcd.hand_in(&job, 1, b"").await?;
    etcd.handed_in(&job, 1, fleet.node()).await?;
    etcd.leave(&job).await?;
    let slice = etcd.publish(&job, b"{}").await?;
    etcd.fetch(&job, slice).await.map(drop)
}
