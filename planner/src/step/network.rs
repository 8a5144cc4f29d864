//! The operations of a step and their precedence, as flat arrays in topological order.
//!
//! Flat, because planning walks them a million times.

use petgraph::algo::toposort;
use petgraph::graph::NodeIndex;
use pfo_vocabulary::Mhz;

use crate::error::PlanError;
use crate::profile::measurement::Measurement;
use crate::step::delays::Delays;
use crate::step::operation::{Operation, Role};
use crate::step::order::Order;
use crate::step::precedence::{deadlock, precedence};
#[cfg(test)]
use crate::step::{order::StageOrder, placement::Placement};

/// The operations of a step in topological order.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) operations: Vec<Operation>,
    /// For each operation the one before it on its stage and another one that it waits for;
    /// `operations.len()` stands for none.
    pub(crate) predecessors: Vec<[u32; 2]>,
    /// For each operation those that have it as a predecessor; padded as `predecessors` is.
    pub(crate) successors: Vec<[u32; 2]>,
    /// For each stage its operations in the order in which it runs them; instructions only.
    pub(crate) stages: Vec<Vec<u32>>,
    /// If the transfer time is 0, there are no transfers among the operations.
    pub(crate) delays: Delays,
}

impl Network {
    /// The operations of stages that run these instructions and wait by the rule of a loop.
    ///
    /// # Errors
    /// Those of [`Network::of`].
    #[cfg(test)]
    pub(crate) fn new(stages: &[StageOrder], delays: Delays) -> Result<Self, PlanError> {
        Self::of(&Order::plain(stages.to_vec(), 1, Placement::Loop), delays)
    }

    /// The operations of stages that run an order.
    ///
    /// # Errors
    /// [`PlanError::Deadlock`] if stages would wait for each other, or for something that is never
    /// produced.
    pub(crate) fn of(order: &Order, delays: Delays) -> Result<Self, PlanError> {
        let graph = precedence(order, delays.transfer_time_s > 0.0)?;
        let sorted = toposort(&graph, None).map_err(|cycle| deadlock(&graph, cycle.node_id()))?;

        // By depth, so that operations of the same time lie together in memory.
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
        let stages = order
            .stages
            .iter()
            .map(|order| next.by_ref().take(order.len()).copied().collect())
            .collect();
        Ok(Self {
            operations: by_depth.iter().map(|node| graph[*node]).collect(),
            predecessors: by_depth.iter().map(|n| neighbours(n, petgraph::Incoming)).collect(),
            successors: by_depth.iter().map(|n| neighbours(n, petgraph::Outgoing)).collect(),
            stages,
            delays,
        })
    }

    /// The number of operations, transfers and junctions included.
    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    /// The number of operations that a stage runs.
    pub(crate) fn num_instructions(&self) -> usize {
        self.stages.iter().map(Vec::len).sum()
    }

    /// Time and energy of a transfer or junction, which do not depend on the plan.
    pub(crate) fn unplanned(&self, operation: &Operation) -> Option<Measurement> {
        let time_s = match operation.role {
            Role::Instruction => return None,
            Role::Transfer => self.delays.transfer_time_s,
            Role::Junction => 0.0,
        };
        Some(Measurement { frequency: Mhz(0), time_s, energy_j: 0.0 })
    }

    /// [`Network::unplanned`] for each operation.
    pub(crate) fn all_unplanned(&self) -> Vec<Option<Measurement>> {
        self.operations.iter().map(|operation| self.unplanned(operation)).collect()
    }

    /// When an operation can start, given when those before it end; `end_s` has a 0 behind its
    /// last.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::one_forward_one_backward;
    use pfo_vocabulary::{Instruction, Stage, Unit};

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
            |index: usize| network.all_unplanned()[index].map_or(1.0, |transfer| transfer.time_s);
        assert_eq!(network.makespan(time), 8.0 + 6.0 * 0.5);
    }
}
