//! How much of some work is done, said often enough to be ended at once.

use std::sync::atomic::{AtomicU64, Ordering};

/// What takes the progress of a search, from any thread. It may panic to end the search.
pub(crate) type Listener<'a> = &'a (dyn Fn(f64) + Sync);

/// The progress of some work, or of a part of it.
pub(crate) struct Progress<'a> {
    listener: Listener<'a>,
    /// The shares of the whole work (0 to 1) that are done when this part begins and when it ends.
    from: f64,
    to: f64,
    /// The bits of the largest share of the whole that was said. Those of numbers of at least 0 are
    /// in their order.
    reached: AtomicU64,
}

impl<'a> Progress<'a> {
    /// The progress of the whole work.
    pub(crate) fn new(listener: Listener<'a>) -> Self {
        Self::between(listener, 0.0, 1.0)
    }

    /// The part of this work between two shares (0 to 1) of it.
    pub(crate) fn part(&self, from: f64, to: f64) -> Self {
        Self::between(self.listener, self.of_whole(from), self.of_whole(to))
    }

    fn between(listener: Listener<'a>, from: f64, to: f64) -> Self {
        Self { listener, from, to, reached: AtomicU64::new(from.to_bits()) }
    }

    fn of_whole(&self, share: f64) -> f64 {
        self.from + share * (self.to - self.from)
    }

    /// Says which share (0 to 1) is done.
    pub(crate) fn say(&self, share: f64) {
        let reached = self.of_whole(share).to_bits();
        let before = self.reached.fetch_max(reached, Ordering::Relaxed);
        (self.listener)(f64::from_bits(before.max(reached)));
    }

    /// Says again what is done, between steps of work that are too small to count.
    pub(crate) fn go_on(&self) {
        (self.listener)(f64::from_bits(self.reached.load(Ordering::Relaxed)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_part_of_a_part_says_what_share_of_the_whole_is_done_and_never_less() {
        let said = Mutex::new(Vec::new());
        let listener = |done| said.lock().unwrap().push(done);
        let whole = Progress::new(&listener);
        let part = whole.part(0.5, 1.0).part(0.0, 0.5);
        part.go_on();
        part.say(0.5);
        part.say(0.25);
        part.go_on();
        part.say(1.0);
        assert_eq!(*said.lock().unwrap(), [0.5, 0.625, 0.625, 0.625, 0.75]);
    }
}
