//! The session of a rank: what a trainer holds on to.

use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::Instruction;

use crate::background;
use crate::call::Call;
use crate::description::{DescriptionError, RankDescription};
use crate::fork;
use crate::guard::{InstructionGuard, StepGuard};
use crate::lease::Lease;
use crate::line::{Counters, Line};
use crate::problem::Problem;
use crate::shared::Shared;

/// A rank's session with the daemon, and with it the lease of its GPU whenever the daemon grants
/// it.
///
/// All calls may come from any thread, though the begins and ends of one rank have an order that
/// only its trainer can keep. None blocks, fails or prints; [`Session::open`] is the one that
/// waits.
///
/// In a process forked from the one that opened it, a session does nothing.
///
/// Dropping the session ends it, at once and without waiting.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
}

impl Session {
    /// Opens a session, and waits for the daemon's first answer for at most the setup timeout.
    ///
    /// Without a daemon, and when it refuses, the session is valid too: training runs at default
    /// clocks, [`problem`](Self::problem) returns the reason, and the session keeps trying in the
    /// background.
    ///
    /// # Errors
    /// If the description is invalid.
    pub fn open(description: RankDescription) -> Result<Self, DescriptionError> {
        let session = Self::begin(description)?;
        session.shared.is_settled_within(session.shared.rank.setup_timeout);
        Ok(session)
    }

    /// As [`open`](Self::open), without waiting for the daemon.
    ///
    /// # Errors
    /// If the description is invalid.
    pub fn begin(description: RankDescription) -> Result<Self, DescriptionError> {
        fork::watch();
        let shared = Arc::new(Shared::new(description.complete()?));
        background::start(&shared);
        Ok(Self { shared })
    }

    /// Waits for the daemon's first answer, but not longer than this; whether there has been one, or a
    /// reason why there is none.
    #[must_use]
    pub fn is_settled_within(&self, patience: Duration) -> bool {
        !self.shared.is_ours() || self.shared.is_settled_within(patience)
    }

    /// Why there is no lease right now; `None` if there is one.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        if !self.shared.is_ours() {
            return Some(Problem::forked());
        }
        self.shared.tell(Line::look_for_the_end);
        self.shared.lock().problem()
    }

    /// Why the job does not begin with the plan that the description or `PFO_PLAN` names; `None` if it
    /// does, or none is named. It is known when the session is open, and does not change afterwards.
    #[must_use]
    pub fn plan_problem(&self) -> Option<Problem> {
        if self.shared.is_ours() { self.shared.lock().plan_problem.clone() } else { None }
    }

    /// The lease, with the GPU that it is of; `None` if there is none right now.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        if !self.shared.is_ours() {
            return None;
        }
        self.shared.tell(Line::look_for_the_end);
        self.shared.lock().lease()
    }

    /// The next training step begins. Steps count up by one from the description's `first_step`.
    pub fn step_begin(&self) {
        self.tell(Call::StepBegin);
    }

    /// The step ends. Without a step begun, nothing happens.
    pub fn step_end(&self) {
        self.tell(Call::StepEnd);
    }

    /// An instruction of a microbatch begins. Without a number (`None`) it is the microbatch after
    /// the last one of the same instruction in this step.
    ///
    /// ```no_run
    /// # fn work(session: &pfo::Session) {
    /// session.instruction_begin(pfo::Instruction::Backward, 3);
    /// session.instruction_end();
    /// session.instruction_begin(pfo::Instruction::Backward, None); // of microbatch 4
    /// session.instruction_end();
    /// # }
    /// ```
    pub fn instruction_begin(&self, instruction: Instruction, microbatch: impl Into<Option<u32>>) {
        self.instruction_begin_in_chunk(instruction, 0, microbatch);
    }

    /// As [`instruction_begin`](Self::instruction_begin), on one of several model chunks of the
    /// stage, as interleaved schedules have them. Microbatches are counted for each chunk, if there
    /// are at most 64; those of further chunks must be given.
    pub fn instruction_begin_in_chunk(
        &self,
        instruction: Instruction,
        chunk: u16,
        microbatch: impl Into<Option<u32>>,
    ) {
        self.tell(Call::InstructionBegin { instruction, chunk, microbatch: microbatch.into() });
    }

    /// The instruction that began last ends. Without one begun, nothing happens.
    pub fn instruction_end(&self) {
        self.tell(Call::InstructionEnd);
    }

    /// Begins a step that ends where the guard is dropped.
    ///
    /// ```no_run
    /// # fn work(session: &pfo::Session) {
    /// let _step = session.step();
    /// for microbatch in 0..8 {
    ///     let _forward = session.instruction(pfo::Instruction::Forward, microbatch);
    ///     // …
    /// }
    /// # }
    /// ```
    pub fn step(&self) -> StepGuard<'_> {
        StepGuard::begin(self)
    }

    /// Begins an instruction that ends where the guard is dropped.
    pub fn instruction(
        &self,
        instruction: Instruction,
        microbatch: impl Into<Option<u32>>,
    ) -> InstructionGuard<'_> {
        self.instruction_begin(instruction, microbatch);
        InstructionGuard(self)
    }

    /// Makes a call of the training loop.
    pub fn tell(&self, call: Call) {
        self.shared.tell(|line| line.take(call, None));
    }

    /// Makes a call of the training loop that counts from this time on (`CLOCK_MONOTONIC`, ns): for
    /// hosts that have it from their GPU when its work began and ended, and learn that later.
    ///
    /// Instructions are measured by these times; the clock is set when the call is made, as always.
    pub fn tell_at(&self, call: Call, at_ns: u64) {
        self.shared.tell(|line| line.take(call, Some(at_ns)));
    }

    /// Whether this is the process that opened the session, not a child forked from it.
    pub(crate) fn is_ours(&self) -> bool {
        self.shared.is_ours()
    }

    /// What became of the events so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        if self.shared.is_ours() { self.shared.lock().counters() } else { Counters::default() }
    }

    /// Counts a call that was timed when it was made, though it should be timed when the GPU gets to it, for a
    /// caller that times calls itself. The next step tells the daemon the number, for its status.
    pub fn count_untimed(&self) {
        if self.shared.is_ours() {
            self.shared.lock().count_untimed();
        }
    }

    /// Ends the session, as dropping it does: the daemon restores the GPU's clocks.
    pub fn close(self) {}
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.shared.is_ours() {
            self.shared.close();
        } else {
            // Another thread of the parent may have held the lock when it forked, and the sockets
            // are closed already: the child leaves all of it alone.
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}
