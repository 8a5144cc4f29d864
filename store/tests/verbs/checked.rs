//! What a node that checks its set-up is told, and that it costs the node nothing.

use super::*;

fn checked(settings: &EtcdSettings) -> Result<(), String> {
    let mut found = Ok(());
    run(async {
        let checking = async {
            let etcd = Etcd::connect(settings).await?;
            etcd.check_certificate()?;
            etcd.check_rights().await
        };
        found = checking.await.map_err(|error: StoreError| error.to_string());
    });
    found
}

#[test]
fn a_key_that_somebody_has_deleted_is_written_again() {
    let Some(server) = one_member() else { return };
    run(async {
        let a = connect(&server, "node-a").await.unwrap();
        a.enrol("0.2.0").await.unwrap();
        server.ctl("del /pfo/1/node/node-a").unwrap();
        assert_eq!(a.nodes().await, Ok([].into()));
        a.enrol("0.2.0").await.unwrap();
        assert_eq!(a.nodes().await, Ok([(node("node-a"), "0.2.0".into())].into()));
    });
}

#[test]
fn a_check_changes_nothing_that_the_node_has_in_the_store() {
    let Some(server) = one_member() else { return };
    run(async {
        let a = connect(&server, "node-a").await.unwrap();
        a.enrol("0.2.0").await.unwrap();
        a.join(&job("j"), &member(0)).await.unwrap();
        // With the lease of each key, and the revision of its last change.
        let all = || server.ctl("get --prefix /pfo/1/ --write-out=fields").unwrap();
        let keys = || {
            let keys = all();
            let said =
                keys.lines().filter(|line| !line.starts_with("\"Revision\"")).map(str::to_owned);
            said.collect::<Vec<_>>()
        };
        let before = keys();
        connect(&server, "node-a").await.unwrap().check_rights().await.unwrap();
        assert_eq!(keys(), before);
    });
}

#[test]
fn every_key_that_a_node_may_not_use_is_named() {
    let Some(server) = one_member() else { return };
    server.ctl("role revoke-permission --prefix=true pfo-node /pfo/1/slice/").unwrap();
    server.ctl("role revoke-permission pfo-node-node-a /pfo/1/budget/draw/node-a").unwrap();
    let refused = checked(&settings(&server, "node-a")).unwrap_err();
    server.ctl("role revoke-permission --prefix=true pfo-node /pfo/1/savings/").unwrap();
    let refused_too = checked(&settings(&server, "node-a")).unwrap_err();
    assert!(refused_too.contains(" /pfo/1/savings/"), "{refused_too}");
    let named = ["node/", "job/", "measured/", "slice/", "budget/draw/node-a", "budget/curves/"]
        .map(|key| refused.contains(&format!(" /pfo/1/{key}")));
    assert_eq!(named, [false, false, false, true, true, false], "{refused}");
}

#[test]
fn a_role_that_lets_a_node_write_the_keys_of_another_is_named() {
    let Some(server) = one_member() else { return };
    let bounds = || {
        let mut found = Ok(());
        run(async {
            let a = connect(&server, "node-a").await.unwrap();
            found = a.check_bounds().await.map_err(|error| error.to_string());
        });
        found
    };
    assert_eq!(bounds(), Ok(()));
    server
        .ctl("role grant-permission --prefix=true pfo-node readwrite /pfo/1/budget/draw/")
        .unwrap();
    let wide = bounds().unwrap_err();
    assert!(wide.contains("other nodes' below /pfo/1/budget/draw/;"), "{wide}");
    assert_eq!(server.ctl("get --prefix --keys-only /pfo/1/budget/").unwrap().trim(), "");
}

#[test]
fn a_node_writes_what_it_says_of_itself_and_nothing_in_the_place_of_another() {
    let Some(server) = one_member() else { return };
    run(async {
        let a = connect(&server, "node-a").await.unwrap();
        a.say(Topic::Draw, b"{}").await.unwrap();
        a.enrol("0.2.0").await.unwrap();
        let settings = EtcdSettings { node: node("node-b"), ..settings(&server, "node-a") };
        let as_b = Etcd::connect(&settings).await.unwrap();
        let (said, enrolled) = (as_b.say(Topic::Draw, b"{}").await, as_b.enrol("0.2.0").await);
        for refused in [said, enrolled] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("permission denied"), "{refused}");
        }
    });
}

#[test]
fn a_write_that_is_refused_names_its_key() {
    let Some(server) = one_member() else { return };
    server.ctl("role revoke-permission --prefix=true pfo-node /pfo/1/job/").unwrap();
    run(async {
        let a = connect(&server, "node-a").await.unwrap();
        let refused = a.join(&job("j"), &member(0)).await.unwrap_err().to_string();
        assert!(refused.contains("/pfo/1/job/1000/j/"), "{refused}");
    });
}

#[test]
fn the_certificate_of_another_node_is_named() {
    let Some(server) = one_member() else { return };
    let settings = EtcdSettings { node: node("node-b"), ..settings(&server, "node-a") };
    let wrong = checked(&settings).unwrap_err();
    assert!(wrong.contains("that of node-a, and this is node node-b"), "{wrong}");
}

#[test]
fn a_key_that_is_not_that_of_the_certificate_is_named() {
    let Some(server) = one_member() else { return };
    let (mut settings, other) = (settings(&server, "node-a"), settings(&server, "node-b"));
    settings.credentials.as_mut().unwrap().key = other.credentials.unwrap().key;
    let wrong = checked(&settings).unwrap_err();
    assert!(wrong.contains("node-b.key is not the key of"), "{wrong}");
}

#[test]
fn an_authority_that_has_not_signed_the_certificate_of_etcd_is_named() {
    let Some(server) = one_member() else { return };
    let mut settings = settings(&server, "node-a");
    settings.credentials.as_mut().unwrap().ca = server.certify_by_another("stranger");
    let wrong = checked(&settings).unwrap_err();
    assert!(wrong.contains("other.pem has not signed the certificate of etcd"), "{wrong}");
}

#[test]
fn a_certificate_that_etcd_does_not_trust_is_named() {
    let Some(server) = one_member() else { return };
    server.certify_by_another("node-a");
    let wrong = checked(&settings(&server, "node-a")).unwrap_err();
    assert!(wrong.contains("node-a.pem is not signed by the authority of"), "{wrong}");
}

#[test]
fn an_address_that_is_not_in_the_certificate_of_etcd_is_named() {
    let Some(server) = one_member() else { return };
    let mut settings = settings(&server, "node-a");
    let endpoint = &mut settings.endpoints[0];
    *endpoint = endpoint.replace("127.0.0.1", "localhost");
    let wrong = checked(&settings).unwrap_err();
    assert!(wrong.contains("does not name this address"), "{wrong}");
}
