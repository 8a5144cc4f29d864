//! The operations of a step and which of them wait for which.
//!
//! Built as a `petgraph` graph, which finds deadlocks, and kept as flat arrays in an order in which
//! every operation comes after those it waits for: planning walks them a million times.

use std::collections::HashMap;

use petgraph::algo::toposort;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::error::PlanError;
use crate::instruction::Instruction;
use crate::units::{Microbatch, Stage};

/// What one stage runs, first to last.
pub(crate) type StageOrder = Vec<(Instruction, Microbatch)>;

/// One instruction of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) stage: Stage,
    pub(crate) instruction: Instruction,
    pub(crate) microbatch: Microbatch,
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
    /// For each stage its operations in the order in which it runs them.
    pub(crate) stages: Vec<Vec<u32>>,
}

impl Network {
    /// The operations of stages that run these orders.
    ///
    /// # Errors
    /// [`PlanError::Deadlock`] if stages would wait for each other, or for something never made.
    pub(crate) fn new(orders: &[StageOrder]) -> Result<Self, PlanError> {
        let graph = graph(orders)?;
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
        })
    }

    /// The number of operations.
    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    /// When the last operation ends if each starts as soon as it can, in seconds.
    pub(crate) fn makespan(&self, time_s: impl Fn(usize) -> f64) -> f64 {
        let mut finish = vec![0.0; self.len() + 1];
        let mut last = 0.0_f64;
        for (index, &[a, b]) in self.predecessors.iter().enumerate() {
            finish[index] = f64::max(finish[a as usize], finish[b as usize]) + time_s(index);
            last = last.max(finish[index]);
        }
        last
    }
}

/// One node per operation, stage by stage; one edge from each to those that wait for it.
///
/// A node has at most two edges in and two out: its neighbour on the stage, and one product, which
/// has one consumer elsewhere. A product of the own stage needs no edge if the order has it earlier.
fn graph(orders: &[StageOrder]) -> Result<DiGraph<Operation, ()>, PlanError> {
    let mut graph = DiGraph::new();
    let mut producers = HashMap::new();
    let num_stages = orders.len() as u16;
    for (stage, order) in (0..num_stages).map(Stage).zip(orders) {
        let mut before = None;
        for &(instruction, microbatch) in order {
            let node = graph.add_node(Operation { stage, instruction, microbatch });
            if let Some(product) = instruction.product() {
                producers.insert((stage, product, microbatch), node);
            }
            if let Some(before) = before.replace(node) {
                graph.add_edge(before, node, ());
            }
        }
    }
    for node in graph.node_indices() {
        let Operation { stage, instruction, microbatch } = graph[node];
        let Some((from, product)) = instruction.input(stage, num_stages) else { continue };
        match producers.get(&(from, product, microbatch)) {
            Some(&producer) if from == stage && producer < node => {}
            Some(&producer) => _ = graph.update_edge(producer, node, ()),
            None => return Err(deadlock(graph[node])),
        }
    }
    Ok(graph)
}

fn deadlock(operation: Operation) -> PlanError {
    let Operation { stage, instruction, microbatch } = operation;
    PlanError::Deadlock { stage, instruction, microbatch }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;

    fn one_f_one_b(num_stages: u16, num_microbatches: u32) -> Vec<StageOrder> {
        let schedule = Schedule::OneForwardOneBackward;
        (0..num_stages).map(|s| schedule.order(Stage(s), num_stages, num_microbatches)).collect()
    }

    #[test]
    fn every_operation_comes_after_those_it_waits_for() {
        let network = Network::new(&one_f_one_b(4, 8)).unwrap();
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
        let network = Network::new(&orders).unwrap();
        for (stage, order) in network.stages.iter().zip(&orders) {
            let kept = stage.iter().map(|&i| network.operations[i as usize]);
            let kept: StageOrder = kept.map(|op| (op.instruction, op.microbatch)).collect();
            assert_eq!(&kept, order);
        }
    }

    #[test]
    fn equal_instructions_take_the_well_known_time_of_1f1b() {
        // (M + N - 1) slots of one forward and one backward.
        let network = Network::new(&one_f_one_b(4, 8)).unwrap();
        let time = |index: usize| match network.operations[index].instruction {
            Instruction::Forward => 1.0,
            _ => 2.0,
        };
        assert_eq!(network.makespan(time), 11.0 * 3.0);
    }

    #[test]
    fn stages_that_wait_for_each_other_are_refused_by_name() {
        let mut orders = one_f_one_b(2, 2);
        orders[1].reverse();
        let message = Network::new(&orders).unwrap_err().to_string();
        assert!(message.contains("deadlock") && message.contains("microbatch"), "{message}");
    }

    #[test]
    fn a_product_that_nobody_makes_is_a_deadlock() {
        let mut orders = one_f_one_b(2, 1);
        orders[0].remove(0);
        let message = Network::new(&orders).unwrap_err().to_string();
        assert!(message.contains("stage 1") && message.contains("forward"), "{message}");
    }
}
