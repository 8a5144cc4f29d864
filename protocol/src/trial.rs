//! Trials: a job runs something for some steps, and the time and energy of each step are measured.
//!
//! A GPU without an energy counter has no figure instead of a wrong one.

use std::ops::RangeInclusive;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use pfo_vocabulary::{DpRank, GpuUuid, Mhz, Rank, Stage, TpRank};

use crate::clock_table::{ClockTable, MOST_STAGES};
use crate::range::{OutOfRange, within};
use crate::status::PlanStatus;

/// No GPU has a higher power limit; in watts.
const HIGHEST_LIMIT_W: u32 = 10_000;

/// What a job runs in a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TrialRun {
    /// Clocks as they are without pfo.
    DefaultClocks,
    /// A plan.
    Plan {
        /// What to call it in status.
        label: String,
        /// The plan.
        table: ClockTable,
    },
    /// This clock for every instruction of every rank.
    Uniform(#[serde(deserialize_with = "clock")] Mhz),
    /// Clocks as they are without pfo, under these power limits.
    PowerLimits {
        /// What to call it in status.
        label: String,
        /// Each stage's, in watts.
        #[serde(deserialize_with = "limits_w")]
        limits_w: Vec<u32>,
    },
    /// One of these clocks for every instruction of each data-parallel replica: the first one for
    /// replica 0, and so on, in turn if there are more replicas than clocks. There are 1 to
    /// [`MOST_CLOCKS`].
    Replicas(#[serde(deserialize_with = "clocks")] Vec<Mhz>),
    /// Clocks as they are without pfo, also the memory clock, which is locked otherwise.
    FreeMemory,
}

/// The clocks at which replicas may be measured at the same time.
pub const MOST_CLOCKS: usize = 8;

pub(crate) fn clock<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mhz, D::Error> {
    let clock = Mhz::deserialize(deserializer)?;
    within("the clock", clock, Mhz(1)..=Mhz::MAX).map_err(D::Error::custom)
}

pub(crate) fn clocks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Mhz>, D::Error> {
    let clocks = Vec::<Mhz>::deserialize(deserializer)?;
    within("the number of clocks", clocks.len(), 1..=MOST_CLOCKS).map_err(D::Error::custom)?;
    for clock in &clocks {
        within("a clock", *clock, Mhz(1)..=Mhz::MAX).map_err(D::Error::custom)?;
    }
    Ok(clocks)
}

pub(crate) fn limits_w<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    let limits_w = Vec::<u32>::deserialize(deserializer)?;
    within("the number of power limits", limits_w.len(), 1..=MOST_STAGES)
        .map_err(D::Error::custom)?;
    for limit_w in &limits_w {
        within("a power limit in watts", *limit_w, 1..=HIGHEST_LIMIT_W)
            .map_err(D::Error::custom)?;
    }
    Ok(limits_w)
}

pub(crate) fn cap_w<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let limit_w = Option::<u32>::deserialize(deserializer)?;
    let check = |limit_w| within("a power limit in watts", limit_w, 1..=HIGHEST_LIMIT_W);
    limit_w.map(check).transpose().map_err(D::Error::custom)
}

/// How long a trial is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedLength")]
pub struct TrialLength {
    /// Steps that are left out at the beginning, for the clocks and the job to settle: 1 to 10,000.
    pub settling_steps: u32,
    /// Whole steps that are measured: 1 to 50,000.
    pub steps: u32,
}

impl TrialLength {
    /// The settling steps that a trial may have.
    pub const SETTLING_STEPS: RangeInclusive<u32> = 1..=10_000;

    /// The measured steps that a trial may have. More do not fit into a response.
    pub const STEPS: RangeInclusive<u32> = 1..=50_000;
}

#[derive(Deserialize)]
struct UncheckedLength {
    settling_steps: u32,
    steps: u32,
}

impl TryFrom<UncheckedLength> for TrialLength {
    type Error = OutOfRange<u32>;

    fn try_from(unchecked: UncheckedLength) -> Result<Self, OutOfRange<u32>> {
        let UncheckedLength { settling_steps, steps } = unchecked;
        within("the number of settling steps", settling_steps, Self::SETTLING_STEPS)?;
        within("the number of measured steps", steps, Self::STEPS)?;
        Ok(Self { settling_steps, steps })
    }
}

/// What a trial measured, as far as the job's ranks are on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    /// The plan that ran; none at default clocks.
    pub plan: Option<PlanStatus>,
    /// The first step that was measured.
    pub first_step: u64,
    /// Every measured step.
    pub steps: Vec<TrialStep>,
    /// Every rank, in the order of their numbers.
    pub ranks: Vec<TrialRank>,
}

/// One step of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialStep {
    /// From the last rank's begin of the step to the last rank's begin of the next one, in seconds.
    pub time_s: f64,
    /// Energy of all ranks, each from its begin of the step to its begin of the next one, in
    /// joules.
    pub energy_j: Option<f64>,
}

/// One rank in a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRank {
    /// The rank.
    pub rank: Rank,
    /// Its stage.
    pub stage: Stage,
    /// Its data-parallel rank.
    pub dp_rank: DpRank,
    /// Its tensor-parallel rank.
    pub tp_rank: TpRank,
    /// Its GPU.
    pub gpu_uuid: GpuUuid,
    /// The model of its GPU.
    pub gpu_model: String,
    /// Mean time of its steps, begin to begin, in seconds.
    pub time_s: f64,
    /// Mean energy of its steps, in joules.
    pub energy_j: Option<f64>,
    /// Measured steps in which its instructions did not follow the plan, or events were lost.
    pub mismatched_steps: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    fn bytes(value: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        codec::append(value, &mut bytes).unwrap();
        bytes
    }

    fn length(settling_steps: u32, steps: u32) -> Result<TrialLength, String> {
        codec::decode(&bytes(&(settling_steps, steps))).map_err(|error| error.to_string())
    }

    #[test]
    fn a_length_within_its_bounds_is_decoded_and_no_other_is() {
        for (settling_steps, steps) in [(1, 1), (10_000, 50_000)] {
            assert_eq!(length(settling_steps, steps), Ok(TrialLength { settling_steps, steps }));
        }
        let wrong = [
            (0, 1, "settling steps is 0; it must be 1 to 10000"),
            (10_001, 1, "settling steps is 10001"),
            (1, 0, "measured steps is 0; it must be 1 to 50000"),
            (1, u32::MAX, "measured steps is 4294967295"),
        ];
        for (settling_steps, steps, part) in wrong {
            let error = length(settling_steps, steps).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_run_at_a_clock_that_no_gpu_has_is_refused_where_it_is_decoded() {
        let run = |mhz| codec::decode::<TrialRun>(&bytes(&TrialRun::Uniform(Mhz(mhz))));
        assert!(run(1410).is_ok());
        for (mhz, part) in [(0, "is 0 MHz"), (10_001, "is 10001 MHz; it must be 1 MHz to 10000")] {
            let error = run(mhz).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn clocks_of_replicas_are_bounded_in_number_and_in_size() {
        let run = |clocks| codec::decode::<TrialRun>(&bytes(&TrialRun::Replicas(clocks)));
        assert!(run(vec![Mhz(1410); MOST_CLOCKS]).is_ok());
        let wrong = [
            (vec![], "the number of clocks is 0; it must be 1 to 8"),
            (vec![Mhz(900); MOST_CLOCKS + 1], "is 9"),
            (vec![Mhz(900), Mhz(0)], "a clock is 0 MHz; it must be 1 MHz to 10000"),
        ];
        for (clocks, part) in wrong {
            let error = run(clocks).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn power_limits_that_no_job_has_are_refused_where_they_are_decoded() {
        let run = |limits_w| {
            let run = TrialRun::PowerLimits { label: "l".into(), limits_w };
            codec::decode::<TrialRun>(&bytes(&run))
        };
        assert!(run(vec![300; MOST_STAGES]).is_ok());
        let wrong = [
            (vec![], "the number of power limits is 0; it must be 1 to 4096"),
            (vec![300; MOST_STAGES + 1], "is 4097"),
            (vec![300, 0], "a power limit in watts is 0; it must be 1 to 10000"),
            (vec![u32::MAX], "is 4294967295"),
        ];
        for (limits_w, part) in wrong {
            let error = run(limits_w).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
