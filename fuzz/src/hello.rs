//! The payloads of hellos, each with its length before it, and what becomes of them in a job: a
//! rank is there once, whoever says so how often.
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use pfo_planner::Mhz;
use pfo_protocol::{ClientMessage, Hello, Holder, Kind};
use pfod::config::Clocks;
use pfod::gpu::GpuFacts;
use pfod::grant::Grant;
use pfod::job::{Job, JobKey, Member};
use pfod::lease::Session;
use pfod::policy::Place;
use pfod::session::check_position;
use pfod::terms::Terms;

fn gpu() -> GpuFacts {
    GpuFacts {
        index: 0,
        uuid: "GPU-1".parse().unwrap(),
        pci_bus_id: "00000000:0A:00.0".parse().unwrap(),
        model: "A100".into(),
        sm_clocks: [210, 900, 1200, 1410].map(Mhz).into(),
        memory_clock: Some(Mhz(1215)),
        power_limits: None,
    }
}

fn hellos(mut bytes: &[u8]) -> Vec<Hello> {
    let mut hellos = Vec::new();
    while let Some((length, rest)) = bytes.split_first() {
        let (payload, behind) = rest.split_at(rest.len().min(usize::from(*length)));
        if let Ok(ClientMessage::Hello(hello)) = ClientMessage::from_payload(Kind::Hello, payload) {
            hellos.push(hello);
        }
        bytes = behind;
    }
    hellos
}

/// The target.
pub fn hello(bytes: &[u8]) {
    let hellos = hellos(bytes);
    let Some(first) = hellos.first() else { return };
    let key = JobKey { uid: 7, name: first.job.clone() };
    let job = Job::new(key, first.position.pp_degree);
    let gpu = Arc::new(gpu());
    for (number, hello) in hellos.into_iter().enumerate() {
        if check_position(&hello).is_err() {
            continue;
        }
        let (job_name, rank) = (hello.job.clone(), hello.position.rank);
        let holder = Holder { job: job_name, rank, uid: 7, pid: 1, session: number as u64 };
        let grant = Grant::new(Terms::default(), Place::Lease, &gpu, &Clocks::default());
        let session = Arc::new(Session::new(holder, grant, UnixStream::pair().unwrap().0));
        let was_there = job.members().ranks.contains_key(&rank);
        let joined =
            job.join(Member { hello, session: Arc::clone(&session), gpu: Arc::clone(&gpu) });
        assert!(joined.is_err() || !was_there);
        if number % 3 == 2 && joined.is_ok() {
            job.leave(&session);
            assert!(!job.members().ranks.contains_key(&rank));
        }
    }
}
