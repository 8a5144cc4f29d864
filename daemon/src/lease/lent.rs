//! What the agent has asked for a leased GPU: it ends with the agent, which asks again while it wants
//! it. So an agent that is stopped, or hangs, leaves nothing behind.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use pfo_service::now_ns;

/// A value until its time (`CLOCK_MONOTONIC`, ns) is over.
#[derive(Debug)]
pub(crate) struct Lent<T>(ArcSwapOption<(u64, T)>);

impl<T> Default for Lent<T> {
    fn default() -> Self {
        Self(ArcSwapOption::empty())
    }
}

impl<T: PartialEq> Lent<T> {
    /// Takes a value for a time. Whether it is another one than before.
    pub(crate) fn set(&self, value: Option<T>, lifetime: Duration) -> bool {
        let until_ns = now_ns().saturating_add(lifetime.as_nanos() as u64);
        let new = value.map(|value| Arc::new((until_ns, value)));
        let old = self.0.swap(new.clone());
        old.as_ref().map(|old| &old.1) != new.as_ref().map(|new| &new.1)
    }

    /// The value, with its time, if that is not over.
    pub(crate) fn get(&self) -> Option<Arc<(u64, T)>> {
        self.0.load_full().filter(|lent| now_ns() < lent.0)
    }

    /// Forgets a value whose time is over. Whether there was one.
    pub(crate) fn expire(&self) -> bool {
        let now_ns = now_ns();
        let before = self.0.rcu(|lent| lent.clone().filter(|lent| now_ns < lent.0));
        before.is_some_and(|lent| lent.0 <= now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(lent: &Lent<u32>) -> Option<u32> {
        lent.get().map(|lent| lent.1)
    }

    #[test]
    fn what_is_not_asked_for_again_ends_once_with_its_time() {
        let lent = Lent::default();
        let [long, over] = [60, 0].map(Duration::from_secs);
        assert!(lent.set(Some(200), long) && !lent.set(Some(200), long), "the same again");
        assert!(!lent.expire() && value(&lent) == Some(200));
        assert!(!lent.set(Some(200), over), "its time is over at once");
        assert_eq!(value(&lent), None);
        assert!(lent.expire() && !lent.expire());
        assert!(lent.set(Some(200), long) && lent.set(None, long));
        assert!(!lent.expire() && value(&lent).is_none(), "let go is not over");
    }
}
