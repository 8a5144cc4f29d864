//! Notifies the agent that a job changed, without polling.

use std::sync::Arc;

use tokio::sync::watch;

/// Notices the changes of all jobs of the node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes(Arc<watch::Sender<()>>);

impl Changes {
    /// Notices one. It does not block.
    pub(crate) fn notice(&self) {
        self.0.send_replace(());
    }

    /// Wakes whenever something has changed since the last call.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_wakes_everybody_who_looked_before_it_and_nobody_who_looked_after() {
        let changes = Changes::default();
        changes.notice();
        let (mut early, clone) = (changes.subscribe(), changes.clone());
        assert!(!early.has_changed().unwrap());
        clone.notice();
        clone.notice();
        assert!(early.has_changed().unwrap());
        early.mark_unchanged();
        assert!(!early.has_changed().unwrap() && !changes.subscribe().has_changed().unwrap());
    }
}
