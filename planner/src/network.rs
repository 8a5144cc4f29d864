//! The operations of a step and which of them wait for which.
//!
//! Built as a `petgraph` graph, which finds deadlocks, and kept as flat arrays in an order in which
//! every operation comes after those it waits for: planning walks them a million times.

use std::collections::HashMap;

use petgraph::algo::toposort;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::delays::Delays;
use crate::error::PlanError;
use crate::instruction::Instruction;
use crate::profile::Measurement;
use crate::schedule::StageOrder;
use crate::unit::{Chunk, Unit};
use crate::units::{Mhz, Microbatch, Stage};

/// One instruction of a step, or a transfer between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// Of a transfer, the one that waits for it.
    pub(crate) stage: Stage,
    pub(crate) instruction: Instruction,
    pub(crate) chunk: Chunk,
    pub(crate) microbatch: Microbatch,
    /// A transfer takes time but no stage runs it and no plan has a clock for it.
    pub(crate) is_transfer: bool,
}

impl Operation {
    pub(crate) fn unit(&self) -> Unit {
        Unit { instruction: self.instruction, microbatch: self.microbatch, chunk: self.chunk }
    }
}

/// The operations of a step in topological order.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) operations: Vec<Operation>,
    /// For each operation the one before it on its stage and the one whose product it needs;
    /// `operations.len()` stands for none.
    pub(crate) predecessors: Vec<[u32; 2]>,
    /// For each operation those that have it as a predecessor; padded as `predecessors` is.
    pub(crate) successors: Vec<[u32; 2]>,
    /// For each stage its operations in the order in which it runs them; no transfers.
    pub(crate) stages: Vec<Vec<u32>>,
    /// There are no transfers if they take no time.
    pub(crate) delays: Delays,
}

impl Network {
    /// The operations of stages that run these orders.
    ///
    /// # Errors
    /// [`PlanError::Deadlock`] if stages would wait for each other, or for something never made.
    pub(crate) fn new(orders: &[StageOrder], delays: Delays) -> Result<Self, PlanError> {
        let graph = graph(orders, delays.transfer_time_s > 0.0)?;
        let sorted = toposort(&graph, None).map_err(|cycle| deadlock(graph[cycle.node_id()]))?;

        // By depth, so that what runs at the same time lies together in memory.
        let mut depth = vec![0_u32; graph.node_count()];
        for &node in &sorted {
            depth[node.index()] = graph
                .neighbors_directed(node, petgraph::Incoming)
                .map(|p| depth[p.index()] + 1)
                .max()
                .unwrap_or(0);
        }
        let mut by_depth = sorted;
        by_depth.sort_by_key(|node| (depth[node.index()], graph[*node].stage));

        let none = by_depth.len() as u32;
        let mut rank = vec![none; by_depth.len()];
        for (index, node) in (0..).zip(&by_depth) {
            rank[node.index()] = index;
        }
        let neighbours = |node: &NodeIndex, direction| {
            let mut found = [none; 2];
            for (place, node) in found.iter_mut().zip(graph.neighbors_directed(*node, direction)) {
                *place = rank[node.index()];
            }
            found
        };
        let mut next = rank.iter();
        let stages =
            orders.iter().map(|order| next.by_ref().take(order.len()).copied().collect()).collect();
        Ok(Self {
            operations: by_depth.iter().map(|node| graph[*node]).collect(),
            predecessors: by_depth.iter().map(|n| neighbours(n, petgraph::Incoming)).collect(),
            successors: by_depth.iter().map(|n| neighbours(n, petgraph::Outgoing)).collect(),
            stages,
            delays,
        })
    }

    /// The number of operations, transfers included.
    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    /// The number of operations that stages run.
    pub(crate) fn num_instructions(&self) -> usize {
        self.stages.iter().map(Vec::len).sum()
    }

    /// What each operation takes, as far as no plan has a say in it: that is, transfers.
    pub(crate) fn transfers(&self) -> Vec<Option<Measurement>> {
        self.operations.iter().map(|op| op.is_transfer.then_some(self.transfer())).collect()
    }

    /// What a transfer takes.
    pub(crate) fn transfer(&self) -> Measurement {
        let time_s = self.delays.transfer_time_s;
        Measurement { frequency: Mhz(0), time_s, energy_j: 0.0 }
    }

    /// When an operation can start, given when those before it end; `end_s` has a 0 behind its last.
    pub(crate) fn start_s(&self, operation: usize, end_s: &[f64]) -> f64 {
        let [a, b] = self.predecessors[operation];
        f64::max(end_s[a as usize], end_s[b as usize])
    }

    /// When the last operation ends if each starts as soon as it can, in seconds.
    pub(crate) fn makespan(&self, time_s: impl Fn(usize) -> f64) -> f64 {
        let mut finish = vec![0.0; self.len() + 1];
        let mut last = 0.0_f64;
        for index in 0..self.len() {
            finish[index] = self.start_s(index, &finish) + time_s(index);
            last = last.max(finish[index]);
        }
        last
    }
}

/// One node per operation, stage by stage, then the transfers; one edge from each to those that
/// wait for it.
///
/// A node has at most two edges in and two out: its neighbour on the stage, and one product, which
/// has one consumer elsewhere. A product of the own stage needs no edge if the order has it earlier.
fn graph(orders: &[StageOrder], has_transfers: bool) -> Result<DiGraph<Operation, ()>, PlanError> {
    let mut graph = DiGraph::new();
    let mut producers = HashMap::new();
    let num_stages = orders.len() as u16;
    let mut num_chunks = 1;
    for (stage, order) in (0..num_stages).map(Stage).zip(orders) {
        let mut before = None;
        for &Unit { instruction, microbatch, chunk } in order {
            let operation = Operation { stage, instruction, chunk, microbatch, is_transfer: false };
            num_chunks = num_chunks.max(chunk.0.saturating_add(1));
            let node = graph.add_node(operation);
            if let Some(product) = instruction.product() {
                producers.insert((stage, chunk, product, microbatch), node);
            }
            if let Some(before) = before.replace(node) {
                graph.add_edge(before, node, ());
            }
        }
    }
    for node in graph.node_indices() {
        let Operation { stage, instruction, chunk, microbatch, .. } = graph[node];
        let Some((from, from_chunk, product)) =
            instruction.input((stage, chunk), num_stages, num_chunks)
        else {
            continue;
        };
        let Some(&producer) = producers.get(&(from, from_chunk, product, microbatch)) else {
            return Err(deadlock(graph[node]));
        };
        if from == stage {
            if producer >= node {
                return Err(deadlock(graph[node]));
            }
        } else if has_transfers {
            let transfer = graph.add_node(Operation {
                stage,
                instruction: Instruction::P2p,
                chunk,
                microbatch,
                is_transfer: true,
            });
            graph.add_edge(producer, transfer, ());
            graph.add_edge(transfer, node, ());
        } else {
            graph.add_edge(producer, node, ());
        }
    }
    Ok(graph)
}

fn deadlock(operation: Operation) -> PlanError {
    let Operation { stage, instruction, microbatch, .. } = operation;
    PlanError::Deadlock { stage, instruction, microbatch }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::one_forward_one_backward;

    fn one_f_one_b(num_stages: u16, num_microbatches: u32) -> Vec<StageOrder> {
        let order = |s| one_forward_one_backward::order(Stage(s), num_stages, num_microbatches);
        (0..num_stages).map(order).collect()
    }

    #[test]
    fn every_operation_comes_after_those_it_waits_for() {
        let network = Network::new(&one_f_one_b(4, 8), Delays::default()).unwrap();
        assert_eq!(network.len(), 64);
        for (index, before) in network.predecessors.iter().enumerate() {
            for &before in before.iter().filter(|&&p| p < 64) {
                assert!((before as usize) < index);
                assert!(network.successors[before as usize].contains(&(index as u32)));
            }
        }
    }

    #[test]
    fn stages_keep_their_order() {
        let orders = one_f_one_b(3, 4);
        let network = Network::new(&orders, Delays::default()).unwrap();
        for (stage, order) in network.stages.iter().zip(&orders) {
            let kept = stage.iter().map(|&i| network.operations[i as usize]);
            let kept: StageOrder =
                kept.map(|op| Unit::new(op.instruction, op.microbatch.0)).collect();
            assert_eq!(&kept, order);
        }
    }

    #[test]
    fn equal_instructions_take_the_well_known_time_of_1f1b() {
        // (M + N - 1) slots of one forward and one backward.
        let network = Network::new(&one_f_one_b(4, 8), Delays::default()).unwrap();
        let time = |index: usize| match network.operations[index].instruction {
            Instruction::Forward => 1.0,
            _ => 2.0,
        };
        assert_eq!(network.makespan(time), 11.0 * 3.0);
    }

    #[test]
    fn a_transfer_delays_every_product_that_crosses_stages_and_no_other() {
        let network =
            Network::new(&one_f_one_b(4, 1), Delays { transfer_time_s: 0.5, ..Delays::default() })
                .unwrap();
        assert_eq!((network.len(), network.num_instructions()), (8 + 6, 8));
        let time =
            |index: usize| network.transfers()[index].map_or(1.0, |transfer| transfer.time_s);
        assert_eq!(network.makespan(time), 8.0 + 6.0 * 0.5);
    }

    #[test]
    fn stages_that_wait_for_each_other_are_refused_by_name() {
        let mut orders = one_f_one_b(2, 2);
        orders[1].reverse();
        let message = Network::new(&orders, Delays::default()).unwrap_err().to_string();
        assert!(message.contains("deadlock") && message.contains("microbatch"), "{message}");
    }

    #[test]
    fn a_product_that_nobody_makes_is_a_deadlock() {
        let mut orders = one_f_one_b(2, 1);
        orders[0].remove(0);
        let message = Network::new(&orders, Delays::default()).unwrap_err().to_string();
        assert!(message.contains("stage 1") && message.contains("forward"), "{message}");
    }
}
