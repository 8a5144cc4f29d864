//! What a tune learns of a job of which no profile is stored. In each of a few trials every stage has a clock
//! of its own: at first as low as its waits allow, so that a cautious plan is in force from the beginning;
//! then as low as steps may become longer; then the clocks that a plan would have.

use pfo_planner::{ClockPer, Deadline, Delays, Due, Pipeline, Plan, Profile};
use pfo_protocol::{
    AgentRequest, AgentResponse, JobName, Mhz, ProfileKey, RecordedTrial, RefusalCode, TrialLength,
    TrialResult,
};

use super::Tuning;
use super::curves::Curves;
use super::own_order::OwnOrder;
use super::profile_source::Sourced;
use super::with_plans::frontier_of;
use crate::bench::{Bench, Phase};
use crate::contender::trial_of;
use crate::error::TuneError;
use crate::report::Origin;
use crate::subject::unexpected;
use crate::terms::System;
use crate::usual::Usual;
use crate::window::Window;

/// By what share a step of an experiment may be longer, unless a plan may be slower.
const LONGEST: f64 = 0.1;

/// A clock is planned if the power there is known within this share; and tried, within the other.
const KNOWN: f64 = 0.06;
const TRIED: f64 = 0.3;

/// What an energy should be known within, as a share, and the steps that are spent on it.
const GOOD_ERROR: f64 = 0.01;
const STEPS: (f64, f64) = (2.0, 10.0);

/// More steps than that may be short, but none are measured for longer, in seconds.
const LONG_ENOUGH_S: f64 = 20.0;

/// By this share more than is allowed steps of a trial are not longer, unless the job has changed.
const UNEXPECTED: f64 = 0.1;

/// The mean time of the usual steps of a trial, in seconds.
fn usual_s(trial: &TrialResult) -> f64 {
    Usual::of(&[trial]).step_s(trial).unwrap_or_default()
}

impl<B: Bench> Tuning<'_, '_, B> {
    /// Whether the job is one to learn about: nobody asked for a sweep, and this node sees all of it.
    pub(crate) fn may_learn(&self) -> bool {
        let terms = &self.order.terms;
        let is_ours = terms.policy == System::Pfo && self.order.profile.is_none();
        is_ours && !terms.ask_for_sweep() && !self.spans_nodes
    }

    /// What is known of the job's instructions after a trial at default clocks, and the clocks of its GPUs.
    /// None if a profile is stored, or the job has to be swept, which says why.
    async fn unlearned(
        &mut self,
        baseline: &RecordedTrial,
    ) -> Result<Option<(Curves, Vec<Mhz>)>, TuneError> {
        let Some(microbatches) = self.microbatches(baseline) else { return Ok(None) };
        let mut models = baseline.trial.ranks.iter().map(|rank| &rank.gpu_model);
        let Some(model) = models.next().cloned() else { return Ok(None) };
        if self.is_stored(baseline, microbatches).await? {
            return Ok(None);
        }
        if let Some(other) = models.find(|other| **other != model) {
            return Ok(
                self.has_to_be_swept(&format!("its GPUs are of the models {model} and {other}"))
            );
        }
        let Some(clocks) = self.subject.clocks_of(baseline, &model).await else {
            return Ok(self.has_to_be_swept("pfod does not say which clocks its GPUs have"));
        };
        let Some(highest) = clocks.iter().max().copied() else { return Ok(None) };
        match Curves::new(baseline, highest) {
            Ok(curves) => Ok(Some((curves, clocks))),
            Err(why) => Ok(self.has_to_be_swept(&why)),
        }
    }

    /// Says why nothing can be learned while the job runs on at nearly its pace.
    fn has_to_be_swept<T>(&mut self, why: &str) -> Option<T> {
        let job = self.subject.job();
        self.subject.remark(format!(
            "job {job} is measured at one clock after another, which takes minutes and makes some steps half as long \
             again or more: {why}"
        ));
        None
    }

    /// The steps of a trial: enough to know energies well.
    fn enough(&self, curves: &Curves, default: &Window) -> TrialLength {
        let wanting = default.steps() as f64 * (curves.worst_error() / GOOD_ERROR).powi(2);
        let most = STEPS.1.max(LONG_ENOUGH_S / default.time_s());
        let enough = wanting.ceil().clamp(STEPS.0, most) as u32;
        let turn = self.order.terms.turn(default.time_s());
        TrialLength { steps: turn.steps.max(enough), ..turn }
    }

    /// The profile as far as a few trials show it, after one at default clocks. None if the job is not one
    /// to learn about.
    pub(crate) async fn learned(
        &mut self,
        baseline: &RecordedTrial,
    ) -> Result<Option<Sourced>, TuneError> {
        let Some((mut curves, clocks)) = self.unlearned(baseline).await? else { return Ok(None) };
        let highest = clocks.iter().max().copied();
        self.subject.begin(Phase::Profile, "learning what lower clocks do".to_owned());
        let first = Profile::from_csv(curves.csv(&clocks, TRIED, true).as_bytes())?;
        let own = match self.order.terms.has_open_order(self.order.order.as_deref()) {
            true => self.subject.own_order(&first).await?,
            false => None,
        };
        let default = self.subject.window(&baseline.trial)?;
        let allowed = self.order.terms.max_slowdown;
        let ends =
            [0.0, LONGEST.max(allowed), if allowed < LONGEST { allowed } else { 0.5 * allowed }];
        let length = self.enough(&curves, &default);
        let mut steps = 0;
        for (number, longer) in (1..).zip(ends) {
            let csv = curves.csv(&clocks, TRIED, true);
            let plan = self.slower_by(longer, &csv, baseline, own.as_ref()).await?;
            if clocks_of(&plan).all(|mhz| Some(mhz) == highest) {
                continue;
            }
            let done = f64::from(number as u32 - 1) / ends.len() as f64;
            let left =
                (ends.len() - number + 1) as u64 * u64::from(length.settling_steps + length.steps);
            self.subject.show(
                format!("learning, trial {number} of {}", ends.len()),
                done,
                Some(left),
            );
            let run = trial_of(format!("learning {number}"), &plan)?;
            let trial = match self.subject.trial(&run, length).await {
                // Such as a clock that the administrator does not allow: a sweep knows those.
                Err(TuneError::Refused(refusal))
                    if matches!(
                        refusal.code,
                        RefusalCode::PlanDoesNotFit | RefusalCode::NotAuthorized
                    ) =>
                {
                    return Ok(self.has_to_be_swept(&refusal.message));
                }
                trial => trial?,
            };
            curves.add(&trial);
            steps += length.settling_steps + length.steps;
            let took = usual_s(&trial.trial) / usual_s(&baseline.trial) - 1.0;
            if took > LONGEST.max(allowed) + UNEXPECTED {
                // It has become slower by itself, or was so when it was measured: no longer trial is expected to be
                // as long as it was promised.
                self.subject.remark(format!(
                    "steps of job {} took {:.0} % longer than at default clocks before, and {:.0} % were \
                     expected: learning ends here",
                    self.subject.job(),
                    100.0 * took,
                    100.0 * longer
                ));
                break;
            }
        }
        let csv = curves.csv(&clocks, KNOWN, false).into_bytes();
        let name = format!("{steps} steps of job {}", self.subject.job());
        Ok(Some(Sourced { csv, name, origin: Origin::Learned { steps } }))
    }

    /// The plan with one clock for each stage whose steps are longer by this share.
    async fn slower_by(
        &mut self,
        longer: f64,
        csv: &str,
        baseline: &RecordedTrial,
        own: Option<&OwnOrder>,
    ) -> Result<Plan, TuneError> {
        let profile = Profile::from_csv(csv.as_bytes())?;
        let microbatches = self.microbatches(baseline);
        let own = own.filter(|own| microbatches.is_none_or(|m| m == own.num_microbatches()));
        let terms = &self.order.terms;
        let pipeline: Pipeline = match own {
            Some(own) => own.pipeline(&profile, Delays::default())?,
            None => {
                let given = (self.order.order.as_deref(), microbatches);
                terms.pipeline(&profile, given, Delays::default())?
            }
        };
        let power = self.subject.planned_power(terms, baseline, &pipeline).await?;
        let frontier = frontier_of(self.subject, ClockPer::Stage, &pipeline, &power).await??;
        let [fastest_s, cheapest_s] =
            [Deadline::Fastest, Deadline::MinEnergy].map(|end| frontier.seconds(end));
        let limit_s = (fastest_s * (1.0 + longer) * (1.0 + 1e-9)).min(cheapest_s.max(fastest_s));
        Ok(frontier.plan_for(Due::AtMost(limit_s))?)
    }

    /// Whether the agent has a profile of such a job, or an unfinished sweep of it.
    async fn is_stored(
        &mut self,
        baseline: &RecordedTrial,
        microbatches: u32,
    ) -> Result<bool, TuneError> {
        let ranks = &baseline.trial.ranks;
        let degree =
            |of: fn(&pfo_protocol::TrialRank) -> u32| ranks.iter().map(of).max().unwrap_or(0) + 1;
        let partition = ProfileKey::partition_of(
            degree(|rank| rank.stage.0.into()),
            degree(|rank| rank.dp_rank.0),
            degree(|rank| rank.tp_rank.0),
            microbatches,
        );
        if self.subject.has_unfinished_sweep(&partition).await? {
            return Ok(true);
        }
        let stored = match self.subject.agent(AgentRequest::Profiles).await? {
            AgentResponse::Profiles(stored) => stored,
            other => return Err(unexpected(&other)),
        };
        let model: JobName = self.order.terms.model.clone().unwrap_or_else(|| self.subject.job());
        Ok(stored.iter().any(|one| one.key.model == model && one.key.partition == partition))
    }
}

fn clocks_of(plan: &Plan) -> impl Iterator<Item = Mhz> {
    plan.stages.iter().flat_map(|stage| &stage.instructions).map(|planned| planned.frequency_mhz)
}
