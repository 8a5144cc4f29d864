//! Events, the ways between them that could take more flow, and how much time is left on each.

use super::drift::Drift;
use super::flow::{Flow, Way};
use crate::relaxation::events::Events;

pub(super) struct Residual {
    /// The ways from event `v` are `ways[starts[v]..starts[v + 1]]`, each with its head.
    starts: Vec<u32>,
    ways: Vec<(Way, u32)>,
    pub(super) flow: Flow,
    pub(super) drift: Drift,
}

impl Residual {
    pub(super) fn new(events: &Events, flow: Flow, drift: Drift) -> Self {
        let mut starts = vec![0_u32; events.count + 1];
        for arc in &events.arcs {
            starts[arc.tail as usize + 1] += 1;
            starts[arc.head as usize + 1] += 1;
        }
        for event in 0..events.count {
            starts[event + 1] += starts[event];
        }
        let mut next = starts.clone();
        let mut ways = vec![(Way::along(0), 0); 2 * events.arcs.len()];
        for (index, arc) in events.arcs.iter().enumerate() {
            for (tail, way, head) in
                [(arc.tail, Way::along(index), arc.head), (arc.head, Way::against(index), arc.tail)]
            {
                let place = &mut next[tail as usize];
                ways[*place as usize] = (way, head);
                *place += 1;
            }
        }
        Self { starts, ways, flow, drift }
    }

    /// All ways from an event.
    pub(super) fn ways(&self, event: u32) -> &[(Way, u32)] {
        let event = event as usize;
        &self.ways[self.starts[event] as usize..self.starts[event + 1] as usize]
    }

    /// How long the step takes (ns) when a way from an event that rests to one that is pulled will
    /// have no time left.
    pub(super) fn contact(&self, resting: u32, way: Way, pulled: u32) -> i64 {
        let left = self.drift.at(pulled) - self.drift.at(resting) - self.flow.length(way);
        self.drift.end() - left
    }
}
