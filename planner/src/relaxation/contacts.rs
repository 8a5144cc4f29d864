//! Which event that rests is next to be pulled along.

use std::collections::BinaryHeap;

use super::flow::Way;
use super::residual::Residual;

/// No step is as short as that.
const NO_STEP: i64 = -1;

/// A way, from an event that rests to one that is pulled, on which no time is left.
#[derive(Clone, Copy)]
pub(super) struct Contact {
    /// How long the step takes then, in ns.
    pub(super) end: i64,
    pub(super) resting: u32,
    pub(super) way: Way,
    pub(super) pulled: u32,
}

/// The first contact of every event that rests, the first of all at hand.
pub(super) struct Contacts {
    first: Vec<First>,
    /// What was noted in an earlier round is void.
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

    /// Finds the first contact of an event that rests.
    pub(super) fn find(&mut self, residual: &Residual, resting: u32) {
        let mut first = First { end: NO_STEP, way: Way::along(0), pulled: 0, round: self.round };
        for &(way, pulled) in residual.ways(resting) {
            if residual.drift.is_pulled(pulled) {
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

    /// Notes the contacts of an event that is now pulled, as far as they come first.
    pub(super) fn note(&mut self, residual: &Residual, pulled: u32) {
        for &(way, resting) in residual.ways(pulled) {
            if !residual.drift.is_pulled(resting) {
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

    /// Takes out the contact that comes first, that is, while the step is longest. Of several it is
    /// that of the latest event: of the ways to break ties that were tried, this one touches the
    /// fewest events.
    pub(super) fn next(&mut self, residual: &Residual) -> Option<Contact> {
        while let Some((end, resting)) = self.queue.pop() {
            let First { way, pulled, end: first, round } = self.first[resting as usize];
            if residual.drift.is_pulled(resting) || round != self.round || end != first {
                continue;
            }
            if residual.drift.is_pulled(pulled) && residual.contact(resting, way, pulled) == end {
                return Some(Contact { end, resting, way, pulled });
            }
            self.find(residual, resting);
        }
        None
    }
}
