//! Policies of other systems that search for their clocks on the running job, trial by trial.

use pfo_planner::{
    EnvPipe, Instruction, PerStage, Pipeline, Plan, PlanError, Reconfiguration, Watts, Zeus,
    ZeusFound, ZeusSearch, ZeusWindow,
};
use pfo_protocol::{RecordedTrial, TrialLength};

use super::instruction_times::InstructionTimes;
use crate::bench::{Bench, Phase};
use crate::contender::trial_of;
use crate::error::TuneError;
use crate::subject::Subject;

/// The result of a search.
pub(crate) struct Found {
    pub(crate) plan: Plan,
    /// Trials that it took.
    pub(crate) trials: u32,
}

/// A search on a job.
pub(crate) struct Search<'s, 'b, B> {
    pub(crate) subject: &'s mut Subject<'b, B>,
    pub(crate) pipeline: &'s Pipeline,
    pub(crate) p2p_power: &'s PerStage<Watts>,
    pub(crate) length: TrialLength,
}

/// Why a search of Zeus does not go on.
enum Halt {
    /// It has to see this plan first.
    At(Box<Plan>),
    Failed(PlanError),
}

impl From<PlanError> for Halt {
    fn from(error: PlanError) -> Self {
        Self::Failed(error)
    }
}

impl<B: Bench> Search<'_, '_, B> {
    /// EnvPipe's reconfiguration, with a trial in place of each of its steps.
    pub(crate) async fn envpipe(mut self, envpipe: EnvPipe) -> Result<Found, TuneError> {
        let mut reconfiguration = Reconfiguration::start(envpipe, self.pipeline, self.p2p_power)?;
        while reconfiguration.end().is_none() {
            let trial = self.run(&reconfiguration.plan(), reconfiguration.rounds()).await?;
            let times = InstructionTimes::of(&trial.trial, &trial.ranks);
            reconfiguration
                .observe(|stage, instruction, clock| times.mean_s(stage, instruction, Some(clock)));
        }
        Ok(Found { plan: reconfiguration.plan(), trials: reconfiguration.rounds() })
    }

    /// Zeus' search over clocks, with a trial in place of each of its windows. Its next window follows
    /// from those before, so that it is asked for over and over, with one more of them each time.
    pub(crate) async fn zeus(mut self, zeus: Zeus, search: ZeusSearch) -> Result<Found, TuneError> {
        let mut windows: Vec<ZeusWindow> = Vec::new();
        loop {
            let mut known = windows.iter();
            let found = zeus.search(search, self.pipeline, self.p2p_power, &mut |plan| {
                known.next().cloned().ok_or_else(|| Halt::At(Box::new(plan.clone())))
            });
            match found {
                Ok(ZeusFound { mut found, chosen, .. }) => {
                    let plan = found.swap_remove(chosen);
                    return Ok(Found { plan, trials: windows.len() as u32 });
                }
                Err(Halt::Failed(error)) => return Err(error.into()),
                Err(Halt::At(plan)) => {
                    let trial = self.run(&plan, windows.len() as u32).await?;
                    windows.push(self.zeus_window(&plan, &trial)?);
                }
            }
        }
    }

    fn zeus_window(&self, plan: &Plan, recorded: &RecordedTrial) -> Result<ZeusWindow, TuneError> {
        let window = self.subject.window(&recorded.trial)?;
        let times = InstructionTimes::of(&recorded.trial, &recorded.ranks);
        let forward = Instruction::Forward;
        let forward_s = plan.stages.iter().map(|stage| {
            let run = stage.instructions.iter().find(|planned| planned.instruction == forward);
            let clock = run.map(|planned| planned.frequency_mhz)?;
            let profiled = || Some(self.pipeline.profile().at(stage.stage, forward, clock)?.time_s);
            times.mean_s(stage.stage, forward, Some(clock)).or_else(profiled)
        });
        Ok(ZeusWindow {
            iteration_time_s: window.time_s(),
            iteration_energy_j: window.energy_j(),
            forward_s: forward_s.map(|forward_s| forward_s.unwrap_or(0.0)).collect(),
        })
    }

    async fn run(&mut self, plan: &Plan, trials: u32) -> Result<RecordedTrial, TuneError> {
        self.subject.begin(Phase::Search, format!("searching, trial {}", trials + 1));
        let run = trial_of(format!("search {}", trials + 1), plan)?;
        self.subject.trial(&run, self.length).await
    }
}
