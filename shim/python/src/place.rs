//! Where in its step a trainer is, to tell it when an instruction is out of place.

use std::sync::atomic::{AtomicBool, Ordering};

use pfo::Call;

/// Where a trainer is, by its last calls.
#[derive(Debug, Default)]
pub(crate) struct Place {
    in_step: AtomicBool,
    in_instruction: AtomicBool,
    reported: AtomicBool,
}

impl Place {
    /// Takes in a call; returns what is wrong with it if it is the first that is out of place.
    pub(crate) fn take(&self, call: Call) -> Option<&'static str> {
        let wrong = match call {
            Call::StepBegin | Call::StepEnd => {
                self.in_step.store(call == Call::StepBegin, Ordering::Relaxed);
                self.in_instruction.store(false, Ordering::Relaxed);
                None
            }
            Call::InstructionEnd => {
                self.in_instruction.store(false, Ordering::Relaxed);
                None
            }
            Call::InstructionBegin { .. } => {
                let nested = self.in_instruction.swap(true, Ordering::Relaxed);
                if !self.in_step.load(Ordering::Relaxed) {
                    Some("began outside a step")
                } else if nested {
                    Some("began before the last one had ended")
                } else {
                    None
                }
            }
        };
        wrong.filter(|_| !self.reported.swap(true, Ordering::Relaxed))
    }
}
