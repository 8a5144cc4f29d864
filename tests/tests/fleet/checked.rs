//! `pfoctl fleet check` answers while something is wrong, and costs the node nothing.

use pfo_tests::{EtcdCluster, EtcdSetup, Identity, Node, Ran};

use super::cluster::start_node;

fn check(node: &Node) -> Ran {
    node.pfoctl(&Identity::own(), &["fleet", "check"])
}

#[test]
fn a_check_of_three_members_names_what_is_wrong_before_pfoctl_gives_up() {
    let setup = EtcdSetup { members: 3, ..EtcdSetup::default() };
    let Some(store) = EtcdCluster::start(&setup) else { return };
    let node = start_node("node-a", &store, None);
    node.until_so("all is well", || check(&node).code == Some(0));

    store.delete("/pfo/1/node/node-a");
    let is_back = || !store.keys_with("/pfo/1/node/node-a").is_empty();
    node.until_so("the agent has put its key back", is_back);
    assert_eq!(store.keys_with("check"), [""; 0]);

    store.allow("/pfo/1/node/");
    let wide = check(&node);
    assert_eq!(wide.code, Some(1), "{wide:?}");
    assert!(wide.stdout.contains("what is other nodes' below /pfo/1/node/"), "{wide:?}");

    store.forbid("/pfo/1/slice/");
    let refused = check(&node);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stdout.contains("permission denied, at /pfo/1/slice/"), "{refused:?}");

    store.distrust("node-a");
    let distrusted = check(&node);
    assert_eq!(distrusted.code, Some(1), "{distrusted:?}");
    assert!(distrusted.stdout.contains("is not signed by the authority of"), "{distrusted:?}");

    store.expire_certificate("node-a");
    let expired = || check(&node).stdout.contains("node-a.pem: the certificate expired");
    node.until_so("its expiry is named", expired);
}
