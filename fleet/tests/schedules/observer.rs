//! Sees what every node ran at every step, and every report and decision at the moment at which the
//! store takes it. It uses no judgement of the agents.

use std::collections::{BTreeMap, BTreeSet};

use pfo_fleet::{Decision, Late, Proposal, Report};

/// What a node ran at a step: the number that a plan has in this test, or 0 at default clocks.
pub(crate) type Ran = u8;

#[derive(Default)]
pub(crate) struct Observer {
    /// By node, and then by step.
    pub(crate) ran: Vec<Vec<Ran>>,
    proposals: BTreeMap<u64, (Proposal, Ran)>,
    decisions: BTreeMap<u64, Decision>,
    lates: BTreeMap<usize, Vec<Late>>,
    /// Nodes and steps that ran at default clocks because `pfod` was killed.
    without_pfod: BTreeSet<(usize, u64)>,
}

impl Observer {
    pub(crate) fn of(nodes: usize) -> Self {
        Self { ran: vec![Vec::new(); nodes], ..Self::default() }
    }

    pub(crate) fn proposal(&mut self, number: u64, proposal: &Proposal, ran: Ran) {
        self.proposals.insert(number, (proposal.clone(), ran));
    }

    pub(crate) fn decision(&mut self, number: u64, decision: &Decision) {
        self.decisions.insert(number, decision.clone());
    }

    pub(crate) fn report(&mut self, node: usize, report: &Report) {
        self.lates.entry(node).or_default().extend(report.late.clone());
    }

    /// A node begins its next step.
    pub(crate) fn step(&mut self, node: usize, (ran, is_excused): (Ran, bool)) {
        if is_excused {
            self.without_pfod.insert((node, self.ran[node].len() as u64));
        }
        self.ran[node].push(ran);
    }

    pub(crate) fn has_late(&self) -> bool {
        self.lates.values().any(|lates| !lates.is_empty())
    }

    /// The committed swaps that took place, or will: the step, and what runs from it on. One whose step had
    /// yet to come may have been replaced by another one.
    pub(crate) fn committed(&self) -> Vec<(u64, Ran)> {
        let mut in_place: Vec<(u64, Ran)> = Vec::new();
        for (step, ran) in self.ever_committed() {
            in_place.retain(|(replaced, _)| *replaced < step);
            in_place.push((step, ran));
        }
        in_place
    }

    /// All of them, in their order.
    fn ever_committed(&self) -> Vec<(u64, Ran)> {
        let committed = self.decisions.iter().filter(|(_, made)| **made == Decision::Commit);
        committed
            .filter_map(|(number, _)| self.proposals.get(number))
            .map(|(proposal, ran)| (proposal.step, *ran))
            .collect()
    }

    /// Whether a node may run something else at a step.
    fn is_excused(&self, node: usize, step: u64) -> bool {
        self.without_pfod.contains(&(node, step)) || self.is_reported_late(node, step)
    }

    fn is_reported_late(&self, node: usize, step: u64) -> bool {
        let covers = |late: &Late| late.from <= step && late.until.is_none_or(|until| step < until);
        self.lates.get(&node).is_some_and(|lates| lates.iter().any(covers))
    }

    /// # Errors
    /// If nodes ran what they must not.
    pub(crate) fn judge(&self) -> Result<(), String> {
        let (committed, ever) = (self.committed(), self.ever_committed());
        for (node, steps) in self.ran.iter().enumerate() {
            for (step, ran) in steps.iter().enumerate() {
                let step = step as u64;
                let due = committed.iter().rfind(|(from, _)| *from <= step);
                let due = due.map_or(0, |(_, run)| *run);
                if *ran != 0 && !ever.iter().any(|(from, run)| *from <= step && run == ran) {
                    return Err(format!(
                        "node {node} ran {ran} at step {step}, which was not committed"
                    ));
                }
                if *ran != due && !self.is_excused(node, step) {
                    return Err(format!(
                        "node {node} ran {ran} at step {step}, not {due}, and is not reported late"
                    ));
                }
            }
        }
        self.compare_nodes()
    }

    fn compare_nodes(&self) -> Result<(), String> {
        let steps = self.ran.iter().map(Vec::len).min().unwrap_or(0);
        for step in 0..steps {
            let on_time = |node: &usize| !self.is_excused(*node, step as u64);
            let mut ran = (0..self.ran.len()).filter(on_time).map(|node| self.ran[node][step]);
            let first = ran.next();
            if let Some(other) = ran.find(|ran| Some(*ran) != first) {
                return Err(format!(
                    "at step {step} nodes ran {first:?} and {other}, none reported late"
                ));
            }
        }
        Ok(())
    }
}
