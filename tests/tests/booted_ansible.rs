//! The role for Ansible, run over SSH against booted Debians.

use pfo_tests::{AnsibleHost, Debian, PackagedNode, built_deb, changed, on_both_debians};
use serde_json::{Value, json};

on_both_debians! {
    the_role_installs_configures_and_removes
    the_role_leaves_a_configuration_in_force_that_a_wrong_one_would_replace
}

/// Packages from the machine that runs Ansible, and these variables.
fn site(variables: &Value) -> Value {
    let packages = ["pfod", "libpfo0"].map(built_deb);
    let mut site = json!({"pfo_packages": packages});
    site.as_object_mut().unwrap().extend(variables.as_object().unwrap().clone());
    site
}

fn the_role_installs_configures_and_removes(debian: Debian) {
    let Some(node) = PackagedNode::boot(debian) else { return };
    node.debian.run("useradd alice && useradd carol && useradd mallory").printed();
    let before = node.debian.run("find /etc /usr /var/lib -xdev | sort").printed();
    let host = AnsibleHost::new(&node.debian);
    let variables = site(&json!({
        "pfo_trainers": ["alice"],
        "pfo_administrators": ["carol"],
        "pfo_pfod_toml": "[lease]\nmin_mhz = 600\n",
        "pfo_agent_toml": "[watch]\n",
        "pfo_doctor_must_pass": false,
    }));
    host.play(&variables).printed();
    node.assert_serves();
    assert_eq!(node.debian.run("cat /etc/pfo/pfod.toml").printed(), "[lease]\nmin_mhz = 600\n");
    let explained = node.debian.run_as("alice", "pfoctl policy explain").printed();
    assert!(explained.contains("600"), "{explained}");

    let again = host.play(&variables);
    assert_eq!((again.code, changed(&again)), (Some(0), 0), "{again:?}");

    node.train("job", "alice");
    host.play(&json!({"pfo_state": "absent"})).printed();
    node.assert_nothing_locked();
    let after = node.debian.run("find /etc /usr /var/lib -xdev | sort").printed();
    let left = |line: &&str| !before.lines().any(|known| known == *line);
    let left: Vec<_> = after.lines().filter(left).filter(|line| line.contains("pfo")).collect();
    assert_eq!(left, Vec::<&str>::new());
}

fn the_role_leaves_a_configuration_in_force_that_a_wrong_one_would_replace(debian: Debian) {
    let Some(node) = PackagedNode::boot(debian) else { return };
    let host = AnsibleHost::new(&node.debian);
    host.play(&site(&json!({"pfo_pfod_toml": "[lease]\nmin_mhz = 600\n"}))).printed();
    let wrong = host.play(&site(&json!({"pfo_pfod_toml": "[lease]\nmin_mzh = 900\n"})));
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stdout.contains("line 2, column 1: unknown field `min_mzh`"), "{wrong:?}");
    assert_eq!(node.debian.run("cat /etc/pfo/pfod.toml").printed(), "[lease]\nmin_mhz = 600\n");
    node.debian.run("pfod --check-config && pfoctl reload").printed();
    let wrong = host.play(&site(&json!({"pfo_state": "gone"})));
    assert!(wrong.stdout.contains("it must be present or absent"), "{wrong:?}");
}
