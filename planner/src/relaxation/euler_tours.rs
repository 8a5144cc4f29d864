//! Trees of events that are cut and joined in constant time.
//!
//! A tree is kept as its Euler tour: a linked list in which every event opens, then all that hangs
//! from it, then it closes. What hangs from an event is a stretch of that list, so moving it takes
//! four links at any length, and visiting it takes no search.

/// One of the two parts that a cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// An event with all that hangs from it.
    Branch,
    /// The tree without that branch.
    Rest,
}

pub(super) struct EulerTours {
    /// For each event the stop at which it opens and the one at which it closes.
    stops: Vec<Stop>,
    branch: Vec<u32>,
    rest: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Stop {
    next: u32,
    previous: u32,
}

fn opening(event: u32) -> u32 {
    2 * event
}

fn closing(event: u32) -> u32 {
    2 * event + 1
}

impl EulerTours {
    /// Events that are trees of their own.
    pub(super) fn new(events: usize) -> Self {
        let stops = (0..events as u32)
            .flat_map(|event| [opening(event), closing(event)].map(|stop| stop ^ 1))
            .map(|other| Stop { next: other, previous: other })
            .collect();
        Self { stops, branch: vec![0; events], rest: vec![0; events] }
    }

    /// Hangs the root of one tree from an event of another.
    pub(super) fn hang(&mut self, root: u32, from: u32) {
        let next = self.stops[opening(from) as usize].next;
        self.connect(opening(from), opening(root));
        self.connect(closing(root), next);
    }

    /// Makes an event the root of a tree of its own, with all that hangs from it.
    pub(super) fn cut(&mut self, event: u32) {
        let previous = self.stops[opening(event) as usize].previous;
        let next = self.stops[closing(event) as usize].next;
        self.connect(previous, next);
    }

    fn connect(&mut self, stop: u32, next: u32) {
        self.stops[stop as usize].next = next;
        self.stops[next as usize].previous = stop;
    }

    /// The smaller part of what was one tree before `branch` was cut from it, `root` not counted.
    ///
    /// Walks both parts side by side until the smaller one ends.
    pub(super) fn smaller(&mut self, branch: u32, root: u32) -> (Part, &[u32]) {
        let (mut in_branch, mut in_rest) = (0, 0);
        let mut stop = opening(branch);
        let mut other = self.stops[opening(root) as usize].next;
        while other != closing(root) {
            // Every event is written at both its stops, but counted at the first only.
            self.branch[in_branch] = stop >> 1;
            in_branch += usize::from(stop & 1 == 0);
            self.rest[in_rest] = other >> 1;
            in_rest += usize::from(other & 1 == 0);
            stop = self.stops[stop as usize].next;
            other = self.stops[other as usize].next;
            if stop == closing(branch) {
                return (Part::Branch, &self.branch[..in_branch]);
            }
        }
        (Part::Rest, &self.rest[..in_rest])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVENTS: usize = 14;

    fn hangs_from(parents: &[usize], event: usize, from: usize) -> bool {
        event == from || (event != 0 && hangs_from(parents, parents[event], from))
    }

    proptest! {
        #[test]
        fn the_smaller_part_of_a_tree_is_found_whole_and_can_be_hung_elsewhere(
            parents in prop::collection::vec(any::<prop::sample::Index>(), EVENTS - 1),
            moves in prop::collection::vec(
                (1..EVENTS, any::<prop::sample::Index>()), 1..20,
            ),
        ) {
            let mut tours = EulerTours::new(EVENTS);
            // Event 0 is the root.
            let mut parents: Vec<usize> = std::iter::once(0)
                .chain((1..).zip(&parents).map(|(event, parent)| parent.index(event)))
                .collect();
            for (event, &parent) in (0..).zip(&parents).skip(1) {
                tours.hang(event, parent as u32);
            }
            for (branch, to) in moves {
                tours.cut(branch as u32);
                let (below, rest): (Vec<usize>, Vec<usize>) =
                    (1..EVENTS).partition(|&event| hangs_from(&parents, event, branch));
                let (part, few) = tours.smaller(branch as u32, 0);
                let mut few: Vec<usize> = few.iter().map(|&event| event as usize).collect();
                few.sort_unstable();
                prop_assert_eq!(&few, if part == Part::Branch { &below } else { &rest });
                prop_assert!(few.len() <= below.len().min(rest.len()) + 1);
                let rest = [&[0], &rest[..]].concat();
                parents[branch] = rest[to.index(rest.len())];
                tours.hang(branch as u32, parents[branch] as u32);
            }
        }
    }
}
