//! Whether all is well once the trouble is over.

use pfo_fleet::Told;

use super::{Calm, World};

impl World {
    pub(super) fn has_converged(&self) -> Result<(), String> {
        let committed = self.observer.committed();
        let due = committed.last().map_or(0, |(_, ran)| *ran);
        for (node, steps) in self.observer.ran.iter().enumerate() {
            if steps.last() != Some(&due) {
                return Err(format!("node {node} runs {:?} at the end, not {due}", steps.last()));
            }
        }
        let newest = self.shared.committed().next();
        if let Some((number, _)) = newest.filter(|(_, proposal)| proposal.trial.is_some()) {
            return Err(format!("trial {number} goes on, and nobody runs it"));
        }
        if let Some((number, _)) = newest.filter(|(_, proposal)| proposal.trial.is_none())
            && let Some(silent) = self.shared.reports.values().find(|report| report.shown < number)
        {
            return Err(format!("a node has not shown swap {number}: {silent:?}"));
        }
        if let Some((number, _)) = self.shared.undecided() {
            return Err(format!("swap {number} is not decided"));
        }
        let behind = self.shared.behind();
        if self.shared.members.len() != self.nodes.len() || !behind.is_empty() {
            return Err(format!(
                "at the end {:?} take part, and {behind:?} are behind: {:?}",
                self.shared.members.keys(),
                self.shared.reports
            ));
        }
        if self.calm != Calm::No {
            let done = |told: &&Told| matches!(told, Told::Committed { .. });
            let (done, all) = (self.told.iter().filter(done).count(), self.told.len());
            let is_late = self.observer.has_late() != (self.calm == Calm::Astray);
            if is_late || done != all || all < 2 {
                return Err(format!(
                    "{done} of {all} wishes took place: {:?}",
                    self.shared.reports
                ));
            }
        }
        Ok(())
    }
}
