//! Dependencies that replace the rule. By the rule, a forward waits for the activation of the
//! virtual stage before, on the last stage a load too, and a backward for the gradient of the one
//! after. The schedule says where virtual stages lie; in a custom order, the input of a chunk's first
//! stage comes from the last one. In any case a stage runs one instruction after the other.
//!
//! In files they are a field `dependencies`; instructions that follow the rule are left out:
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

/// An instruction of a step and the stage that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageUnit {
    /// The stage.
    pub stage: Stage,
    /// The instruction.
    pub instruction: Instruction,
    /// The microbatch.
    pub microbatch: Microbatch,
    /// The model chunk of the stage; left out in files if it is 0.
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

/// The instructions that one waits for, in addition to the one before it on its stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dependency {
    /// The instruction that waits.
    pub of: StageUnit,
    /// The instructions that it waits for; may be empty.
    pub after: Vec<StageUnit>,
}

/// The number of a wrong dependency, and what is wrong with it.
pub(crate) struct BadDependency {
    pub(crate) number: usize,
    pub(crate) problem: String,
}

/// Checks that every named instruction is run, that none waits for itself, and that none is named
/// twice.
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
                "no stage runs {unknown}; add it to the stage's order or remove it here"
            ));
        }
        if !said.insert(of) {
            return bad(format!(
                "{of} already has a list; name everything that it waits for in one"
            ));
        }
        if after.contains(of) {
            return bad(format!("{of} cannot wait for itself; remove it from its list"));
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
