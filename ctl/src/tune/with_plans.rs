//! Tuning with plans over a profile.
//!
//! Microbatches, waits and the searches of other systems require a look at instructions, which the
//! agent records before the proof. If a command gives the first two itself and searches nothing, no
//! agent is asked.

use std::mem;

use pfo_planner::{
    ClockPer, Delays, Frontier, Options, PerStage, Pipeline, Plan, PlanError, Reconfigure, Spread,
    Watts, ZeusSearch, replay,
};
use pfo_protocol::{RecordedTrial, SamplePage};

use super::candidates::{Candidate, Candidates, Goal};
use super::contender::Contender;
use super::held_up;
use super::planned_power::PlannedPower;
use super::profile_source::Sourced;
use super::report::{PlannedWith, Report};
use super::search::{Found, Search};
use super::transfers::Transfers;
use super::tuned_job::TunedJob;
use super::useful_clocks::{self, UsefulClocks};
use super::verification::{Compared, Verdict};
use super::{Policy, Raising, Tune, TuneError, microbatches};
use crate::daemons::{Agent, Daemons};
use crate::error::Error;
use crate::planning::comparison::Cost;
use crate::planning::measured::Measured;
use crate::trial::{Held, Interrupt, Measuring, TrialError, Window};

/// What has a clock of its own in the plans that are tried. Those that never change a clock come before
/// those that change it less often, for nothing that a driver does can make them slower.
const RUNGS: [ClockPer; 3] = [ClockPer::Instruction, ClockPer::Stage, ClockPer::Kind];

/// By how much more a plan has to be expected to save than the best one does, for it to be tried, as a
/// share of the energy at default clocks.
const WORTH_TRYING: f64 = 0.0015;

/// A plan that saves less than it promised by more than this share breaks its promise.
const KEPT_WITHIN: f64 = 0.003;

/// Plans that are tried at most.
const MOST_TRIED: usize = 10;

/// A frontier, and how much of it was tried.
struct Rung {
    per: ClockPer,
    candidates: Candidates,
    tried: Vec<(Plan, Compared)>,
}

/// A job that the agent holds, and what it recorded at default clocks.
pub(super) struct Recording<'a> {
    pub(super) held: Held<'a, Agent>,
    pub(super) baseline: RecordedTrial,
    /// Its instructions one by one; none if the clocks of the ranks' nodes do not compare.
    samples: Vec<SamplePage>,
}

impl Tune {
    pub(super) fn plan<D: Measuring>(
        &self,
        daemons: &Daemons,
        interrupt: &Interrupt,
        spans_nodes: bool,
    ) -> Result<Report, Error> {
        let Sourced { csv, name, origin } = self.profile.get(daemons, &self.job, interrupt)?;
        let Measured { profile, .. } = self.treatment.of(&csv, &name)?;
        self.calibrate(daemons, interrupt, &csv)?;
        let own_order = self.own_order(daemons, interrupt, &profile)?;
        let mut recording = self.record(daemons, interrupt, spans_nodes)?;
        let baseline = recording.as_ref().map(|recording| &recording.baseline);
        let microbatches = self.microbatches.or_else(|| {
            baseline.and_then(|trial| microbatches::of_trial(trial, self.schedule.schedule()))
        });
        let own_order =
            own_order.filter(|own| microbatches.is_none_or(|m| m == own.num_microbatches()));
        if microbatches.is_none() && own_order.is_none() && !self.schedule.has_order() {
            return Err(TuneError::UnknownMicrobatches { job: self.job.name().clone() }.into());
        }
        let delays = self.delays(daemons, &profile)?;
        let pipeline = match &own_order {
            Some(own) => own.pipeline(&profile, delays)?,
            None => self.schedule.of(&profile, microbatches, delays)?,
        };
        let transfers = self.transfers(&pipeline, recording.as_ref(), spans_nodes);
        let pipeline = match transfers.worth_planning_s(&profile) {
            Some(seconds) => pipeline.with_transfer_time(seconds)?,
            None => pipeline,
        };
        let p2p_power = self.planned_power(daemons, recording.as_ref(), &pipeline)?;
        let power = p2p_power.flat();
        let found = match &mut recording {
            Some(recording) if self.policy != Policy::Pfo => {
                Some(self.search(recording, &pipeline, &power)?)
            }
            _ => None,
        };
        if let Some(recording) = &mut recording {
            recording.held.let_go()?;
        }
        let baseline = recording.map(|recording| recording.baseline.trial);
        let mut tuned: TunedJob<D> = self.hold(daemons, interrupt, baseline)?;
        let planned_with = PlannedWith {
            profile: name,
            profile_origin: origin,
            p2p_power: p2p_power.clone(),
            late_s: delays.switch_latency_s,
            held_up_s: delays.held_up_s,
            transfer_s: pipeline.delays().transfer_time_s,
            transfers,
            order: own_order.map(|own| own.described),
        };
        tuned.report.planned_with = Some(planned_with);
        match found {
            Some(found) => try_found(&mut tuned, &found)?,
            None => {
                let goal = Goal {
                    default_s: tuned.default_s(),
                    max_slowdown: self.max_slowdown.0,
                    changes_per_second: self.changes_per_second(daemons)?,
                };
                try_frontiers(&mut tuned, pipeline, &p2p_power, goal)?;
            }
        }
        tuned.end()
    }

    /// What is known of how long transfers take.
    fn transfers(
        &self,
        pipeline: &Pipeline,
        recording: Option<&Recording<'_>>,
        spans_nodes: bool,
    ) -> Transfers {
        match recording {
            _ if !self.schedule.has_no_transfers() => Transfers::Given,
            Some(_) if spans_nodes => Transfers::OfSeveralNodes,
            Some(Recording { baseline, samples, .. }) => {
                Transfers::of(pipeline, &baseline.trial, samples)
            }
            None => Transfers::Unknown,
        }
    }

    fn needs_recording(&self) -> bool {
        let counts = self.microbatches.is_some() || self.schedule.has_order();
        self.policy != Policy::Pfo || self.p2p_power.is_none() || !counts
    }

    /// What the job does at default clocks, if that has to be known.
    fn record<'a>(
        &'a self,
        daemons: &'a Daemons,
        interrupt: &Interrupt,
        spans_nodes: bool,
    ) -> Result<Option<Recording<'a>>, Error> {
        if !self.needs_recording() {
            return Ok(None);
        }
        let what = "measuring default clocks";
        let mut held: Held<Agent> = Held::new(daemons, &self.job, interrupt.clone(), what)?;
        let (baseline, samples) = match spans_nodes {
            true => (self.baseline(&mut held)?, Vec::new()),
            false => self.baseline_with_samples(&mut held)?,
        };
        Ok(Some(Recording { held, baseline, samples }))
    }

    /// The plan that another policy finds on the job.
    fn search(
        &self,
        recording: &mut Recording,
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
    ) -> Result<Found, Error> {
        let Recording { held, baseline, .. } = recording;
        let default_s = Window::of(self.job.name(), &baseline.trial)?.time_s();
        let search = Search { held, pipeline, p2p_power, length: self.search_length() };
        match self.policy {
            Policy::ZeusGlobal => search.zeus(self.zeus(default_s), ZeusSearch::Global),
            Policy::ZeusPerStage => search.zeus(self.zeus(default_s), ZeusSearch::PerStage),
            Policy::Envpipe | Policy::Pfo => {
                let mut envpipe = self.online.envpipe();
                envpipe.reconfigure = match self.reconfigure {
                    Raising::Greedy => Reconfigure::Greedy,
                    Raising::Balanced => Reconfigure::Balanced,
                };
                search.envpipe(envpipe)
            }
        }
    }
}

/// The plans of our frontiers, beginning with the one that promises most, as long as one promises
/// more than the best one saves. A driver may make others wait while it sets a clock, even where no
/// clock is late: plans with fewer changes may then keep more of their promise, and what a change
/// costs is learned from those that took longer than predicted. Where the GPUs do not hold their
/// highest clocks, the highest useful ones are measured first, and tried if nothing else is kept.
fn try_frontiers<D: Measuring>(
    tuned: &mut TunedJob<D>,
    mut pipeline: Pipeline,
    power: &PlannedPower,
    goal: Goal,
) -> Result<(), Error> {
    let useful = useful_clocks::contender(&pipeline, &power.flat())?;
    if let Some(useful) = &useful {
        let compared = tuned.compare(useful)?;
        tuned.report.useful_clocks = UsefulClocks::of(&pipeline, compared);
    }
    // Where no clock is late, plans that change more promise more; others are for those that break
    // their promise.
    let are_late = pipeline.delays().make_changes_late();
    let (first, mut others) = RUNGS.split_at(if are_late { RUNGS.len() } else { 1 });
    let mut rungs = planned(tuned, &pipeline, power, (first, goal))?;
    for _ in 0..MOST_TRIED {
        let Some((rung, candidate)) = most_expected(&mut rungs)? else { break };
        if tuned.best_saving().is_some_and(|best| candidate.expected <= best + WORTH_TRYING) {
            break;
        }
        rung.try_out(tuned, &candidate.plan)?;
        if let Some(held_up_s) = rung.learned(&pipeline)? {
            pipeline = pipeline.with_delays(Delays { held_up_s, ..pipeline.delays() })?;
            replan(&mut rungs, tuned, &pipeline, power)?;
        }
        let keeps_promise =
            tuned.best_saving().is_some_and(|best| best >= candidate.expected - KEPT_WITHIN);
        if !keeps_promise && !others.is_empty() {
            let others = mem::take(&mut others);
            rungs.extend(planned(tuned, &pipeline, power, (others, goal))?);
        }
    }
    if let Some(useful) = useful.filter(|_| tuned.best_saving().is_none()) {
        tuned.try_out(useful)?;
    }
    Ok(())
}

/// The frontiers of these.
fn planned<D: Measuring>(
    tuned: &TunedJob<D>,
    pipeline: &Pipeline,
    power: &PlannedPower,
    (each, goal): (&[ClockPer], Goal),
) -> Result<Vec<Rung>, Error> {
    let progress = tuned.held.progress();
    progress.now("planning".to_owned());
    let mut rungs = Vec::with_capacity(each.len());
    for (number, &per) in each.iter().enumerate() {
        let show = |done| progress.show((number as f64 + done) / each.len() as f64);
        let frontier = match frontier_of(per, pipeline, power, &show) {
            // Instructions that were not measured at the same clocks cannot share one.
            Err(PlanError::NoCommonClock) => continue,
            frontier => frontier?,
        };
        let all_max =
            Cost::at_highest_clocks(pipeline.profile(), &frontier.plan(0)?, power.flat())?;
        let candidates = Candidates::new(frontier, all_max, goal);
        rungs.push(Rung { per, candidates, tried: Vec::new() });
    }
    Ok(rungs)
}

fn frontier_of(
    per: ClockPer,
    pipeline: &Pipeline,
    power: &PlannedPower,
    show: &(dyn Fn(f64) + Sync),
) -> Result<Frontier, PlanError> {
    let options = Options { spread: Spread::Useful, ..Options::default() };
    Frontier::for_waiting(per, pipeline, power.waiting(), options, show)
}

/// Makes the plans again that change clocks, for other delays.
fn replan<D: Measuring>(
    rungs: &mut [Rung],
    tuned: &mut TunedJob<D>,
    pipeline: &Pipeline,
    power: &PlannedPower,
) -> Result<(), Error> {
    let progress = tuned.held.progress();
    progress.now("planning again with what changes of clocks take".to_owned());
    for rung in rungs.iter_mut().filter(|rung| rung.per != ClockPer::Stage) {
        let show = |done| progress.show(done);
        rung.replace(frontier_of(rung.per, pipeline, power, &show)?, power)?;
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
    fn try_out<D: Measuring>(&mut self, tuned: &mut TunedJob<D>, plan: &Plan) -> Result<(), Error> {
        let number = self.tried.len() + 1;
        let label = match self.per {
            ClockPer::Instruction => format!("pfo {number}"),
            per @ (ClockPer::Kind | ClockPer::Stage) => format!("pfo {number} per {per}"),
        };
        let (verdict, compared) = match tuned.try_out(Contender::plan(label.clone(), plan)?) {
            // A plan of fewer changes may leave the driver the time.
            Err(Error::Trial(TrialError::NoEnergy { .. })) => {
                tuned.report.unmeasured.push(label);
                self.candidates.exhaust();
                return Ok(());
            }
            tried => tried?,
        };
        match verdict {
            Verdict::Kept => {
                tuned.report.frontier = Some(self.candidates.frontier().to_bytes()?);
            }
            Verdict::SavesNothing if !self.candidates.slower_saves() => self.candidates.exhaust(),
            Verdict::SavesNothing | Verdict::TooSlow | Verdict::SavesLess => (),
        }
        self.candidates.observe(plan, &compared);
        self.tried.push((plan.clone(), compared));
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
        Ok(())
    }
}

fn try_found<D: Measuring>(tuned: &mut TunedJob<D>, found: &Found) -> Result<(), Error> {
    tuned.report.search_trials = found.trials;
    let contender = Contender::plan(tuned.report.policy.clone(), &found.plan)?;
    tuned.try_out(contender)?;
    Ok(())
}
