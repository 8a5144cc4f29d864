//! Begins that end by themselves.

use crate::session::Session;

/// A step that ends where the guard is dropped.
#[derive(Debug)]
#[must_use = "the step ends where the guard is dropped"]
pub struct StepGuard<'a>(&'a Session);

impl<'a> StepGuard<'a> {
    pub(crate) fn begin(session: &'a Session) -> Self {
        session.step_begin();
        Self(session)
    }
}

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        self.0.step_end();
    }
}

/// An instruction that ends where the guard is dropped.
#[derive(Debug)]
#[must_use = "the instruction ends where the guard is dropped"]
pub struct InstructionGuard<'a>(pub(crate) &'a Session);

impl Drop for InstructionGuard<'_> {
    fn drop(&mut self) {
        self.0.instruction_end();
    }
}
