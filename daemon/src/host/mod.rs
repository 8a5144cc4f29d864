//! The node that the daemon runs on: the kernel's calls and the journal's messages.

pub(crate) mod journal;
mod line;
mod sys;

pub(crate) use line::check_line;
pub(crate) use sys::{allow_interruptions, interrupt_thread, scheduling, set_scheduling};
