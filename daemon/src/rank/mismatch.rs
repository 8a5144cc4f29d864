//! The first difference between a plan and what a rank does in a step, in words.

use pfo_protocol::Unit;

/// The first difference between a plan and what a rank does in a step. Instructions count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mismatch {
    /// Events of the step are missing.
    #[error("{0} events before sequence number {1} did not arrive")]
    Lost(u64, u64),
    /// Another instruction began than the plan has here.
    #[error("instruction {position} was {began}, but the plan has {planned}")]
    Another { position: usize, planned: Unit, began: Unit },
    /// More instructions than the plan has.
    #[error("{began} began after the last of the plan's {planned} instructions")]
    TooMany { planned: usize, began: Unit },
    /// Fewer instructions than the plan has.
    #[error("the step ended after {ended} of the plan's {planned} instructions")]
    TooFew { ended: usize, planned: usize },
    /// An instruction began inside another one.
    #[error("{began} began before {open} had ended")]
    Overlap { open: Unit, began: Unit },
    /// An instruction ended that had not begun.
    #[error("{0} ended, but had not begun")]
    NotBegun(Unit),
}
