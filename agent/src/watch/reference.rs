//! What a watched job is compared with: the frontier that is loaded for it or, for a job over several
//! nodes, what another node says was profiled.

use std::sync::Arc;

use pfo_planner::{Conditions, Profile};

use crate::straggler::FrontierJob;

/// What says how long the instructions of a job should take.
#[derive(Clone, Debug)]
pub(crate) enum Reference {
    /// The frontier that is loaded on this node.
    Frontier(Arc<FrontierJob>),
    /// A profile of which only the stages on this node count.
    Profile(Arc<Profile>),
}

impl Reference {
    pub(super) fn profile(&self) -> &Profile {
        match self {
            Self::Frontier(frontier) => frontier.profile(),
            Self::Profile(profile) => profile,
        }
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Frontier(one), Self::Frontier(other)) => Arc::ptr_eq(one, other),
            (Self::Profile(one), Self::Profile(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Takes note of how the job runs beside it.
    pub(super) fn note(&self, conditions: Conditions) {
        if let Self::Frontier(frontier) = self {
            frontier.note(conditions);
        }
    }
}
