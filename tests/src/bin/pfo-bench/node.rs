//! The node that is measured: the daemon as a process of its own, on a simulated driver that answers
//! at once.

use std::time::{Duration, Instant};

use pfo::{RankDescription, Session};
use pfo_tests::log_text::tail;
use pfo_tests::machine::MachineSetup;
use pfo_tests::node::{Node, Setup};

use crate::Result;
use crate::proc_status::Process;

/// As many GPUs as ranks are measured at most.
pub(crate) const GPUS: usize = 8;

/// Nothing that is waited for takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A node whose daemon serves.
pub(crate) fn start() -> Node {
    let machine = MachineSetup { gpus: "8xA100", set_latency_ms: 0, settle_ms: 0 };
    Node::start_with(&Setup { machine, ..Setup::default() })
}

/// The daemon's process.
pub(crate) fn daemon(node: &Node) -> Result<Process> {
    let daemon = node.daemon.as_ref().ok_or("there is no daemon")?;
    Ok(Process(daemon.process.pid().0))
}

/// The job whose only rank is on the GPU with this index.
pub(crate) fn job(gpu: usize) -> String {
    format!("bench-{gpu}")
}

/// A session of the rank on the GPU with this index.
pub(crate) fn open_session(node: &Node, gpu: usize) -> Result<Session> {
    let session = Session::open(RankDescription {
        job: Some(job(gpu)),
        gpu: Some(node.machine.uuid(gpu).as_str().parse()?),
        socket: Some(node.socket()),
        setup_timeout: PATIENCE,
        ..RankDescription::default()
    })?;
    match session.problem() {
        None => Ok(session),
        Some(problem) => Err(format!("no lease: {problem}; log:\n{}", tail(&node.log())).into()),
    }
}

/// Asks until it is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > PATIENCE {
            return Err(format!("waited {PATIENCE:?} in vain until {what}").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
