//! A value in shared memory that changes as a whole or not at all.
//!
//! Two copies and a generation, whose lowest bit says which copy counts. A writer, who holds the
//! GPU's lock, fills the other copy and then publishes it with a single store: killed before that
//! store it has changed nothing, killed after it everything. Readers take no lock; a copy that a
//! second writer may have begun to overwrite meanwhile shows in the generation, and is read again.

use std::array;
use std::hint;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Words of a snapshot.
pub(crate) const WORDS: usize = 160;

/// The two copies and their generation.
#[repr(C)]
pub(crate) struct SnapshotCell {
    generation: AtomicU64,
    copies: [[AtomicU64; WORDS]; 2],
}

impl SnapshotCell {
    /// The newest published words.
    pub(crate) fn load(&self) -> [u64; WORDS] {
        loop {
            let before = self.generation.load(Ordering::Acquire);
            let copy = &self.copies[(before & 1) as usize];
            let words = array::from_fn(|i| copy[i].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.generation.load(Ordering::Relaxed) == before {
                return words;
            }
            hint::spin_loop();
        }
    }

    /// Publishes new words. Only the holder of the lock over this cell may do this.
    pub(crate) fn publish(&self, words: &[u64; WORDS]) {
        let generation = self.generation.load(Ordering::Relaxed);
        let copy = &self.copies[((generation + 1) & 1) as usize];
        // A reader that sees any of the words below also sees the generation of the copy before,
        // and so knows that its copy is being overwritten.
        fence(Ordering::Release);
        for (shared, word) in copy.iter().zip(words) {
            shared.store(*word, Ordering::Relaxed);
        }
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
    }
}

/// Puts values into the words of a snapshot, in order.
pub(crate) struct WordWriter {
    words: [u64; WORDS],
    next: usize,
}

impl WordWriter {
    pub(crate) fn new() -> Self {
        Self { words: [0; WORDS], next: 0 }
    }

    pub(crate) fn put(&mut self, word: u64) {
        self.words[self.next] = word;
        self.next += 1;
    }

    pub(crate) fn put_pair(&mut self, high: u32, low: u32) {
        self.put(u64::from(high) << 32 | u64::from(low));
    }

    pub(crate) fn put_wide(&mut self, wide: u128) {
        self.put((wide >> 64) as u64);
        self.put(wide as u64);
    }

    pub(crate) fn finish(self) -> [u64; WORDS] {
        self.words
    }
}

/// Takes values out of the words of a snapshot, in the order they were put.
pub(crate) struct WordReader<'a> {
    words: &'a [u64; WORDS],
    next: usize,
}

impl<'a> WordReader<'a> {
    pub(crate) fn new(words: &'a [u64; WORDS]) -> Self {
        Self { words, next: 0 }
    }

    pub(crate) fn take(&mut self) -> u64 {
        let word = self.words[self.next];
        self.next += 1;
        word
    }

    pub(crate) fn take_pair(&mut self) -> (u32, u32) {
        let word = self.take();
        ((word >> 32) as u32, word as u32)
    }

    pub(crate) fn take_wide(&mut self) -> u128 {
        let high = self.take();
        u128::from(high) << 64 | u128::from(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn empty() -> Box<SnapshotCell> {
        Box::new(SnapshotCell {
            generation: AtomicU64::new(0),
            copies: array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))),
        })
    }

    #[test]
    fn a_reader_never_sees_half_of_a_change() {
        let cell = empty();
        thread::scope(|scope| {
            scope.spawn(|| (1..200_000).for_each(|n| cell.publish(&[n; WORDS])));
            let mut last = 0;
            while last < 199_999 {
                let words = cell.load();
                assert!(words.iter().all(|&word| word == words[0]), "a mixture of two snapshots");
                assert!(words[0] >= last);
                last = words[0];
            }
        });
    }

    #[test]
    fn a_writer_that_dies_before_publishing_has_changed_nothing() {
        let cell = empty();
        cell.publish(&[7; WORDS]);
        let spare = ((cell.generation.load(Ordering::Relaxed) + 1) & 1) as usize;
        cell.copies[spare][3].store(99, Ordering::Relaxed);
        assert_eq!(cell.load(), [7; WORDS]);
        cell.publish(&[8; WORDS]);
        assert_eq!(cell.load(), [8; WORDS]);
    }
}
