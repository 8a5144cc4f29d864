//! Tuning with plans over a profile.

use std::mem;

use pfo_planner::{
    ClockPer, Delays, Frontier, Options, PerStage, Pipeline, Plan, PlanError, Profile, Spread,
    Watts, ZeusSearch, replay, summarised, warnings,
};
use pfo_protocol::{RecordedTrial, SamplePage, TrialResult};

use super::candidates::{Candidate, Candidates, Goal};
use super::own_order::OwnOrder;
use super::profile_source::Sourced;
use super::search::{Found, Search};
use super::tuned_job::TunedJob;
use super::{Tuning, held_up, microbatches, transfers, useful_clocks};
use crate::bench::{Bench, Phase};
use crate::contender::Contender;
use crate::cost::Cost;
use crate::error::TuneError;
use crate::judge::{Compared, Verdict};
use crate::report::{Kept, PlannedPower, PlannedWith, Report, Transfers};
use crate::sequence;
use crate::subject::Subject;
use crate::terms::{System, TuneOrder};

/// What has a clock of its own in the plans that are tried. Those that never change a clock come before
/// those that change it less often, for nothing that a driver does can make them slower.
const RUNGS: [ClockPer; 3] = [ClockPer::Instruction, ClockPer::Stage, ClockPer::Kind];

/// By how much more a plan has to be expected to save than the best one does, for it to be tried, as a
/// share of the energy at default clocks.
const WORTH_TRYING: f64 = 0.003;

/// Instructions that are a smaller share of a step leave out something that a GPU computes.
const COVERED: f64 = 0.8;

/// A plan that saves less than it promised by more than this share breaks its promise.
const KEPT_WITHIN: f64 = 0.003;

/// Plans that are tried at most, and those of one frontier while none of them is fast enough: what then makes
/// them slow is not in its predictions.
const MOST_TRIED: usize = 10;
const MOST_TOO_SLOW: usize = 4;

/// A frontier, and how much of it was tried.
struct Rung {
    per: ClockPer,
    candidates: Candidates,
    tried: Vec<(Plan, Compared)>,
    /// Whether one of them was not too slow.
    was_fast: bool,
}

/// Says that the instructions of a job without a pipeline are only a part of its steps, if so. What a pipeline does
/// between them is taken for waits.
fn uncovered(baseline: &RecordedTrial) -> Option<String> {
    let rank = baseline.trial.ranks.iter().zip(&baseline.ranks);
    let (rank, recorded) = rank.min_by_key(|(rank, _)| rank.rank)?;
    let has_pipeline = baseline.trial.ranks.iter().any(|other| other.stage != rank.stage);
    let steps = baseline.trial.steps.len() as f64;
    let instructions_s: f64 =
        recorded.rows.iter().map(|row| microbatches::all(row) as f64 * row.time_mean_s).sum();
    let covered = instructions_s / (steps * rank.time_s);
    (!has_pipeline && covered < COVERED).then(|| {
        format!(
            "the instructions of rank {} are {:.0} % of its steps: the rest has no clock of its own, and no part in \
             what is predicted. Report what the GPU computes there as instructions, too, such as optimizer_step",
            rank.rank,
            100.0 * covered
        )
    })
}

impl<B: Bench> Tuning<'_, '_, B> {
    pub(crate) async fn plan(&mut self) -> Result<(Report, Kept), TuneError> {
        let before = match self.may_learn() {
            true => Some(self.recorded_baseline().await?),
            false => None,
        };
        let learned = match &before {
            Some((baseline, _)) => {
                self.look_over(baseline)?;
                self.learned(baseline).await?
            }
            None => None,
        };
        if before.is_some() {
            // A sweep and a calibration hold the job themselves.
            self.subject.let_go().await?;
        }
        let Sourced { csv, name, origin } = match learned {
            Some(learned) => learned,
            None => self.subject.profile(self.order).await?,
        };
        let (profile, odd) = self.treated(&csv)?;
        self.subject.calibrate(&csv).await?;
        let own_order = self.own_order(&profile).await?;
        let (baseline, samples) = match before {
            Some(before) => before,
            None => self.recorded_baseline().await?,
        };
        let microbatches = self.microbatches(&baseline);
        let own_order =
            own_order.filter(|own| microbatches.is_none_or(|m| m == own.num_microbatches()));
        if microbatches.is_none() && own_order.is_none() && self.order.order.is_none() {
            return Err(TuneError::UnknownMicrobatches { job: self.subject.job() });
        }
        let terms = &self.order.terms;
        let delays = self.subject.delays(terms, &profile).await?;
        let pipeline = match &own_order {
            Some(own) => own.pipeline(&profile, delays)?,
            None => {
                let given = (self.order.order.as_deref(), microbatches);
                terms.pipeline(&profile, given, delays)?
            }
        };
        let transfers = self.transfers(&pipeline, &baseline, &samples);
        let pipeline = match transfers.worth_planning_s(&profile) {
            Some(seconds) => pipeline.with_transfer_time(seconds)?,
            None => pipeline,
        };
        let p2p_power = self.subject.planned_power(terms, &baseline, &pipeline).await?;
        let planned_with = PlannedWith {
            profile: name,
            profile_origin: origin,
            p2p_power: p2p_power.clone(),
            late_s: delays.switch_latency_s,
            held_up_s: delays.held_up_s,
            transfer_s: pipeline.delays().transfer_time_s,
            transfers,
            order: own_order.map(|own| own.described),
            odd,
        };
        self.prove(&baseline, pipeline, planned_with).await
    }

    /// Looks at what the job reports, before anything is learned about it.
    ///
    /// # Errors
    /// If it reports no forward.
    fn look_over(&mut self, baseline: &RecordedTrial) -> Result<(), TuneError> {
        if !microbatches::are_reported(baseline) {
            return Err(TuneError::UnknownMicrobatches { job: self.subject.job() });
        }
        if let Some(remark) = uncovered(baseline) {
            self.subject.remark(remark);
        }
        Ok(())
    }

    /// Searches and proves what is found, or tries plans of our frontiers.
    async fn prove(
        &mut self,
        baseline: &RecordedTrial,
        pipeline: Pipeline,
        planned_with: PlannedWith,
    ) -> Result<(Report, Kept), TuneError> {
        let p2p_power = planned_with.p2p_power.clone();
        let found = match self.order.terms.policy {
            System::Pfo => None,
            _ => Some(self.search(baseline, &pipeline, &p2p_power.flat()).await?),
        };
        let max_slowdown = self.order.terms.max_slowdown;
        let apart = self.told_apart(&baseline.trial)?;
        let mut tuned = self.proving(&baseline.trial)?;
        tuned.report.planned_with = Some(planned_with);
        match found {
            Some(found) => try_found(&mut tuned, &found).await?,
            None => {
                let goal = Goal {
                    default_s: tuned.default_s(),
                    max_slowdown,
                    changes_per_second: tuned.subject.changes_per_second().await?,
                    apart,
                };
                try_frontiers(&mut tuned, pipeline, &p2p_power, goal).await?;
            }
        }
        tuned.end().await
    }

    /// The profile, its noise treated, and what is odd in it. What was handed over was looked at before.
    fn treated(&self, csv: &[u8]) -> Result<(Profile, Vec<String>), TuneError> {
        let TuneOrder { terms, profile: given, .. } = self.order;
        let measured = Profile::from_csv_combined(csv, terms.combine)?;
        let treated = terms.noise.treat(&measured);
        let odd = match given {
            None => summarised(&warnings(&measured, &treated.smoothed)),
            Some(_) => Vec::new(),
        };
        Ok((treated.profile, odd))
    }

    /// The order that the job runs, unless one was given.
    async fn own_order(&mut self, profile: &Profile) -> Result<Option<OwnOrder>, TuneError> {
        match self.order.terms.has_open_order(self.order.order.as_deref()) {
            true => self.subject.own_order(profile).await,
            false => Ok(None),
        }
    }

    /// The job at default clocks, with its instructions one by one where they are needed and the clocks of
    /// the ranks' nodes compare.
    async fn recorded_baseline(&mut self) -> Result<(RecordedTrial, Vec<SamplePage>), TuneError> {
        let TuneOrder { terms, order, .. } = self.order;
        let counts = terms.microbatches.is_some() || order.is_some();
        let is_all_given = terms.policy == System::Pfo && !terms.p2p_power_w.is_empty() && counts;
        match self.spans_nodes || is_all_given {
            true => Ok((self.baseline().await?, Vec::new())),
            false => self.baseline_with_samples().await,
        }
    }

    /// The slowdowns that the requested rounds tell apart, by how much steps at default clocks scatter.
    fn told_apart(&self, baseline: &TrialResult) -> Result<f64, TuneError> {
        let window = self.subject.window(baseline)?;
        let (step_s, terms) = (window.time_s(), &self.order.terms);
        let steps = f64::from(terms.turn(step_s).steps);
        let deviation = window.time_sd_s().unwrap_or_default() / step_s / steps.sqrt();
        Ok(deviation * sequence::reach(terms.rounds as usize))
    }

    pub(super) fn microbatches(&self, baseline: &RecordedTrial) -> Option<u32> {
        let terms = &self.order.terms;
        terms.microbatches.or_else(|| microbatches::of_trial(baseline, terms.schedule()))
    }

    /// What is known of how long transfers take.
    fn transfers(
        &self,
        pipeline: &Pipeline,
        baseline: &RecordedTrial,
        samples: &[SamplePage],
    ) -> Transfers {
        if self.order.terms.transfer_s.is_some() {
            Transfers::Given
        } else if self.spans_nodes {
            Transfers::OfSeveralNodes
        } else {
            transfers::of(pipeline, &baseline.trial, samples)
        }
    }

    /// The plan that another policy finds on the job.
    async fn search(
        &mut self,
        baseline: &RecordedTrial,
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
    ) -> Result<Found, TuneError> {
        let zeus = self.zeus(self.subject.window(&baseline.trial)?.time_s());
        let terms = &self.order.terms;
        let length = terms.search_length();
        let search = Search { subject: &mut *self.subject, pipeline, p2p_power, length };
        match terms.policy {
            System::ZeusGlobal => search.zeus(zeus, ZeusSearch::Global).await,
            System::ZeusPerStage => search.zeus(zeus, ZeusSearch::PerStage).await,
            System::Envpipe | System::Pfo => search.envpipe(terms.envpipe()).await,
        }
    }
}

/// The plans of our frontiers, beginning with the one that promises most, as long as one promises
/// more than the best one saves. A driver may make others wait while it sets a clock, even where no
/// clock is late: plans with fewer changes may then keep more of their promise, and what a change
/// costs is learned from those that took longer than predicted. Where the GPUs do not hold their
/// highest clocks, the highest useful ones are measured first, and tried if nothing else is kept.
async fn try_frontiers<B: Bench>(
    tuned: &mut TunedJob<'_, '_, B>,
    mut pipeline: Pipeline,
    power: &PlannedPower,
    goal: Goal,
) -> Result<(), TuneError> {
    let useful = useful_clocks::contender(&pipeline, &power.flat())?;
    if let Some(useful) = &useful {
        let compared = tuned.compare(useful).await?;
        tuned.report.useful_clocks = useful_clocks::of(&pipeline, compared);
    }
    // Where no clock is late, plans that change more promise more; others are for those that break
    // their promise.
    let are_late = pipeline.delays().make_changes_late();
    let (first, mut others) = RUNGS.split_at(if are_late { RUNGS.len() } else { 1 });
    let mut rungs = planned(tuned.subject, &pipeline, power, (first, goal)).await?;
    for _ in 0..MOST_TRIED {
        let Some((rung, candidate)) = most_expected(&mut rungs)? else { break };
        if tuned.best_saving().is_some_and(|best| candidate.expected <= best + WORTH_TRYING) {
            break;
        }
        rung.try_out(tuned, &candidate.plan).await?;
        if let Some(held_up_s) = rung.learned(&pipeline)? {
            pipeline = pipeline.with_delays(Delays { held_up_s, ..pipeline.delays() })?;
            replan(&mut rungs, tuned, &pipeline, power).await?;
        }
        let keeps_promise =
            tuned.best_saving().is_some_and(|best| best >= candidate.expected - KEPT_WITHIN);
        if !keeps_promise && !others.is_empty() {
            let others = mem::take(&mut others);
            rungs.extend(planned(tuned.subject, &pipeline, power, (others, goal)).await?);
        }
    }
    if let Some(useful) = useful.filter(|_| tuned.best_saving().is_none()) {
        tuned.try_out(useful).await?;
    }
    Ok(())
}

/// The frontiers of these.
async fn planned<B: Bench>(
    subject: &mut Subject<'_, B>,
    pipeline: &Pipeline,
    power: &PlannedPower,
    (each, goal): (&[ClockPer], Goal),
) -> Result<Vec<Rung>, TuneError> {
    subject.begin(Phase::Planning, "planning".to_owned());
    let mut rungs = Vec::with_capacity(each.len());
    for &per in each {
        let frontier = match frontier_of(subject, per, pipeline, power).await? {
            // Instructions that were not measured at the same clocks cannot share one.
            Err(PlanError::NoCommonClock) => continue,
            frontier => frontier?,
        };
        let all_max =
            Cost::at_highest_clocks(pipeline.profile(), &frontier.plan(0)?, power.flat())?;
        let candidates = Candidates::new(frontier, all_max, goal);
        rungs.push(Rung { per, candidates, tried: Vec::new(), was_fast: false });
    }
    Ok(rungs)
}

pub(super) async fn frontier_of<B: Bench>(
    subject: &mut Subject<'_, B>,
    per: ClockPer,
    pipeline: &Pipeline,
    power: &PlannedPower,
) -> Result<Result<Frontier, PlanError>, TuneError> {
    let options = Options { spread: Spread::Useful, ..Options::default() };
    let (pipeline, waiting) = (pipeline.clone(), power.waiting());
    let plan = move || Frontier::for_waiting(per, &pipeline, waiting, options, &|_| {});
    subject.compute(plan).await
}

/// Makes the plans again that change clocks, for other delays.
async fn replan<B: Bench>(
    rungs: &mut [Rung],
    tuned: &mut TunedJob<'_, '_, B>,
    pipeline: &Pipeline,
    power: &PlannedPower,
) -> Result<(), TuneError> {
    let now = "planning again with what changes of clocks take".to_owned();
    tuned.subject.begin(Phase::Planning, now);
    for rung in rungs.iter_mut().filter(|rung| rung.per != ClockPer::Stage) {
        rung.replace(frontier_of(tuned.subject, rung.per, pipeline, power).await??, power)?;
    }
    if let Some(planned_with) = &mut tuned.report.planned_with {
        planned_with.held_up_s = pipeline.delays().held_up_s;
    }
    Ok(())
}

/// The candidate that is expected to save most, and its rung; of equals, that of the first.
fn most_expected(rungs: &mut [Rung]) -> Result<Option<(&mut Rung, Candidate)>, PlanError> {
    let mut most: Option<(&mut Rung, Candidate)> = None;
    for rung in rungs {
        if let Some(candidate) = rung.candidates.next()?
            && most.as_ref().is_none_or(|(_, most)| candidate.expected > most.expected)
        {
            most = Some((rung, candidate));
        }
    }
    Ok(most)
}

impl Rung {
    async fn try_out<B: Bench>(
        &mut self,
        tuned: &mut TunedJob<'_, '_, B>,
        plan: &Plan,
    ) -> Result<(), TuneError> {
        let number = self.tried.len() + 1;
        let label = match self.per {
            ClockPer::Instruction => format!("pfo {number}"),
            per @ (ClockPer::Kind | ClockPer::Stage) => format!("pfo {number} per {per}"),
        };
        let (verdict, compared) = match tuned.try_out(Contender::plan(label.clone(), plan)?).await {
            // A plan of fewer changes may leave the driver the time.
            Err(TuneError::NoEnergy { .. }) => {
                tuned.report.unmeasured.push(label);
                self.candidates.exhaust();
                return Ok(());
            }
            tried => tried?,
        };
        match verdict {
            Verdict::Kept => {
                tuned.frontier = Some(self.candidates.frontier().to_bytes()?);
            }
            Verdict::SavesNothing if !self.candidates.slower_saves() => self.candidates.exhaust(),
            Verdict::SavesNothing | Verdict::Undecided | Verdict::TooSlow | Verdict::SavesLess => {}
        }
        self.candidates.observe(plan, &compared);
        self.tried.push((plan.clone(), compared));
        self.was_fast |= verdict != Verdict::TooSlow;
        self.give_up_if_slow();
        Ok(())
    }

    /// For how long a change of clocks held up its stage, if the last plan of this rung has shown that
    /// it is for longer than planned with.
    fn learned(&self, pipeline: &Pipeline) -> Result<Option<f64>, PlanError> {
        let Some((plan, compared)) = self.tried.last() else { return Ok(None) };
        let measured_s = self.candidates.measured_s(compared.slowdown.estimate);
        let learned = held_up::learned(pipeline.profile(), plan, measured_s)?;
        Ok(learned.filter(|&held_up_s| held_up_s > pipeline.delays().held_up_s))
    }

    /// Continues with another frontier, for which what was tried counts as it would have been predicted.
    fn replace(&mut self, frontier: Frontier, power: &PlannedPower) -> Result<(), PlanError> {
        let mut candidates = self.candidates.replaced(frontier);
        let pipeline = candidates.frontier().pipeline().clone();
        for (plan, compared) in &self.tried {
            let mut plan = Plan { delays: pipeline.delays(), ..plan.clone() };
            plan.predicted = Some(replay(pipeline.profile(), &plan, power.waiting())?.into());
            candidates.observe(&plan, compared);
        }
        self.candidates = candidates;
        self.give_up_if_slow();
        Ok(())
    }

    fn give_up_if_slow(&mut self) {
        if !self.was_fast && self.tried.len() >= MOST_TOO_SLOW {
            self.candidates.exhaust();
        }
    }
}

async fn try_found<B: Bench>(
    tuned: &mut TunedJob<'_, '_, B>,
    found: &Found,
) -> Result<(), TuneError> {
    tuned.report.search_trials = found.trials;
    let contender = Contender::plan(tuned.report.policy.clone(), &found.plan)?;
    tuned.try_out(contender).await?;
    Ok(())
}
