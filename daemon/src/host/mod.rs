//! The node that the daemon runs on: the kernel's calls and the journal's messages.

pub(crate) mod journal;
mod line;
mod sys;

pub(crate) use line::check_line;
#[cfg(test)]
pub(crate) use sys::scheduling;
pub(crate) use sys::{allow_interruptions, interrupt_thread, set_slice};
