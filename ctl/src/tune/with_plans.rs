//! Tuning with plans over a profile.
//!
//! Microbatches, waits and the searches of other systems require a look at instructions, which the
//! agent records before the proof. If a command gives the first two itself and searches nothing, no
//! agent is asked.

use pfo_planner::{Frontier, Options, Pipeline, Reconfigure, Spread, Watts, ZeusSearch};
use pfo_protocol::{RecordedTrial, TrialRun};

use super::candidates::{self, Candidates};
use super::contender::Contender;
use super::profile_source::Sourced;
use super::report::{PlannedPower, PlannedWith, PowerOrigin, Report};
use super::search::{Found, Search};
use super::tuned_job::TunedJob;
use super::useful_clocks::{self, UsefulClocks};
use super::verification::Verdict;
use super::{Policy, Raising, Tune, TuneError, microbatches, p2p_power};
use crate::daemons::{Agent, Daemons};
use crate::error::Error;
use crate::p2p::known::{self, Known};
use crate::planning::comparison::Cost;
use crate::planning::measured::Measured;
use crate::trial::{Held, Interrupt, Window, patiently};

/// Plans that are tried, each faster than the one before, until the job is left at default clocks.
const MOST_CANDIDATES: usize = 5;

/// A job that the agent holds, and what it recorded at default clocks.
struct Recording<'a> {
    held: Held<'a, Agent>,
    baseline: RecordedTrial,
}

impl Tune {
    pub(super) fn plan(&self, daemons: &Daemons, interrupt: &Interrupt) -> Result<Report, Error> {
        let Sourced { csv, name, origin } = self.profile.get(daemons, &self.job, interrupt)?;
        let Measured { profile, .. } = self.treatment.of(&csv, &name)?;
        let mut recording = match self.needs_recording() {
            true => Some(self.record(daemons, interrupt)?),
            false => None,
        };
        let baseline = recording.as_ref().map(|recording| &recording.baseline);
        let microbatches = self.microbatches.or_else(|| baseline.and_then(microbatches::of_trial));
        if microbatches.is_none() && !self.schedule.has_order() {
            return Err(TuneError::UnknownMicrobatches { job: self.job.name().clone() }.into());
        }
        let pipeline = self.schedule.of(&profile, microbatches)?;
        let p2p_power = self.planned_power(daemons, recording.as_ref())?;
        let power = Watts(p2p_power.watts);
        let found = match &mut recording {
            Some(recording) if self.policy != Policy::Pfo => {
                Some(self.search(recording, &pipeline, power)?)
            }
            _ => None,
        };
        if let Some(recording) = &mut recording {
            recording.held.let_go()?;
        }
        let baseline = recording.map(|recording| recording.baseline.trial);
        let mut tuned = self.hold(daemons, interrupt, baseline)?;
        tuned.report.planned_with =
            Some(PlannedWith { profile: name, profile_origin: origin, p2p_power });
        match found {
            Some(found) => try_found(&mut tuned, &found)?,
            None => self.try_frontier(&mut tuned, &pipeline, power)?,
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
        let baseline = held.trial(&TrialRun::DefaultClocks, self.turn())?;
        Ok(Recording { held, baseline })
    }

    fn planned_power(
        &self,
        daemons: &Daemons,
        recording: Option<&Recording>,
    ) -> Result<PlannedPower, Error> {
        if let Some(Watts(watts)) = self.p2p_power {
            return Ok(PlannedPower { watts, origin: PowerOrigin::Given });
        }
        let no_waits = || TuneError::NoWaits { job: self.job.name().clone() };
        let Recording { held, baseline } = recording.ok_or_else(no_waits)?;
        let model = baseline.trial.ranks.first().map(|rank| rank.gpu_model.as_str());
        let known = patiently(held.progress(), || known::of(&mut daemons.agent()?, model))?;
        if let Some(Known { power_w: watts, origin }) = known {
            return Ok(PlannedPower { watts, origin: PowerOrigin::Stored(origin) });
        }
        let Watts(watts) = p2p_power::of_waits(baseline).ok_or_else(no_waits)?;
        Ok(PlannedPower { watts, origin: PowerOrigin::Waits })
    }

    /// The plan that another policy finds on the job.
    fn search(
        &self,
        recording: &mut Recording,
        pipeline: &Pipeline,
        p2p_power: Watts,
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

    /// The plans of our frontier, as long as they prove too slow. Where the GPUs do not hold their
    /// highest clocks, the highest useful ones are measured first, and tried if nothing else is kept.
    fn try_frontier(
        &self,
        tuned: &mut TunedJob,
        pipeline: &Pipeline,
        power: Watts,
    ) -> Result<(), Error> {
        let progress = tuned.held.progress();
        progress.now("planning".to_owned());
        let options = Options { spread: Spread::Useful, ..Options::default() };
        let frontier = Frontier::optimize(pipeline, power, options, &|done| progress.show(done))?;
        let default_s = tuned.default_s();
        let slowdown = candidates::aim(self.max_slowdown.0);
        let all_max = Cost::at_highest_clocks(pipeline.profile(), &frontier.plan(0)?, power)?;
        let useful = useful_clocks::contender(pipeline, power)?;
        if let Some(useful) = &useful {
            let compared = tuned.compare(useful)?;
            tuned.report.useful_clocks = UsefulClocks::of(pipeline, compared);
        }
        let mut candidates =
            Candidates::new(&frontier, all_max.iteration_time_s, default_s, slowdown);
        let mut over_s = 0.0;
        for number in 1..=MOST_CANDIDATES {
            let Some(plan) = candidates.next(over_s)? else { break };
            match tuned.try_out(&Contender::plan(format!("pfo {number}"), &plan)?)? {
                (Verdict::TooSlow, compared) => {
                    over_s = (compared.slowdown.estimate - slowdown) * default_s;
                }
                _ => break,
            }
        }
        if let (None, Some(useful)) = (&tuned.report.kept, useful) {
            tuned.try_out(&useful)?;
        }
        Ok(())
    }
}

fn try_found(tuned: &mut TunedJob, found: &Found) -> Result<(), Error> {
    tuned.report.search_trials = found.trials;
    let contender = Contender::plan(tuned.report.policy.clone(), &found.plan)?;
    tuned.try_out(&contender)?;
    Ok(())
}
