//! Who may order what of all nodes: an administrator with a key that a node lists, at nodes that obey the
//! fleet. The attacker is a node, which writes into the store what it likes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread::sleep;
use std::time::Duration;

use pfo_tests::{
    EtcdCluster, EtcdSetup, Identity, MachineSetup, Node, Ran, Setup, Training, needs_root,
    true_frontier,
};

use super::budgets::{
    KEY, SITES_W, admin, is_slowed, key_file, label, limited, listed_key, load, local, setup,
    status,
};
use super::cluster::start_node_with;
use super::staged::TIME_SCALE;

const ORDERS: &str = "/pfo/1/budget/orders";
const BLUEPRINT: &str = "/pfo/1/budget/blueprint";

/// Somebody else's key.
const OTHER_KEY: u8 = 8;

/// The job that a hostile node would like to slow down, and how long it may take an agent to do that.
const JOB: &str = "alice";
const LOOKS: Duration = Duration::from_secs(4);

/// Two nodes, and a job with a frontier on the first.
fn start(of_second: &Setup) -> Option<(EtcdCluster, [Node; 2], Training)> {
    let store = EtcdCluster::start(&EtcdSetup::default())?;
    let nodes = [("node-a", &setup(0)), ("node-b", of_second)];
    let nodes = nodes.map(|(name, setup)| start_node_with(setup, name, &store, None));
    let training = local(&nodes[0], 0, JOB);
    load(&nodes[0], JOB, &true_frontier(&nodes[0], TIME_SCALE));
    Some((store, nodes, training))
}

/// Waits until a node says why it does not obey what the store has.
fn until_refused(node: &Node, why: &str) {
    node.until_so(why, || {
        status(node)["disobeyed"].as_str().is_some_and(|said| said.contains(why))
    });
}

fn ordered_w(node: &Node) -> Option<f64> {
    status(node)["budgets"][0]["order"]["level"]["watts"].as_f64()
}

/// Nothing takes anything from the job for as long as agents need to look several times.
fn keeps_its_clocks(node: &Node) {
    sleep(LOOKS);
    assert_eq!((label(node, JOB), limited(node)), (None, 0), "{}", status(node));
}

fn run_as_admin(node: &Node, arguments: &[&str]) -> Ran {
    node.pfoctl(&Identity::administrator(), arguments)
}

#[test]
fn what_a_node_writes_into_the_store_takes_nothing_from_a_job_without_a_signature() {
    needs_root!();
    let Some((store, nodes, training)) = start(&setup(1)) else { return };
    let [a, b] = &nodes;
    let order = r#"{"scope":"fleet","level":{"watts":1.0},"up_w_per_s":null,"down_w_per_s":null,"emergency":true}"#;
    let kept = format!(r#"{{"order":{order},"by_uid":0,"since_unix_s":1,"text":null}}"#);
    store
        .put(ORDERS, &format!(r#"{{"format":"pfo-agent-budget/1","orders":[{kept}],"terms":[]}}"#));
    until_refused(a, "nobody has signed it");
    keeps_its_clocks(a);
    store.put(BLUEPRINT, "{}");
    keeps_its_clocks(a);

    let unsigned = run_as_admin(b, &["budget", "set", "1W", "--for", "fleet", "--emergency"]);
    assert_eq!(unsigned.code, Some(4), "{unsigned:?}");
    assert!(unsigned.stderr.contains("need the signature of an administrator"), "{unsigned:?}");
    let other = key_file(b, OTHER_KEY);
    let set = ["budget", "set", "1W", "--for", "fleet", "--emergency", "--key"];
    let by_another = run_as_admin(b, &[&set[..], &[&other]].concat());
    assert_eq!(by_another.code, Some(4), "{by_another:?}");
    assert!(by_another.stderr.contains("key 1398f62c… is not in budget.keys"), "{by_another:?}");
    let exposed = key_file(b, KEY);
    fs::set_permissions(&exposed, fs::Permissions::from_mode(0o640)).unwrap();
    let exposed = run_as_admin(b, &[&set[..], &[&exposed]].concat());
    assert_eq!(exposed.code, Some(2), "{exposed:?}");
    assert!(exposed.stderr.contains("its mode is 640"), "{exposed:?}");
    keeps_its_clocks(a);
    training.stop();
}

#[test]
fn what_was_signed_stays_in_force_whatever_a_node_writes_in_its_place() {
    needs_root!();
    let Some((store, mut nodes, training)) = start(&setup(1)) else { return };
    let first_w = SITES_W + 10.0;
    let _ =
        admin(&nodes[1], &["budget", "set", &format!("{first_w}W"), "--for", "fleet", "--force"]);
    nodes[0].until_so("it is slowed down", || is_slowed(&nodes[0], JOB));
    let said = admin(&nodes[0], &["budget", "status"]);
    assert!(said.contains("on node-b, key tests"), "{said}");
    let first = store.get(ORDERS);
    let _ = admin(&nodes[1], &["budget", "set", "90kW", "--for", "fleet"]);
    nodes[0].until_is("it runs its own", &None, || label(&nodes[0], JOB));
    let second = store.get(ORDERS);

    store.put(ORDERS, &first);
    until_refused(&nodes[0], "it is number 1, and this node knows number 2");
    store.put(ORDERS, &second.replace("90000.0", "100.0"));
    until_refused(&nodes[0], "the signature with key tests is not of this text");
    store.put(ORDERS, &first);
    nodes[0].kill_agent();
    nodes[0].start_agent();
    until_refused(&nodes[0], "it is number 1, and this node knows number 2");
    keeps_its_clocks(&nodes[0]);
    assert_eq!(ordered_w(&nodes[0]), Some(90e3));
    store.delete(ORDERS);
    keeps_its_clocks(&nodes[0]);
    assert_eq!(ordered_w(&nodes[0]), Some(90e3));

    // A store that has lost what was signed and decided, such as one that began anew, has it again.
    nodes[0].until_so("what was signed is there", || store.get(ORDERS).contains("90000.0"));
    nodes[0].until_so("nothing is refused", || status(&nodes[0])["disobeyed"].is_null());
    store.delete(BLUEPRINT);
    nodes[0].until_so("it is decided again", || store.get(BLUEPRINT).contains("90000.0"));

    // The next change is obeyed.
    let _ = admin(&nodes[1], &["budget", "set", "80kW", "--for", "fleet"]);
    nodes[0].until_is("the budget", &Some(80e3), || ordered_w(&nodes[0]));
    nodes[0].until_so("nothing is refused", || status(&nodes[0])["disobeyed"].is_null());
    let _ = admin(&nodes[1], &["budget", "clear", "--for", "fleet"]);
    nodes[0].until_is("the budget", &None, || ordered_w(&nodes[0]));
    training.stop();
}

#[test]
fn a_node_whose_configuration_does_not_say_so_obeys_no_budget_of_the_fleet() {
    needs_root!();
    let second = Setup {
        machine: MachineSetup { gpus: "5xA40", ..MachineSetup::default() },
        agent_rules: concat!("[budget]\nevery_s = 1\n", listed_key!()),
        ..Setup::default()
    };
    let Some((_store, nodes, training)) = start(&second) else { return };
    let [a, b] = &nodes;
    let free = local(b, 0, JOB);
    load(b, JOB, &true_frontier(b, TIME_SCALE));
    let set = ["budget", "set", "300W", "--for", "fleet", "--force"];
    let said = admin(b, &set);
    let why = "fleet is false in [budget] of its agent.toml";
    assert!(said.contains(&format!("this node obeys no budget of the fleet: {why}")), "{said}");
    a.until_so("it is slowed down", || is_slowed(a, JOB));
    a.until_so("the others name the node", || {
        let problem = status(a)["budgets"][0]["problem"].clone();
        let named = format!("node node-b obeys no budget of the fleet: {why}");
        problem.as_str().is_some_and(|problem| problem.contains(&named))
    });
    keeps_its_clocks(b);
    free.stop();
    training.stop();
}

#[test]
fn what_another_administrator_has_signed_is_signed_again_only_if_one_says_so() {
    needs_root!();
    let two = Setup {
        agent_rules: "[budget]\nfleet = true\nkeys = [\
            \"tests:ea4a6c63e29c520abef5507b132ec5f9954776aebebe7b92421eea691446d22c\", \
            \"other:1398f62c6d1a457c51ba6a4b5f3dbd2f69fca93216218dc8997e416bd17d93ca\"]\n",
        ..Setup::default()
    };
    let Some(store) = EtcdCluster::start(&EtcdSetup::default()) else { return };
    let node = start_node_with(&two, "node-a", &store, None);
    let _ = admin(&node, &["budget", "set", "90kW", "--for", "fleet"]);
    let other = key_file(&node, OTHER_KEY);
    let terms =
        ["budget", "terms", "--for", "fleet/user:0", "--weight", "3", "--key", other.as_str()];
    let refused = run_as_admin(&node, &terms);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("signed with another key, ea4a6c63…"), "{refused:?}");
    let adopted = run_as_admin(&node, &[&terms[..], &["--adopt"]].concat()).printed();
    assert!(adopted.contains("key other"), "{adopted}");
    assert_eq!(ordered_w(&node), Some(90e3));
}

#[test]
fn a_node_with_the_certificate_of_another_one_is_in_no_fleet() {
    let Some(store) = EtcdCluster::start(&EtcdSetup::default()) else { return };
    let mut node = start_node_with(&Setup::default(), "node-a", &store, None);
    node.until_so("it is enrolled", || !store.keys_with("/pfo/1/node/node-a").is_empty());
    node.kill_agent();
    let config = fs::read_to_string(node.agent_config()).unwrap();
    fs::write(node.agent_config(), config.replace("node = \"node-a\"", "node = \"node-b\""))
        .unwrap();
    node.start_agent();
    node.until_agent_logged("the certificate is that of node-a, and this is node node-b");
    assert_eq!(store.keys_with("node-b"), [""; 0]);
}

#[test]
fn a_node_without_the_role_for_budgets_is_well_and_sets_none() {
    needs_root!();
    let Some(store) = EtcdCluster::start(&EtcdSetup::default()) else { return };
    store.take_role("node-a", "pfo-budget");
    let node = start_node_with(&setup(0), "node-a", &store, None);
    let check = || run_as_admin(&node, &["fleet", "check"]);
    node.until_so("the check finds nothing", || check().code == Some(0));
    let key = key_file(&node, KEY);
    let set = ["budget", "set", "90kW", "--for", "fleet", "--key", &key];
    let refused = run_as_admin(&node, &set);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    let why = "permission denied, at /pfo/1/budget/orders";
    assert!(refused.stderr.contains(why), "{refused:?}");
    assert_eq!(store.keys_with("/pfo/1/budget/orders"), [""; 0]);
}
