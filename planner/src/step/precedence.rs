//! The graph of a step: an edge leads from each operation to those that wait for it.
//!
//! No operation has more than two edges in or two out, to its neighbour on the stage and to one
//! other, because planning walks them a million times. Junctions, which take no time, stand where
//! one operation waits for several or several for one.

use std::collections::{HashMap, HashSet};

use petgraph::Incoming;
use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use pfo_vocabulary::{Chunk, Instruction, Microbatch, Stage};

use crate::error::PlanError;
use crate::step::dependencies::StageUnit;
use crate::step::flow::{Flow, Product};
use crate::step::operation::{Operation, Role};
use crate::step::order::Order;
use crate::step::placement::Placement;

pub(crate) type Precedence = DiGraph<Operation, ()>;

/// One node per instruction, stage by stage, then transfers and junctions.
///
/// # Errors
/// [`PlanError::Deadlock`] if an operation waits for something that is never produced or that comes
/// later on its stage. Other cycles stay in the graph.
pub(crate) fn precedence(order: &Order, has_transfers: bool) -> Result<Precedence, PlanError> {
    let mut graph = chains(order);
    let mut links = Vec::new();
    for (later, earlier) in awaited(&graph, order)? {
        link_into(&mut graph, later, &earlier, has_transfers, &mut links);
    }
    fan_out(&mut graph, links);
    Ok(graph)
}

/// What crosses stages: each instruction that waits for others of other stages, with those.
///
/// # Errors
/// Those of [`precedence`].
pub(crate) fn hand_overs(order: &Order) -> Result<Vec<(StageUnit, Vec<StageUnit>)>, PlanError> {
    let graph = chains(order);
    let unit = |node: &NodeIndex| graph[*node].stage_unit();
    let awaited = awaited(&graph, order)?.into_iter();
    Ok(awaited.map(|(later, earlier)| (unit(&later), earlier.iter().map(unit).collect())).collect())
}

/// The instructions of each stage, one after the other.
fn chains(order: &Order) -> Precedence {
    let mut graph = Precedence::new();
    for (stage, units) in (0..).map(Stage).zip(&order.stages) {
        let mut before = None;
        for &unit in units {
            let forward = order.overlapped(stage, unit);
            let node = graph.add_node(Operation::run(stage, unit, forward));
            if let Some(before) = before.replace(node) {
                graph.add_edge(before, node, ());
            }
        }
    }
    graph
}

/// A product of a microbatch, and the stage and chunk that make it.
type Made = (Stage, Chunk, Product, Microbatch);

/// What waits by the rule, and what makes it.
struct Rule {
    placement: Placement,
    num_stages: u16,
    num_chunks: u16,
    producers: HashMap<Made, NodeIndex>,
}

impl Rule {
    fn new(graph: &Precedence, order: &Order) -> Self {
        let mut producers = HashMap::new();
        let mut num_chunks = 1;
        for node in graph.node_indices() {
            for (instruction, stage, chunk, microbatch) in parts(&graph[node]) {
                num_chunks = num_chunks.max(chunk.0.saturating_add(1));
                if let Some(product) = instruction.product() {
                    producers.insert((stage, chunk, product, microbatch), node);
                }
            }
        }
        let num_stages = order.stages.len() as u16;
        Self { placement: order.placement, num_stages, num_chunks, producers }
    }

    fn is_made(&self, (stage, chunk, product): (Stage, Chunk, Product), of: Microbatch) -> bool {
        self.producers.contains_key(&(stage, chunk, product, of))
    }

    /// The nodes that an operation waits for.
    fn awaited(&self, operation: &Operation) -> Result<Vec<NodeIndex>, PlanError> {
        let mut awaited = Vec::new();
        for (instruction, stage, chunk, microbatch) in parts(operation) {
            let input = |instruction: Instruction| {
                instruction.input((stage, chunk), self.placement, self.num_stages, self.num_chunks)
            };
            let own = (stage, chunk, Product::Activation);
            let inputs = match instruction {
                // It is both passes of its microbatch.
                Instruction::ForwardBackward if !self.is_made(own, microbatch) => {
                    [input(Instruction::Forward), input(instruction).filter(|input| *input != own)]
                }
                _ => [input(instruction), None],
            };
            for input in inputs.into_iter().flatten() {
                let (from, chunk, product) = input;
                let made = self.producers.get(&(from, chunk, product, microbatch));
                awaited.push(*made.ok_or_else(|| never_made(operation, input))?);
            }
        }
        awaited.dedup();
        Ok(awaited)
    }
}

/// The instruction of an operation, or both that it runs.
fn parts(
    operation: &Operation,
) -> impl Iterator<Item = (Instruction, Stage, Chunk, Microbatch)> + use<> {
    let Operation { stage, instruction, chunk, microbatch, forward, .. } = *operation;
    let forward = forward.map(|of| (Instruction::Forward, stage, of.chunk, of.microbatch));
    [Some((instruction, stage, chunk, microbatch)), forward].into_iter().flatten()
}

/// Each instruction that waits for others of other stages, with those.
fn awaited(
    graph: &Precedence,
    order: &Order,
) -> Result<Vec<(NodeIndex, Vec<NodeIndex>)>, PlanError> {
    let dependencies = order.dependencies.iter();
    let said: HashMap<StageUnit, &[StageUnit]> =
        dependencies.map(|said| (said.of, said.after.as_slice())).collect();
    let mut nodes = HashMap::new();
    if !said.is_empty() {
        nodes.extend(graph.node_indices().map(|node| (graph[node].stage_unit(), node)));
    }
    let rule = Rule::new(graph, order);

    let mut awaited = Vec::new();
    for later in graph.node_indices() {
        let operation = &graph[later];
        let earlier: Vec<NodeIndex> = match said.get(&operation.stage_unit()) {
            // That all of them are run is checked before.
            Some(after) => after.iter().filter_map(|unit| nodes.get(unit)).copied().collect(),
            None => rule.awaited(operation)?,
        };
        let of_own = |earlier: &NodeIndex| graph[*earlier].stage == operation.stage;
        if let Some(&own) = earlier.iter().find(|node| of_own(node) && **node >= later) {
            let awaited = format!("{}, which comes later on it", graph[own].unit());
            return Err(PlanError::Deadlock { waiting: operation.stage_unit(), awaited });
        }
        // Earlier instructions of the same stage are waited for anyway.
        let of_others: Vec<NodeIndex> = earlier.into_iter().filter(|node| !of_own(node)).collect();
        if !of_others.is_empty() {
            awaited.push((later, of_others));
        }
    }
    Ok(awaited)
}

fn never_made(waiting: &Operation, (from, chunk, product): (Stage, Chunk, Product)) -> PlanError {
    let product = match product {
        Product::Activation => "activation",
        Product::Gradient => "gradient",
    };
    let of = if chunk.is_first() { String::new() } else { format!(" (chunk {chunk})") };
    let awaited = format!("the {product} from stage {from}{of}, which is never made");
    PlanError::Deadlock { waiting: waiting.stage_unit(), awaited }
}

/// Adds links from what `later` waits for to `later`, with a transfer in each; junctions join them
/// into one.
fn link_into(
    graph: &mut Precedence,
    later: NodeIndex,
    earlier: &[NodeIndex],
    has_transfers: bool,
    links: &mut Vec<(NodeIndex, NodeIndex)>,
) {
    let waiting = graph[later];
    let mut joined = None;
    for &earlier in earlier {
        let mut arriving = earlier;
        if has_transfers {
            let instruction = Instruction::P2p;
            arriving = graph.add_node(Operation { role: Role::Transfer, instruction, ..waiting });
            links.push((earlier, arriving));
        }
        if let Some(before) = joined {
            let junction = graph.add_node(Operation { role: Role::Junction, ..waiting });
            links.extend([(before, junction), (arriving, junction)]);
            arriving = junction;
        }
        joined = Some(arriving);
    }
    links.extend(joined.map(|joined| (joined, later)));
}

/// Makes links edges, with junctions where several begin at the same operation.
fn fan_out(graph: &mut Precedence, mut links: Vec<(NodeIndex, NodeIndex)>) {
    links.sort_by_key(|&(from, _)| from);
    for links in links.chunk_by(|a, b| a.0 == b.0) {
        let mut from = links[0].0;
        let handing_on = graph[from];
        for (place, &(_, to)) in links.iter().enumerate() {
            if place + 1 < links.len() {
                let junction = graph.add_node(Operation { role: Role::Junction, ..handing_on });
                graph.add_edge(from, junction, ());
                from = junction;
            }
            graph.add_edge(from, to, ());
        }
    }
}

/// The error for a cycle, with two of its operations that wait for each other.
pub(crate) fn deadlock(graph: &Precedence, on_cycle: NodeIndex) -> PlanError {
    let cycle = kosaraju_scc(graph).into_iter().find(|nodes| nodes.contains(&on_cycle));
    let cycle: HashSet<NodeIndex> = cycle.into_iter().flatten().collect();
    let back = std::iter::successors(Some(on_cycle), |&node| {
        graph.neighbors_directed(node, Incoming).find(|before| cycle.contains(before))
    });
    // The order of one stage is not a cycle, so the way back leads to another stage.
    let run = back.map(|node| graph[node]).filter(Operation::is_run).take(cycle.len() + 1);
    let run: Vec<Operation> = run.collect();
    let crossing = run.windows(2).find(|pair| pair[0].stage != pair[1].stage);
    let waiting = crossing.map_or(graph[on_cycle], |pair| pair[0]).stage_unit();
    let awaited = crossing.map_or(waiting, |pair| pair[1].stage_unit());
    PlanError::Deadlock { waiting, awaited: format!("{awaited}, which waits for it in turn") }
}

#[cfg(test)]
mod tests {
    use petgraph::Outgoing;

    use super::*;
    use crate::schedule::one_forward_one_backward;
    use crate::step::dependencies::Dependency;
    use crate::step::order::StageOrder;
    use pfo_vocabulary::Unit;

    fn one_f_one_b(num_stages: u16, num_microbatches: u32) -> Vec<StageOrder> {
        let order = |s| one_forward_one_backward::order(Stage(s), num_stages, num_microbatches);
        (0..num_stages).map(order).collect()
    }

    fn on(stage: u16, instruction: Instruction, microbatch: u32) -> StageUnit {
        StageUnit::new(Stage(stage), Unit::new(instruction, microbatch))
    }

    fn with(stages: &[StageOrder], dependencies: &[Dependency]) -> Order {
        let dependencies = dependencies.to_vec();
        Order { dependencies, ..Order::plain(stages.to_vec(), 1, Placement::Loop) }
    }

    fn refused(orders: &[StageOrder], dependencies: &[Dependency]) -> String {
        let graph = match precedence(&with(orders, dependencies), false) {
            Ok(graph) => graph,
            Err(error) => return error.to_string(),
        };
        let cycle = petgraph::algo::toposort(&graph, None).unwrap_err();
        deadlock(&graph, cycle.node_id()).to_string()
    }

    #[test]
    fn no_operation_has_more_than_two_before_or_after_it_however_many_are_said() {
        use Instruction::{Backward, Forward};
        let everything_on_0: Vec<StageUnit> = (0..4).map(|m| on(0, Forward, m)).collect();
        let said = [Forward, Backward].map(|instruction| Dependency {
            of: on(1, instruction, 3),
            after: everything_on_0.clone(),
        });
        for has_transfers in [false, true] {
            let graph = precedence(&with(&one_f_one_b(2, 4), &said), has_transfers).unwrap();
            for node in graph.node_indices() {
                for direction in [Incoming, Outgoing] {
                    assert!(graph.neighbors_directed(node, direction).count() <= 2);
                }
            }
        }
    }

    #[test]
    fn what_is_said_takes_the_place_of_the_rule() {
        let orders = one_f_one_b(2, 1);
        let links = |dependencies: &[Dependency]| {
            let graph = precedence(&with(&orders, dependencies), false).unwrap();
            let of_stages = graph.edge_indices().map(|edge| graph.edge_endpoints(edge).unwrap());
            of_stages.filter(|&(from, to)| graph[from].stage != graph[to].stage).count()
        };
        assert_eq!(links(&[]), 2);
        let freed = Dependency { of: on(1, Instruction::Forward, 0), after: Vec::new() };
        assert_eq!(links(&[freed]), 1);
    }

    #[test]
    fn a_cycle_is_reported_by_two_of_it_on_different_stages() {
        // The first stage wants a gradient before it runs what the second one runs before that.
        let mut orders = one_f_one_b(2, 2);
        orders[0].swap(1, 2);
        orders[1].swap(1, 2);
        let message = refused(&orders, &[]);
        assert!(
            message.contains("deadlock") && message.contains("waits for it in turn"),
            "{message}"
        );
        assert!(message.contains("on stage 0") && message.contains("on stage 1"), "{message}");

        let mutual = Dependency {
            of: on(0, Instruction::Forward, 0),
            after: vec![on(1, Instruction::Forward, 0)],
        };
        let message = refused(&one_f_one_b(2, 1), &[mutual]);
        assert!(message.contains("forward of microbatch 0 on stage 1"), "{message}");
    }

    #[test]
    fn what_its_own_stage_runs_later_is_no_wait_that_ends() {
        let backwards = Dependency {
            of: on(0, Instruction::Forward, 0),
            after: vec![on(0, Instruction::Backward, 1)],
        };
        let message = refused(&one_f_one_b(2, 2), &[backwards]);
        assert!(
            message.contains("forward of microbatch 0 on stage 0 waits for backward"),
            "{message}"
        );
        assert!(message.contains("later"), "{message}");
    }

    #[test]
    fn a_product_that_is_never_made_is_a_deadlock() {
        let mut orders = one_f_one_b(2, 1);
        orders[0].remove(0);
        let message = refused(&orders, &[]);
        assert!(message.contains("forward of microbatch 0 on stage 1"), "{message}");
        assert!(message.contains("activation from stage 0, which is never made"), "{message}");
    }
}
