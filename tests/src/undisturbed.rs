//! A rank that trains while others misbehave, and notices nothing of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pfo_protocol::{
    Closing, ClosingReason, DaemonMessage, GpuName, Hello, Pid, Refusal, RefusalCode, SessionId,
};

use crate::client::{Client, hello};
use crate::node::{Node, Setup};
use crate::plan::TestPlan;
use crate::rank::Rank;

/// The job of the rank that trains.
pub const GOOD_JOB: &str = "good";

/// The GPU that bad clients name; the good one has GPU 0.
const GPU: usize = 1;

/// A node on which a rank trains on a plan, and minds nobody else.
pub struct Undisturbed {
    enough: Arc<AtomicBool>,
    good: Option<JoinHandle<()>>,
    session: SessionId,
    pid: Pid,
    /// The node.
    pub node: Node,
}

impl Undisturbed {
    /// One with the usual setup.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&Setup::default())
    }

    /// One of some setup.
    #[must_use]
    pub fn start_with(setup: &Setup) -> Self {
        let mut node = Node::start_with(setup);
        let rank = Rank::open(&node, GOOD_JOB, 0, 1, 2);
        node.take_up(GOOD_JOB, &TestPlan::distinct(1, 2, 600));
        let session = node.rank(GOOD_JOB, 0).session;
        let enough = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&enough);
        let train = move || {
            while !stop.load(Ordering::Relaxed) {
                rank.step();
                // No faster than pfod reads: a socket holds the events of a few hundred steps.
                thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(rank.session.problem(), None);
            assert_eq!(rank.session.counters().dropped, 0);
        };
        let pid = node.daemon().process.pid();
        Self { enough, good: Some(thread::spawn(train)), session, pid, node }
    }

    /// A connection of a bad client.
    #[must_use]
    pub fn connect(&self) -> Client {
        Client::connect(&self.node.socket())
    }

    /// The hello of a bad client.
    #[must_use]
    pub fn hello(&self) -> Hello {
        hello("bad", 0, 1, GpuName::Uuid(self.node.machine.uuid(GPU)))
    }

    /// A client whose session holds GPU 1.
    #[must_use]
    pub fn in_session(&self) -> Client {
        let mut client = self.connect();
        client.open(self.hello()).unwrap();
        client
    }

    /// Checks that the bad client got its answer, and that nothing else happened.
    pub fn assert_nothing_else_happened(mut self) {
        let node = &mut self.node;
        let step = node.rank(GOOD_JOB, 0).step;
        node.until_so("the good rank trains on", || {
            node.rank(GOOD_JOB, 0).step > step.map(|step| step + 3)
        });
        let good = node.rank(GOOD_JOB, 0);
        assert_eq!((good.session, good.mismatched_steps, good.lost_events), (self.session, 0, 0));
        node.until_is("sessions", &1, || node.status().daemon.sessions);
        let daemon = node.status().daemon;
        assert_eq!(daemon.pid, self.pid, "the daemon is another one");
        self.enough.store(true, Ordering::Relaxed);
        self.good.take().unwrap().join().unwrap();
        self.node.assert_only_locked(&[]);
    }

    /// Sends bytes as the first thing on a connection; returns the refusal.
    #[must_use]
    pub fn refused_at_once(&self, bytes: &[u8]) -> String {
        let mut client = self.connect();
        client.send(bytes);
        let message = malformed(&mut client);
        client.assert_ended();
        message
    }

    /// Sends bytes in a session; returns why the daemon ended it.
    #[must_use]
    pub fn closed_in_session(&self, bytes: &[u8]) -> String {
        let mut client = self.in_session();
        client.send(bytes);
        let answer = client.answer();
        client.assert_ended();
        match answer {
            Ok(DaemonMessage::Closing(Closing { reason: ClosingReason::Malformed, message })) => {
                self.node.until_is("sessions", &1, || self.node.status().daemon.sessions);
                message
            }
            other => panic!("{other:?}"),
        }
    }
}

fn malformed(client: &mut Client) -> String {
    match client.answer() {
        Ok(DaemonMessage::Refusal(Refusal { code: RefusalCode::Malformed, message, .. })) => {
            message
        }
        other => panic!("{other:?}"),
    }
}
