//! The formats in which one plan is written.

use clap::ValueEnum;
use pfo_planner::{Generation, Plan, PlanError};

/// What a plan is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// pfo-plan/1 JSON
    Pfo,
    /// lowtime's and Perseus' Python lists of MHz
    Lowtime,
    /// lowtime's and Zeus' Python lists of (name, MHz)
    Zeus,
    /// Kareus' Python lists of payloads, which belong beside those of (name, MHz)
    Payloads,
}

impl Format {
    /// The plan as text.
    pub(crate) fn write(self, plan: &Plan) -> Result<String, PlanError> {
        match self {
            Self::Pfo => plan.to_json(),
            Self::Lowtime => Ok(plan.to_lowtime(Generation::Clocks)),
            Self::Zeus => Ok(plan.to_lowtime(Generation::Named)),
            Self::Payloads => plan.to_kareus_payloads(),
        }
    }

    /// The name of a file in a directory of plans. Numbers rise with speed, as lowtime's do.
    pub(crate) fn file_name(self, number: usize) -> String {
        match self {
            Self::Pfo => format!("plan_{number:05}.json"),
            Self::Lowtime | Self::Zeus => format!("freqs_pipeline_{number:05}.py"),
            Self::Payloads => format!("scheds_pipeline_{number:05}.py"),
        }
    }
}
