//! What an instruction gets beside its clock, as a text that only its training framework understands.
//!
//! Kareus gives each instruction the places where its collectives overlap with computation, and measures
//! several such choices at a clock. Such a payload is carried from the row of a profile to the plans that
//! have its clock, and from and to the files of Kareus. Nothing here looks into it or acts on it.

pub(crate) mod columns;
pub(crate) mod file;
pub(crate) mod layout;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use pfo_vocabulary::{Instruction, Mhz, Stage};
use serde::{Deserialize, Serialize};

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::plan::{PlannedInstruction, StagePlan};
use crate::profile::Profile;
use crate::step::dependencies::StageUnit;

/// What an instruction gets beside its clock. Of Kareus, the values of its columns, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Payload(Arc<str>);

/// The payloads of a profile's rows.
pub(crate) type Payloads = BTreeMap<(Stage, Instruction, Mhz), Payload>;

/// An instruction of a plan and its payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedPayload {
    /// The instruction.
    pub of: StageUnit,
    /// What it gets beside its clock.
    pub payload: Payload,
}

impl Payload {
    /// The longest payload, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// The payload as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The values of which it consists.
    pub(crate) fn values(&self) -> impl Iterator<Item = &str> {
        self.0.split(',')
    }
}

impl TryFrom<String> for Payload {
    type Error = PlanError;

    fn try_from(text: String) -> Result<Self, PlanError> {
        let is_good = (1..=Self::MAX_BYTES).contains(&text.len());
        if is_good && !text.chars().any(char::is_control) {
            return Ok(Self(text.into()));
        }
        Err(PlanError::BadArgument {
            name: "a payload",
            value: format!("\"{}\"", excerpt(&text)),
            expected: "one line of 1 to 512 bytes",
        })
    }
}

impl From<Payload> for String {
    fn from(payload: Payload) -> Self {
        payload.0.as_ref().to_owned()
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Profile {
    /// What an instruction gets beside a clock, if its row says it.
    pub fn payload(&self, stage: Stage, instruction: Instruction, clock: Mhz) -> Option<&Payload> {
        self.payloads().get(&(stage, instruction, clock))
    }

    /// The payloads of instructions that have these clocks.
    pub(crate) fn payloads_of(&self, stages: &[StagePlan]) -> Vec<PlannedPayload> {
        if self.payloads().is_empty() {
            return Vec::new();
        }
        let of_stage = |stage: &StagePlan| {
            let number = stage.stage;
            let of = move |planned: &PlannedInstruction| {
                let payload =
                    self.payload(number, planned.instruction, planned.frequency_mhz)?.clone();
                Some(PlannedPayload { of: StageUnit::new(number, planned.unit()), payload })
            };
            stage.instructions.iter().filter_map(of).collect::<Vec<_>>()
        };
        stages.iter().flat_map(of_stage).collect()
    }
}
