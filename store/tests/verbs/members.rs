//! Members of etcd that are away when a client begins with one of them.

use std::net::{Ipv4Addr, TcpListener};

use pfo_store::{Etcd, Store};

use crate::{job, member, one_member, run, settings};

/// A client begins with any of its endpoints: often enough with each.
const TIMES: usize = 6;

#[test]
fn a_client_that_begins_with_a_member_that_is_away_or_silent_gets_to_another_one() {
    let Some(server) = one_member() else { return };
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    for away in [gone, silent.local_addr().unwrap()] {
        run(async {
            for _ in 0..TIMES {
                let mut settings = settings(&server, "node-a");
                settings.endpoints.insert(0, format!("https://{away}"));
                let etcd = Etcd::open(&settings).await.unwrap();
                assert_eq!(etcd.join(&job("j"), &member(0)).await, Ok(()), "{away}");
            }
        });
    }
}
