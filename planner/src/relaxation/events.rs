//! The step in the form of the time-cost tradeoff problem: events and the arcs between them.
//!
//! Each operation is an arc from its start to its end; a precedence is an arc of no length.
//! Most precedences can be contracted away, which leaves about half the events.

use std::collections::HashSet;

use petgraph::Incoming;
use petgraph::graph::DiGraph;
use petgraph::unionfind::UnionFind;
use petgraph::visit::Topo;

use crate::step::network::Network;

/// From one event to a later one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arc {
    pub(crate) tail: u32,
    pub(crate) head: u32,
    /// The operation that takes the time in between; none for a mere precedence.
    pub(crate) operation: Option<u32>,
}

/// Events and arcs, events numbered so that every arc leads to a higher one.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    pub(crate) count: usize,
    pub(crate) arcs: Vec<Arc>,
    /// For each operation, the event of its start and that of its end.
    pub(crate) spans: Vec<(u32, u32)>,
}

impl Events {
    /// The event at which a step begins.
    pub(crate) const SOURCE: u32 = 0;

    pub(crate) fn new(network: &Network) -> Self {
        // Operation i starts at event 2i + 1 and ends at 2i + 2.
        let n = network.len() as u32;
        let sink = 2 * n + 1;
        let start_of = |operation: u32| 2 * operation + 1;
        let mut spans: Vec<(u32, u32)> = (0..n).map(|i| (start_of(i), start_of(i) + 1)).collect();
        let mut precedences = Vec::new();
        for (index, &(start, end)) in spans.iter().enumerate() {
            let before = network.predecessors[index];
            if before == [n; 2] {
                precedences.push((Self::SOURCE, start));
            }
            let after = network.successors[index];
            if after == [n; 2] {
                precedences.push((end, sink));
            }
            precedences.extend(after.iter().filter(|&&i| i < n).map(|&i| (end, start_of(i))));
        }
        while contract(sink as usize + 1, &mut spans, &mut precedences) {}
        Self::numbered(sink as usize + 1, spans, &precedences)
    }

    /// The event at which a step has ended.
    pub(crate) fn sink(&self) -> u32 {
        self.count as u32 - 1
    }

    /// Leaves out unused events and numbers the others by depth, so that what happens at the same
    /// time lies together in memory.
    fn numbered(events: usize, mut spans: Vec<(u32, u32)>, precedences: &[(u32, u32)]) -> Self {
        let operations = (0..).zip(&spans).map(|(i, &span)| (span, Some(i)));
        let rest = precedences.iter().map(|&span| (span, None));
        let mut arcs: Vec<Arc> = operations
            .chain(rest)
            .map(|((tail, head), operation)| Arc { tail, head, operation })
            .collect();

        let graph = DiGraph::<(), ()>::from_edges(arcs.iter().map(|arc| (arc.tail, arc.head)));
        let mut depth = vec![0_u32; events];
        let mut by_depth = Vec::new();
        let mut walk = Topo::new(&graph);
        while let Some(event) = walk.next(&graph) {
            let before = graph.neighbors_directed(event, Incoming);
            if let Some(deepest) = before.map(|before| depth[before.index()]).max() {
                depth[event.index()] = deepest + 1;
            }
            if graph.neighbors_undirected(event).next().is_some() {
                by_depth.push(event.index() as u32);
            }
        }
        by_depth.sort_by_key(|&event| (depth[event as usize], event));
        let mut number = vec![0; events];
        for (index, &event) in (0..).zip(&by_depth) {
            number[event as usize] = index;
        }
        for arc in &mut arcs {
            (arc.tail, arc.head) = (number[arc.tail as usize], number[arc.head as usize]);
        }
        for span in &mut spans {
            *span = (number[span.0 as usize], number[span.1 as usize]);
        }
        arcs.sort_by_key(|arc| (arc.head, arc.tail));
        Self { count: by_depth.len(), arcs, spans }
    }
}

/// One round of contraction: merges the ends of precedences that are the only way into their head
/// or out of their tail, and drops those that say nothing new. False once there is nothing left.
fn contract(events: usize, spans: &mut [(u32, u32)], precedences: &mut Vec<(u32, u32)>) -> bool {
    let mut into = vec![0_u32; events];
    let mut out_of = vec![0_u32; events];
    for &(tail, head) in spans.iter().chain(precedences.iter()) {
        out_of[tail as usize] += 1;
        into[head as usize] += 1;
    }
    // One merger per event and round: after it, the counts no longer hold.
    let mut merged = vec![false; events];
    let mut same = UnionFind::new(events);
    let mut any = false;
    for &(tail, head) in &*precedences {
        let free = !merged[tail as usize] && !merged[head as usize];
        if free && (into[head as usize] == 1 || out_of[tail as usize] == 1) {
            merged[tail as usize] = true;
            merged[head as usize] = true;
            any = same.union(tail, head);
        }
    }
    if !any {
        return false;
    }
    let renamed = |span: &(u32, u32)| (same.find(span.0), same.find(span.1));
    for span in spans.iter_mut() {
        *span = renamed(span);
    }
    let mut known: HashSet<(u32, u32)> = spans.iter().copied().collect();
    *precedences = precedences
        .iter()
        .map(renamed)
        .filter(|&(tail, head)| tail != head && known.insert((tail, head)))
        .collect();
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::one_forward_one_backward;
    use crate::step::delays::Delays;
    use crate::step::order::StageOrder;
    use pfo_vocabulary::{Instruction, Stage};

    fn network(num_stages: u16, num_microbatches: u32) -> Network {
        let orders: Vec<StageOrder> = (0..num_stages)
            .map(|s| one_forward_one_backward::order(Stage(s), num_stages, num_microbatches))
            .collect();
        Network::new(&orders, Delays::default()).unwrap()
    }

    #[test]
    fn arcs_lead_upwards_from_one_source_to_one_sink() {
        let events = Events::new(&network(4, 6));
        let mut has_in = vec![false; events.count];
        let mut has_out = vec![false; events.count];
        for arc in &events.arcs {
            assert!(arc.tail < arc.head);
            has_in[arc.head as usize] = true;
            has_out[arc.tail as usize] = true;
        }
        assert_eq!(has_in.iter().position(|&x| !x), Some(Events::SOURCE as usize));
        assert_eq!(has_in.iter().filter(|&&x| !x).count(), 1);
        assert_eq!(has_out.iter().position(|&x| !x), Some(events.sink() as usize));
        assert_eq!(has_out.iter().filter(|&&x| !x).count(), 1);
    }

    #[test]
    fn contraction_changes_no_length_of_any_step() {
        let network = network(4, 6);
        let events = Events::new(&network);
        for seed in 1..20_u32 {
            let length = |operation: usize| match network.operations[operation].instruction {
                Instruction::Forward => 1.0 + f64::from(seed * operation as u32 % 7),
                _ => 2.0 + f64::from(seed * operation as u32 % 11),
            };
            let mut at = vec![0.0; events.count];
            for arc in &events.arcs {
                let length = arc.operation.map_or(0.0, |operation| length(operation as usize));
                at[arc.head as usize] =
                    f64::max(at[arc.head as usize], at[arc.tail as usize] + length);
            }
            assert_eq!(at[events.sink() as usize], network.makespan(length));
        }
    }

    #[test]
    fn contraction_leaves_less_than_two_events_per_operation() {
        let events = Events::new(&network(8, 24));
        assert!(events.count < 800, "{}", events.count);
    }
}
