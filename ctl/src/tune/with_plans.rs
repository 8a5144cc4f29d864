//! Tuning with plans over a profile.
//!
//! Microbatches, waits and the searches of other systems require a look at instructions, which the
//! agent records before the proof. If a command gives the first two itself and searches nothing, no
//! agent is asked.

use std::mem;

use pfo_planner::{
    ClockPer, Frontier, Options, PerStage, Pipeline, Plan, PlanError, Reconfigure, Spread, Watts,
    ZeusSearch,
};
use pfo_protocol::RecordedTrial;

use super::candidates::{self, Candidate, Candidates, Goal};
use super::contender::Contender;
use super::planned_power::PlannedPower;
use super::profile_source::Sourced;
use super::report::{PlannedWith, Report};
use super::search::{Found, Search};
use super::tuned_job::TunedJob;
use super::useful_clocks::{self, UsefulClocks};
use super::verification::Verdict;
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
const WORTH_TRYING: f64 = 0.005;

/// Plans that are tried at most.
const MOST_TRIED: usize = 10;

/// A frontier, and how much of it was tried.
struct Rung {
    per: ClockPer,
    candidates: Candidates,
    tried: usize,
}

/// A job that the agent holds, and what it recorded at default clocks.
pub(super) struct Recording<'a> {
    pub(super) held: Held<'a, Agent>,
    pub(super) baseline: RecordedTrial,
}

impl Tune {
    pub(super) fn plan<D: Measuring>(
        &self,
        daemons: &Daemons,
        interrupt: &Interrupt,
    ) -> Result<Report, Error> {
        let Sourced { csv, name, origin } = self.profile.get(daemons, &self.job, interrupt)?;
        let Measured { profile, .. } = self.treatment.of(&csv, &name)?;
        self.calibrate(daemons, interrupt, &csv)?;
        let mut recording = match self.needs_recording() {
            true => Some(self.record(daemons, interrupt)?),
            false => None,
        };
        let baseline = recording.as_ref().map(|recording| &recording.baseline);
        let microbatches = self.microbatches.or_else(|| baseline.and_then(microbatches::of_trial));
        if microbatches.is_none() && !self.schedule.has_order() {
            return Err(TuneError::UnknownMicrobatches { job: self.job.name().clone() }.into());
        }
        let delays = self.delays(daemons, &profile)?;
        let pipeline = self.schedule.of(&profile, microbatches, delays)?;
        let late_s = delays.switch_latency_s;
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
            late_s,
        };
        tuned.report.planned_with = Some(planned_with);
        match found {
            Some(found) => try_found(&mut tuned, &found)?,
            None => self.try_frontiers(&mut tuned, &pipeline, &p2p_power, late_s)?,
        }
        tuned.end()
    }

    fn needs_recording(&self) -> bool {
        let counts = self.microbatches.is_some() || self.schedule.has_order();
        self.policy != Policy::Pfo || self.p2p_power.is_none() || !counts
    }

    fn record<'a>(
        &'a self,
        daemons: &'a Daemons,
        interrupt: &Interrupt,
    ) -> Result<Recording<'a>, Error> {
        let what = "measuring default clocks";
        let mut held: Held<Agent> = Held::new(daemons, &self.job, interrupt.clone(), what)?;
        let baseline = self.baseline(&mut held)?;
        Ok(Recording { held, baseline })
    }

    /// The plan that another policy finds on the job.
    fn search(
        &self,
        recording: &mut Recording,
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
    ) -> Result<Found, Error> {
        let Recording { held, baseline } = recording;
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

    /// The plans of our frontiers, beginning with the one that promises most, as long as one promises
    /// more than the best one saves. A driver may make others wait while it sets a clock, even where no
    /// clock is late: plans with fewer changes may then keep more of their promise. Where the GPUs do
    /// not hold their highest clocks, the highest useful ones are measured first, and tried if nothing
    /// else is kept.
    fn try_frontiers<D: Measuring>(
        &self,
        tuned: &mut TunedJob<D>,
        pipeline: &Pipeline,
        power: &PlannedPower,
        late_s: f64,
    ) -> Result<(), Error> {
        let useful = useful_clocks::contender(pipeline, &power.flat())?;
        if let Some(useful) = &useful {
            let compared = tuned.compare(useful)?;
            tuned.report.useful_clocks = UsefulClocks::of(pipeline, compared);
        }
        // Where no clock is late, plans that change more promise more; others are for those that break
        // their promise.
        let (first, mut others) = RUNGS.split_at(if late_s > 0.0 { RUNGS.len() } else { 1 });
        let mut rungs = self.planned(tuned, pipeline, power, first)?;
        for _ in 0..MOST_TRIED {
            let Some((rung, candidate)) = most_expected(&mut rungs)? else { break };
            if tuned.best_saving().is_some_and(|best| candidate.expected <= best + WORTH_TRYING) {
                break;
            }
            rung.try_out(tuned, &candidate.plan)?;
            let keeps_promise =
                tuned.best_saving().is_some_and(|best| best >= candidate.expected - WORTH_TRYING);
            if !keeps_promise && !others.is_empty() {
                rungs.extend(self.planned(tuned, pipeline, power, mem::take(&mut others))?);
            }
        }
        if let Some(useful) = useful.filter(|_| tuned.best_saving().is_none()) {
            tuned.try_out(useful)?;
        }
        Ok(())
    }

    /// The frontiers of these.
    fn planned<D: Measuring>(
        &self,
        tuned: &TunedJob<D>,
        pipeline: &Pipeline,
        power: &PlannedPower,
        each: &[ClockPer],
    ) -> Result<Vec<Rung>, Error> {
        let progress = tuned.held.progress();
        progress.now("planning".to_owned());
        let options = Options { spread: Spread::Useful, ..Options::default() };
        let goal =
            Goal { default_s: tuned.default_s(), slowdown: candidates::aim(self.max_slowdown.0) };
        let mut rungs = Vec::with_capacity(each.len());
        for (number, &per) in each.iter().enumerate() {
            let show = |done| progress.show((number as f64 + done) / each.len() as f64);
            let frontier =
                match Frontier::for_waiting(per, pipeline, power.waiting(), options, &show) {
                    // Instructions that were not measured at the same clocks cannot share one.
                    Err(PlanError::NoCommonClock) => continue,
                    frontier => frontier?,
                };
            let all_max =
                Cost::at_highest_clocks(pipeline.profile(), &frontier.plan(0)?, power.flat())?;
            rungs.push(Rung {
                per,
                candidates: Candidates::new(frontier, all_max, goal),
                tried: 0,
            });
        }
        Ok(rungs)
    }
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
        self.tried += 1;
        let label = match self.per {
            ClockPer::Instruction => format!("pfo {}", self.tried),
            per @ (ClockPer::Kind | ClockPer::Stage) => format!("pfo {} per {per}", self.tried),
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
            Verdict::SavesNothing => self.candidates.exhaust(),
            Verdict::TooSlow | Verdict::SavesLess => (),
        }
        self.candidates.observe(plan, &compared);
        Ok(())
    }
}

fn try_found<D: Measuring>(tuned: &mut TunedJob<D>, found: &Found) -> Result<(), Error> {
    tuned.report.search_trials = found.trials;
    let contender = Contender::plan(tuned.report.policy.clone(), &found.plan)?;
    tuned.try_out(contender)?;
    Ok(())
}
