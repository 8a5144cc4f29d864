//! What stands beside what a job runs, from one swap to the next: every proposal carries it on, so that
//! each agent knows it, and no agent is needed to remember it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use pfo_vocabulary::{Instruction, Stage};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::node::Node;
use crate::swap::Run;

/// The slowdowns that a guard may allow, and those that it may have measured, as shares.
const ALLOWED: RangeInclusive<f64> = 0.0..=100.0;
const MEASURED: RangeInclusive<f64> = -1.0..=1000.0;

/// The newest comparisons that count for a guard.
const COMPARISONS: usize = 8;

/// How many times the fastest iteration a straggler's takes.
const FACTORS: RangeInclusive<f64> = 1.0..=1e6;

/// The seconds that a step may take, and the watts that a job may draw.
const STEPS_S: RangeInclusive<f64> = 1e-9..=1e9;
const POWERS_W: RangeInclusive<f64> = 1e-3..=1e12;

/// By how many millionths a stage may be slower than was profiled, and how many times.
const SHARES_PPM: RangeInclusive<i32> = -1_000_000..=1_000_000_000;

/// The guard, straggler answer and power budget of a job, which every swap carries on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standing {
    /// The slowdown that is allowed, and how that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,
    /// The straggler that the job runs a plan for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub straggler: Option<Answered>,
    /// That slow stages are answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<Watch>,
    /// That a power budget has it run this, in place of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budgeted: Option<Budgeted>,
}

/// What a power budget has taken a job from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "UncheckedBudgeted")]
pub struct Budgeted {
    /// What the job runs by itself.
    pub before: Run,
    /// A step of that, in seconds.
    pub time_s: f64,
    /// What all GPUs of the job draw meanwhile, in watts.
    pub power_w: f64,
    /// The point of the job's curve that it runs instead.
    pub tag: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UncheckedBudgeted {
    before: Run,
    time_s: f64,
    power_w: f64,
    tag: u32,
}

impl TryFrom<UncheckedBudgeted> for Budgeted {
    type Error = OutOfReason;

    fn try_from(read: UncheckedBudgeted) -> Result<Self, OutOfReason> {
        let UncheckedBudgeted { before, time_s, power_w, tag } = read;
        let time_s = within("the time of a step", time_s, &STEPS_S)?;
        let power_w = within("the power of a job", power_w, &POWERS_W)?;
        Ok(Self { before, time_s, power_w, tag })
    }
}

/// A guard of what the job runs. Shares are of a step's time at default clocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "UncheckedGuard")]
pub struct Guard {
    /// The slowdown that is allowed.
    pub max_slowdown: f64,
    /// The node that compares the plan, while it is a member of the job.
    pub by_node: Node,
    /// The step from which the share of steps counts that comparisons may take.
    pub began: u64,
    /// The steps at default clocks that comparisons have taken since then, and how many there were.
    pub spent: u64,
    /// How many comparisons there were since then.
    pub compared: u32,
    /// What the newest of them have measured, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slowdowns: Vec<f64>,
    /// The step after the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared_at: Option<u64>,
    /// The slowdown of the plan that was replaced by the one that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrected: Option<f64>,
    /// The slowdown of a plan for which the job was brought to default clocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UncheckedGuard {
    max_slowdown: f64,
    by_node: Node,
    began: u64,
    spent: u64,
    compared: u32,
    #[serde(default)]
    slowdowns: Vec<f64>,
    #[serde(default)]
    compared_at: Option<u64>,
    #[serde(default)]
    corrected: Option<f64>,
    #[serde(default)]
    given_up: Option<f64>,
}

/// A number in the store that nothing has measured and nobody has requested.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{what} is {value}, which no agent writes")]
pub struct OutOfReason {
    pub(crate) what: &'static str,
    pub(crate) value: f64,
}

fn within(what: &'static str, value: f64, range: &RangeInclusive<f64>) -> Result<f64, OutOfReason> {
    if range.contains(&value) { Ok(value) } else { Err(OutOfReason { what, value }) }
}

impl TryFrom<UncheckedGuard> for Guard {
    type Error = OutOfReason;

    fn try_from(read: UncheckedGuard) -> Result<Self, OutOfReason> {
        let UncheckedGuard { by_node, began, spent, compared, compared_at, .. } = read;
        let measured = |value| within("a slowdown", value, &MEASURED);
        if read.slowdowns.len() > COMPARISONS {
            let value = read.slowdowns.len() as f64;
            return Err(OutOfReason { what: "the number of slowdowns", value });
        }
        Ok(Self {
            max_slowdown: within("the slowdown that is allowed", read.max_slowdown, &ALLOWED)?,
            by_node,
            began,
            spent,
            compared,
            slowdowns: read.slowdowns.into_iter().map(measured).collect::<Result<_, _>>()?,
            compared_at,
            corrected: read.corrected.map(measured).transpose()?,
            given_up: read.given_up.map(measured).transpose()?,
        })
    }
}

impl Guard {
    /// A guard that allows a slowdown, from a step on.
    #[must_use]
    pub fn of(max_slowdown: f64, by_node: Node, began: u64) -> Self {
        Self {
            max_slowdown,
            by_node,
            began,
            spent: 0,
            compared: 0,
            slowdowns: Vec::new(),
            compared_at: None,
            corrected: None,
            given_up: None,
        }
    }

    /// The same guard of another plan that runs from a step on.
    #[must_use]
    pub fn anew(&self, began: u64) -> Self {
        Self::of(self.max_slowdown, self.by_node.clone(), began)
    }

    /// The same guard after a comparison that `spent` steps at default clocks. `measured` is the slowdown
    /// and the step at which it was over; none if it was broken off.
    #[must_use]
    pub fn after(&self, spent: u64, measured: Option<(f64, u64)>) -> Self {
        let mut after = self.clone();
        after.spent = self.spent.saturating_add(spent);
        after.compared = self.compared.saturating_add(1);
        if let Some((slowdown, step)) = measured {
            if after.slowdowns.len() >= COMPARISONS {
                after.slowdowns.remove(0);
            }
            after.slowdowns.push(slowdown.clamp(*MEASURED.start(), *MEASURED.end()));
            after.compared_at = Some(step);
        }
        after
    }
}

/// A straggler that the job runs a plan for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "UncheckedAnswered")]
pub struct Answered {
    /// How many times the fastest iteration the straggler's takes.
    pub factor: f64,
    /// What the job ran before, and runs again when the straggler is over.
    pub before: Run,
    /// The slow stages that were found, with the share of each in millionths; none if a user reported
    /// the straggler.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub found: BTreeMap<Stage, i32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UncheckedAnswered {
    factor: f64,
    before: Run,
    #[serde(default)]
    found: BTreeMap<Stage, i32>,
}

impl TryFrom<UncheckedAnswered> for Answered {
    type Error = OutOfReason;

    fn try_from(read: UncheckedAnswered) -> Result<Self, OutOfReason> {
        let factor = within("the factor of a straggler", read.factor, &FACTORS)?;
        Ok(Self { factor, before: read.before, found: read.found })
    }
}

/// That slow stages of the job are answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// The node that answers, which has the frontier.
    pub by_node: Node,
    /// What was profiled of each stage, by the digest of the slice in which that is.
    pub profile: Vec<Digest>,
}

/// How a stage on a node runs beside its profile: by its slowest rank there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "UncheckedSlow")]
pub struct SlowStage {
    /// The stage.
    pub stage: Stage,
    /// By how many millionths its instructions take longer; negative if they take less.
    pub share_ppm: i32,
    /// What is known of each kind.
    pub kinds: Vec<(Instruction, Pace)>,
}

/// How instructions of a kind run beside their profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// At each clock they take this many millionths of what was profiled.
    Slowed(u32),
    /// They take no less than these nanoseconds at any clock.
    Held(u64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UncheckedSlow {
    stage: Stage,
    share_ppm: i32,
    kinds: Vec<(Instruction, Pace)>,
}

impl TryFrom<UncheckedSlow> for SlowStage {
    type Error = OutOfReason;

    fn try_from(read: UncheckedSlow) -> Result<Self, OutOfReason> {
        let UncheckedSlow { stage, share_ppm, kinds } = read;
        if !SHARES_PPM.contains(&share_ppm) {
            return Err(OutOfReason { what: "the share of a slow stage", value: share_ppm.into() });
        }
        if kinds.len() > Instruction::ALL.len() {
            let value = kinds.len() as f64;
            return Err(OutOfReason { what: "the kinds of a slow stage", value });
        }
        Ok(Self { stage, share_ppm, kinds })
    }
}

impl Standing {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What stands for another plan that a user asked for, which runs from a step on.
    #[must_use]
    pub fn for_another(&self, step: u64) -> Self {
        let guard = self.guard.as_ref().map(|guard| guard.anew(step));
        Self { guard, straggler: None, watch: self.watch.clone(), budgeted: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        Guard::of(0.01, "a".parse().unwrap(), 7)
    }

    #[test]
    fn a_guard_is_read_as_it_is_written_and_numbers_that_no_agent_writes_are_not() {
        let guard = (0..10).fold(guard(), |guard, at| guard.after(4, Some((0.1, at))));
        assert_eq!((guard.spent, guard.compared, guard.slowdowns.len()), (40, 10, COMPARISONS));
        let mut written = serde_json::to_value(&guard).unwrap();
        assert_eq!(serde_json::from_value::<Guard>(written.clone()).unwrap(), guard);
        written["slowdowns"] = serde_json::json!(vec![0.1; COMPARISONS.saturating_add(1)]);
        assert!(serde_json::from_value::<Guard>(written.clone()).is_err());
        written["slowdowns"] = serde_json::json!([-2.0]);
        assert!(serde_json::from_value::<Guard>(written.clone()).is_err());
        written["slowdowns"] = serde_json::json!([]);
        written["max_slowdown"] = serde_json::json!(1e300);
        assert!(serde_json::from_value::<Guard>(written).is_err());
    }

    #[test]
    fn a_slow_stage_that_no_agent_writes_is_not_read() {
        let kinds = vec![(Instruction::Forward, Pace::Slowed(1_250_000))];
        let slow = SlowStage { stage: Stage(3), share_ppm: 250_000, kinds };
        let written = serde_json::to_string(&slow).unwrap();
        assert_eq!(
            written,
            r#"{"stage":3,"share_ppm":250000,"kinds":[["forward",{"slowed":1250000}]]}"#
        );
        assert_eq!(serde_json::from_str::<SlowStage>(&written).unwrap(), slow);
        let wrong = written.replace("250000,\"kinds", "-1000001,\"kinds");
        assert!(serde_json::from_str::<SlowStage>(&wrong).is_err());
        let many = SlowStage { kinds: vec![(Instruction::Forward, Pace::Held(1)); 99], ..slow };
        let many = serde_json::to_string(&many).unwrap();
        assert!(serde_json::from_str::<SlowStage>(&many).is_err());
    }

    #[test]
    fn another_plan_is_guarded_as_the_one_before_and_is_for_no_straggler() {
        let straggler =
            Answered { factor: 1.2, before: Run::DefaultClocks, found: BTreeMap::new() };
        let measured = guard().after(9, Some((0.5, 20)));
        let budgeted = Budgeted { before: Run::DefaultClocks, time_s: 1.0, power_w: 9.0, tag: 3 };
        let written = serde_json::to_string(&budgeted).unwrap();
        assert_eq!(serde_json::from_str::<Budgeted>(&written).unwrap(), budgeted);
        assert!(serde_json::from_str::<Budgeted>(&written.replace("1.0", "-1.0")).is_err());
        let (guard_of, straggler, budgeted) = (Some(measured), Some(straggler), Some(budgeted));
        let standing = Standing { guard: guard_of, straggler, watch: None, budgeted };
        let another = standing.for_another(40);
        assert_eq!(another, Standing { guard: Some(guard().anew(40)), ..Standing::default() });
    }
}
