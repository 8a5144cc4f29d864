//! The residual graph: events, the ways between them, and the time that is left on each way.

use super::event_times::EventTimes;
use super::flow::{Flow, Way};
use crate::relaxation::events::Events;

pub(super) struct Residual {
    /// The ways from event `v` are `ways[starts[v]..starts[v + 1]]`, each with its head.
    starts: Vec<u32>,
    ways: Vec<(Way, u32)>,
    pub(super) flow: Flow,
    pub(super) times: EventTimes,
}

impl Residual {
    pub(super) fn new(events: &Events, flow: Flow, times: EventTimes) -> Self {
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
        Self { starts, ways, flow, times }
    }

    /// All ways from an event.
    pub(super) fn ways(&self, event: u32) -> &[(Way, u32)] {
        let event = event as usize;
        &self.ways[self.starts[event] as usize..self.starts[event + 1] as usize]
    }

    /// The length of the step (ns) at which a way from a resting event to a pulled one has no time
    /// left.
    pub(super) fn contact(&self, resting: u32, way: Way, pulled: u32) -> i64 {
        let left = self.times.at(pulled) - self.times.at(resting) - self.flow.length(way);
        self.times.end() - left
    }
}
