//! Whether this node can run a proposal, and at its step.

use super::Participant;
use crate::event::{Action, Write};
use crate::swap::Answer;

impl Participant {
    /// Has `pfod` check the newest proposal, once its slices are here.
    pub(super) fn load(&mut self) -> Option<Action> {
        let (number, swap) = self.shared.as_ref()?.undecided()?;
        let known = self.loaded.as_ref().is_some_and(|(loaded, _)| *loaded == number);
        let is_asked = swap.proposal.members.contains(&self.me);
        let has_said = swap.answers.contains_key(&self.me);
        if self.loading
            || known
            || !is_asked
            || has_said
            || !self.lacking(&swap.proposal).is_empty()
        {
            return None;
        }
        self.fresh()?;
        let run = swap.proposal.run.clone();
        self.loading = true;
        Some(Action::Load(number, run))
    }

    /// Answers the newest proposal. A node that has yet to change because of the last one says
    /// nothing, unless the last one begins no earlier than this one, which then takes its place.
    pub(super) fn arm(&mut self) -> Option<Action> {
        let (number, swap) = self.shared.as_ref()?.undecided()?;
        let proposal = &swap.proposal;
        if !proposal.members.contains(&self.me) || swap.answers.contains_key(&self.me) {
            return None;
        }
        let seen = self.fresh()?;
        let fits =
            self.loaded.as_ref().filter(|(loaded, _)| *loaded == number).map(|(_, fits)| fits);
        let answer = match (seen.next_step, fits) {
            (Some(next), _) if next >= proposal.step => Answer::TooLate(next),
            (None, _) => Answer::Veto("a rank has begun no step".into()),
            (Some(next), _) if next.saturating_add(self.settings.slack) < proposal.proposed_at => {
                Answer::Veto(format!(
                    "it counts steps differently: its next one was {next} after that of node {} \
                     was {}",
                    proposal.by_node, proposal.proposed_at
                ))
            }
            _ if seen.held.is_some() => Answer::Veto(seen.held.clone().unwrap_or_default()),
            (_, Some(Err(why))) => Answer::Veto(why.clone()),
            (Some(next), Some(Ok(()))) if self.can_change_to(proposal) => Answer::Armed(next),
            _ => return None,
        };
        self.writing.insert(Write::Arm).then_some(Action::Arm(number, answer))
    }
}
