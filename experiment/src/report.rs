//! Everything that was measured and decided when a job was tuned.

use pfo_planner::{PerStage, Plan, PowerByClock, Watts};
use pfo_protocol::{GuardStatus, JobName, Mhz, PlanStatus};
use serde::{Deserialize, Serialize};

use crate::contender::Contender;
use crate::judge::{Compared, Verdict};
use crate::window::Window;

/// How intervals are made, in a sentence.
const METHOD: &str = "Intervals: 95 %, confidence sequences over rounds, valid at whichever round they stop \
                      (Wang and Ramdas 2025).";

/// Everything that was measured and decided. Its JSON is what `pfoctl tune --json` prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The job.
    pub job: JobName,
    /// Whose plans were tried.
    pub policy: String,
    /// By what share a step may take longer.
    pub max_slowdown: f64,
    /// None if no profile was needed.
    #[serde(flatten)]
    pub planned_with: Option<PlannedWith>,
    /// The job without a plan.
    pub default_clocks: DefaultClocks,
    /// None if the GPUs hold every clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub useful_clocks: Option<UsefulClocks>,
    /// Trials of a policy that searches on the job.
    pub search_trials: u32,
    /// The trials of a search over power limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searched: Vec<Searched>,
    /// The plans that were run on the job beside default clocks.
    pub tried: Vec<Tried>,
    /// Plans whose energy could not be measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmeasured: Vec<String>,
    /// The plan that the job runs; none at default clocks.
    pub kept: Option<PlanStatus>,
    /// The guard that keeps the allowed slowdown from now on.
    pub guard: Option<GuardStatus>,
    /// Why there is none, if there should be one.
    pub unguarded: Option<String>,
    /// Whether the guard has a frontier to correct the plan with.
    pub correctable: bool,
    /// How intervals are made.
    pub method: String,
}

/// What plans were made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlannedWith {
    /// The file of the profile, or its key.
    pub profile: String,
    /// Where it comes from.
    #[serde(flatten)]
    pub profile_origin: Origin,
    /// The P2P-blocking power.
    pub p2p_power: PlannedPower,
    /// How late clocks are in the plans, in seconds.
    pub late_s: f64,
    /// How long transfers take in the plans, in seconds.
    pub transfer_s: f64,
    /// What is known of the time of transfers.
    pub transfers: Transfers,
    /// The order that the job runs, if the plans are for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// For how long each change of clocks holds up its stage in the plans, in seconds: as it was
    /// learned from plans that took longer than predicted.
    pub held_up_s: f64,
    /// What looks odd in the profile, a line for each kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub odd: Vec<String>,
}

/// Where a profile comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "profile_origin", rename_all = "snake_case")]
pub enum Origin {
    /// A file that was given.
    File,
    /// The store.
    Stored,
    /// A sweep of the job.
    Measured {
        /// How many clocks an interrupted sweep had measured before.
        #[serde(rename = "profile_clocks_reused")]
        resumed_after: u32,
    },
    /// A few trials of the job, between whose clocks times and energies are fitted.
    Learned {
        /// How many steps they took.
        #[serde(rename = "profile_steps")]
        steps: u32,
    },
}

/// A P2P-blocking power that was planned with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlannedPower {
    /// The mean of the stages, in watts.
    pub watts: f64,
    /// Of each stage, where they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_stage_w: Option<Vec<Watts>>,
    /// By clock, in MHz and W, if waits have clocks of their own and all stages the same power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_mhz: Option<PowerByClock>,
    /// By clock, of each stage where they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_stage_by_mhz: Option<Vec<PowerByClock>>,
    /// Where it comes from.
    pub origin: PowerOrigin,
}

/// Where a P2P-blocking power comes from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerOrigin {
    /// It was given.
    Given,
    /// The agent's store, with the origin that it knows.
    Stored(String),
    /// The job's own waits.
    Waits,
    /// What its steps draw beside their instructions.
    Steps,
    /// No stage waits for another one, so that no plan depends on it.
    Unneeded,
}

/// What is known of the time of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Transfers {
    /// The terms say it.
    Given,
    /// The median of those that an instruction waited for.
    Measured {
        /// In seconds.
        median_s: f64,
        /// How many there were.
        hand_overs: usize,
    },
    /// The ranks are on several nodes, whose clocks do not compare.
    OfSeveralNodes,
    /// Instructions were not looked at, or hardly one of them waited for another stage's.
    Unknown,
}

/// Means of what a step took before anything was tried.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DefaultClocks {
    /// In seconds.
    pub iteration_time_s: f64,
    /// In joules.
    pub iteration_energy_j: f64,
}

/// What a step takes with every instruction at the highest clock that is of use to it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct UsefulClocks {
    /// The highest clock that was asked for.
    pub asked_mhz: Mhz,
    /// The lowest clock that is the highest useful one of an instruction.
    pub lowest_mhz: Mhz,
    /// The highest such clock.
    pub highest_mhz: Mhz,
    /// What it comes to.
    #[serde(flatten)]
    pub compared: Compared,
}

/// What a step took under the power limits of one trial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Searched {
    /// The limit of each stage, in watts.
    pub power_limits_w: Vec<u32>,
    /// In seconds.
    pub iteration_time_s: f64,
    /// In joules.
    pub iteration_energy_j: f64,
}

/// A plan that was run on the job beside default clocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// What it is called.
    pub plan: String,
    /// What it predicts of a step, in seconds.
    pub predicted_time_s: Option<f64>,
    /// What it predicts of a step, in joules.
    pub predicted_energy_j: Option<f64>,
    /// What became of it.
    pub verdict: Verdict,
    /// Whether the intervals prove the verdict, or it is only most likely.
    pub certain: bool,
    /// How it compares.
    #[serde(flatten)]
    pub compared: Compared,
}

impl From<&Window> for DefaultClocks {
    fn from(window: &Window) -> Self {
        Self { iteration_time_s: window.time_s(), iteration_energy_j: window.energy_j() }
    }
}

impl Tried {
    pub(crate) fn new(
        contender: &Contender,
        verdict: Verdict,
        certain: bool,
        compared: Compared,
    ) -> Self {
        let Contender { label, predicted, .. } = contender;
        Self {
            plan: label.clone(),
            predicted_time_s: predicted.map(|predicted| predicted.iteration_time_s),
            predicted_energy_j: predicted.map(|predicted| predicted.iteration_energy_j),
            verdict,
            certain,
            compared,
        }
    }

    /// Notes that another plan saves more, and is kept instead.
    pub(crate) fn outdo(&mut self) {
        self.verdict = Verdict::SavesLess;
    }
}

impl Report {
    /// The report of a job that was measured at default clocks only.
    #[must_use]
    pub fn new(job: JobName, policy: String, max_slowdown: f64, default_clocks: &Window) -> Self {
        Self {
            job,
            policy,
            max_slowdown,
            planned_with: None,
            default_clocks: default_clocks.into(),
            useful_clocks: None,
            search_trials: 0,
            searched: Vec::new(),
            tried: Vec::new(),
            unmeasured: Vec::new(),
            kept: None,
            guard: None,
            unguarded: None,
            correctable: false,
            method: METHOD.to_owned(),
        }
    }

    /// Whether what is kept is proved by the measured intervals.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        let mut kept = self.tried.iter().filter(|tried| tried.verdict == Verdict::Kept);
        kept.all(|tried| tried.certain)
    }
}

impl PlannedPower {
    pub(crate) fn new(flat: &PerStage<Watts>, origin: PowerOrigin) -> Self {
        let by_stage_w = flat.differing().map(<[Watts]>::to_vec);
        let Watts(watts) = flat.mean();
        Self { watts, by_stage_w, by_mhz: None, by_stage_by_mhz: None, origin }
    }

    /// At the highest clock.
    #[must_use]
    pub fn flat(&self) -> PerStage<Watts> {
        let each = self.by_stage_w.clone().and_then(|each| PerStage::new(each).ok());
        each.unwrap_or_else(|| Watts(self.watts).into())
    }

    /// By clock, where that is known.
    pub(crate) fn waiting(&self) -> PerStage<PowerByClock> {
        let each = self.by_stage_by_mhz.clone().and_then(|each| PerStage::new(each).ok());
        let common = || self.by_mhz.clone().map(PerStage::from);
        each.or_else(common).unwrap_or_else(|| self.flat().into())
    }
}

/// The plan that was kept, beside the report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) plan: Option<Plan>,
    /// The frontier that the plan is from.
    pub(crate) frontier: Option<Vec<u8>>,
}
