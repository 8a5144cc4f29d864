//! Which resting event is pulled next.

use std::collections::BinaryHeap;

use super::flow::Way;
use super::residual::Residual;

/// Shorter than any step.
const NO_STEP: i64 = -1;

/// The moment at which a way from a resting event to a pulled one has no time left.
#[derive(Clone, Copy)]
pub(super) struct Contact {
    /// The length of the step at that moment, in ns.
    pub(super) end: i64,
    pub(super) resting: u32,
    pub(super) way: Way,
    pub(super) pulled: u32,
}

/// The first contact of every resting event, sorted.
pub(super) struct Contacts {
    first: Vec<First>,
    /// Contacts of earlier rounds are void.
    round: u32,
    queue: BinaryHeap<(i64, u32)>,
}

#[derive(Clone, Copy)]
struct First {
    end: i64,
    way: Way,
    pulled: u32,
    round: u32,
}

impl Contacts {
    pub(super) fn new(events: usize) -> Self {
        let none = First { end: NO_STEP, way: Way::along(0), pulled: 0, round: 0 };
        Self { first: vec![none; events], round: 0, queue: BinaryHeap::new() }
    }

    /// Forgets all contacts.
    pub(super) fn clear(&mut self) {
        self.round += 1;
        self.queue.clear();
    }

    /// Finds the first contact of a resting event.
    pub(super) fn find(&mut self, residual: &Residual, resting: u32) {
        let mut first = First { end: NO_STEP, way: Way::along(0), pulled: 0, round: self.round };
        for &(way, pulled) in residual.ways(resting) {
            if residual.times.is_pulled(pulled) {
                let end = residual.contact(resting, way, pulled);
                if end > first.end {
                    first = First { end, way, pulled, ..first };
                }
            }
        }
        self.first[resting as usize] = first;
        if first.end > NO_STEP {
            self.queue.push((first.end, resting));
        }
    }

    /// Notes those contacts of a newly pulled event that come before the known ones.
    pub(super) fn note(&mut self, residual: &Residual, pulled: u32) {
        for &(way, resting) in residual.ways(pulled) {
            if !residual.times.is_pulled(resting) {
                let way = way.reversed();
                let end = residual.contact(resting, way, pulled);
                let first = &mut self.first[resting as usize];
                if first.round != self.round || end > first.end {
                    *first = First { end, way, pulled, round: self.round };
                    if end > NO_STEP {
                        self.queue.push((end, resting));
                    }
                }
            }
        }
    }

    /// Takes out the first contact, that is, the one of the longest step. Ties go to the latest
    /// event: of the rules that were tried, this one touches the fewest events.
    pub(super) fn next(&mut self, residual: &Residual) -> Option<Contact> {
        while let Some((end, resting)) = self.queue.pop() {
            let First { way, pulled, end: first, round } = self.first[resting as usize];
            if residual.times.is_pulled(resting) || round != self.round || end != first {
                continue;
            }
            if residual.times.is_pulled(pulled) && residual.contact(resting, way, pulled) == end {
                return Some(Contact { end, resting, way, pulled });
            }
            self.find(residual, resting);
        }
        None
    }
}
