//! Members of etcd that are away or hang when a client has begun with one of them.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

use pfo_store::{Etcd, Store};

use crate::server::{Server, ServerSetup};
use crate::{job, member, one_member, run, settings};

/// A client begins with any of its endpoints: often enough with each.
const TIMES: usize = 6;

/// A member that is stopped hangs: its connections stay, and nothing is answered.
fn signal(server: &Server, member: usize, signal: &str) {
    let pid = server.members[member].process.as_ref().unwrap().id().to_string();
    let sent = Command::new("kill").args(["-s", signal, &pid]).status().unwrap();
    assert!(sent.success(), "{signal} to {pid}: {sent}");
}

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
                let connected = Etcd::connect(&settings).await.map(drop);
                assert!(connected.is_ok(), "{away}: {connected:?}");
            }
        });
    }
}

#[test]
fn whichever_member_hangs_just_after_a_client_has_begun_with_it_others_answer() {
    let setup = ServerSetup { members: 3, ..ServerSetup::default() };
    let Some(server) = Server::start(&setup) else { return };
    for hung in 0..setup.members {
        run(async {
            let mut clients = Vec::new();
            for _ in 0..TIMES {
                let etcd = Etcd::open(&settings(&server, "node-a")).await.unwrap();
                etcd.join(&job("j"), &member(0)).await.unwrap();
                clients.push(etcd);
            }
            signal(&server, hung, "STOP");
            for etcd in &clients {
                // Others may have to choose a leader.
                let began = Instant::now();
                while let Err(error) = etcd.join(&job("j"), &member(1)).await {
                    assert!(began.elapsed() < Duration::from_secs(60), "{error}");
                }
            }
            signal(&server, hung, "CONT");
        });
    }
}
