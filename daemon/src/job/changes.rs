//! Lets the agent learn that a job changed, without polling.

use std::sync::Arc;

use tokio::sync::watch;

/// Counts the changes of all jobs of the node.
#[derive(Clone, Debug)]
pub(crate) struct Changes(Arc<watch::Sender<u64>>);

impl Default for Changes {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Changes {
    /// Counts one. It does not block.
    pub(crate) fn notice(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Wakes whenever something changed since it was looked at last.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}
