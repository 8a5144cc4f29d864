//! Notifies the agent that a job changed, without polling.

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

    /// Wakes whenever something has changed since the last call.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
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

    #[test]
    fn a_change_is_counted_whether_or_not_anybody_looks_and_its_number_may_wrap() {
        let changes = Changes::default();
        changes.0.send_modify(|count| *count = u64::MAX);
        let watch = changes.subscribe();
        changes.notice();
        assert!(watch.has_changed().unwrap());
        assert_eq!(*watch.borrow(), 0);
    }
}
