//! A node whose agent has another version.

use std::net::Ipv4Addr;

use pfo_store::{Etcd, EtcdSettings, Store};
use pfo_tests::Identity;
use tokio::runtime::Builder;

use super::cluster::Cluster;

#[test]
fn a_node_with_another_version_is_named() {
    let Some(cluster) = Cluster::start() else { return };
    let user = Identity::own();
    let checked = cluster.nodes[0].pfoctl(&user, &["fleet", "check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");

    let settings = cluster.store.settings("root", Ipv4Addr::LOCALHOST);
    let settings = EtcdSettings { node: "node-e".parse().unwrap(), lease_s: 600, ..settings };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let _other = runtime.block_on(async {
        let etcd = Etcd::connect(&settings).await.unwrap();
        etcd.enrol("9.9.9").await.unwrap();
        etcd
    });
    let status = cluster.nodes[1].pfoctl(&user, &["fleet", "status"]).printed();
    let named = |line: &str| line.contains("node-e") && line.contains("9.9.9");
    assert!(status.lines().any(named), "{status}");
    let checked = cluster.nodes[0].pfoctl(&user, &["fleet", "check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(format!("{checked:?}").contains("node-e: 9.9.9"), "{checked:?}");
}
