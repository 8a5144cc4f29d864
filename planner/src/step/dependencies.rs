//! What instructions wait for where somebody says so: it takes the place of what follows from the
//! rule (a forward waits for the activation of the virtual stage before, a backward for the
//! gradient of the one after). Whatever is said, a stage runs one instruction after the other.
//!
//! In files a field `dependencies`, by-the-rule instructions left out:
//!
//! ```json
//! [{"of": {"stage": 0, "instruction": "backward", "microbatch": 0},
//!   "after": [{"stage": 1, "instruction": "backward", "microbatch": 0},
//!             {"stage": 1, "instruction": "collective", "microbatch": 0}]}]
//! ```

use std::collections::HashSet;
use std::fmt;

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Stage, Unit};
use serde::{Deserialize, Serialize};

use crate::limits::DEPENDENCIES;

/// An instruction of one of a step's stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageUnit {
    /// Who runs it.
    pub stage: Stage,
    /// What to run.
    pub instruction: Instruction,
    /// For which microbatch.
    pub microbatch: Microbatch,
    /// On which chunk of the stage.
    #[serde(default, skip_serializing_if = "Chunk::is_first")]
    pub chunk: Chunk,
}

impl StageUnit {
    pub(crate) fn new(stage: Stage, unit: Unit) -> Self {
        let Unit { instruction, microbatch, chunk } = unit;
        Self { stage, instruction, microbatch, chunk }
    }

    pub(crate) fn unit(&self) -> Unit {
        let &Self { instruction, microbatch, chunk, .. } = self;
        Unit { instruction, microbatch, chunk }
    }
}

impl fmt::Display for StageUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on stage {}", self.unit(), self.stage)
    }
}

/// What one instruction waits for, beside the one before it on its stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dependency {
    /// Which one waits.
    pub of: StageUnit,
    /// For these; there may be none.
    pub after: Vec<StageUnit>,
}

/// What is wrong with dependencies, and with which of them.
pub(crate) struct BadDependency {
    pub(crate) number: usize,
    pub(crate) problem: String,
}

/// Every instruction that is named must be run, none waits for itself, nothing is said twice.
pub(crate) fn check_dependencies(
    run: impl Iterator<Item = StageUnit>,
    dependencies: &[Dependency],
) -> Result<(), BadDependency> {
    if dependencies.is_empty() {
        return Ok(());
    }
    let run: HashSet<StageUnit> = run.collect();
    let mut said = HashSet::new();
    let mut named = 0;
    for (number, Dependency { of, after }) in dependencies.iter().enumerate() {
        let bad = |problem| Err(BadDependency { number, problem });
        if let Some(unknown) = [of].into_iter().chain(after).find(|&unit| !run.contains(unit)) {
            return bad(format!(
                "no stage runs {unknown}; add it to the stage's order, or drop it"
            ));
        }
        if !said.insert(of) {
            return bad(format!("{of} has a list already; name all that it waits for in one"));
        }
        if after.contains(of) {
            return bad(format!("{of} cannot wait for itself; drop it from its list"));
        }
        let mut seen = HashSet::new();
        if let Some(again) = after.iter().find(|&unit| !seen.insert(unit)) {
            return bad(format!("{of} waits for {again} twice; name it once"));
        }
        named += 1 + after.len();
        if named > DEPENDENCIES {
            return bad(format!("more than {DEPENDENCIES} instructions are named up to here"));
        }
    }
    Ok(())
}
