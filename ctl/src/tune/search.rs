//! Policies of other systems that search for their clocks on the running job, trial by trial.

use pfo_planner::{
    EnvPipe, Instruction, PerStage, Pipeline, Plan, Reconfiguration, Watts, Zeus, ZeusFound,
    ZeusSearch, ZeusWindow,
};
use pfo_protocol::{RecordedTrial, TrialLength};

use super::instruction_times::InstructionTimes;
use crate::daemons::Agent;
use crate::error::Error;
use crate::planning::plan_file::LabelledPlan;
use crate::trial::{Held, Window};

/// The result of a search.
pub(super) struct Found {
    pub(super) plan: Plan,
    /// Trials that it took.
    pub(super) trials: u32,
}

/// A search on a job that is held.
pub(super) struct Search<'a, 'b> {
    pub(super) held: &'b mut Held<'a, Agent>,
    pub(super) pipeline: &'b Pipeline,
    pub(super) p2p_power: &'b PerStage<Watts>,
    pub(super) length: TrialLength,
}

impl Search<'_, '_> {
    /// EnvPipe's reconfiguration, with a trial in place of each of its steps.
    pub(super) fn envpipe(mut self, envpipe: EnvPipe) -> Result<Found, Error> {
        let mut reconfiguration = Reconfiguration::start(envpipe, self.pipeline, self.p2p_power)?;
        while reconfiguration.end().is_none() {
            let trial = self.run(&reconfiguration.plan(), reconfiguration.rounds())?;
            let times = InstructionTimes::of(&trial.trial, &trial.ranks);
            reconfiguration
                .observe(|stage, instruction, clock| times.mean_s(stage, instruction, Some(clock)));
        }
        Ok(Found { plan: reconfiguration.plan(), trials: reconfiguration.rounds() })
    }

    /// Zeus' search over clocks, with a trial in place of each of its windows.
    pub(super) fn zeus(mut self, zeus: Zeus, search: ZeusSearch) -> Result<Found, Error> {
        let mut trials = 0;
        let (pipeline, p2p_power) = (self.pipeline, self.p2p_power);
        let ZeusFound { mut found, chosen, .. } =
            zeus.search(search, pipeline, p2p_power, &mut |plan| {
                let trial = self.run(plan, trials)?;
                trials += 1;
                self.zeus_window(plan, &trial)
            })?;
        Ok(Found { plan: found.swap_remove(chosen), trials })
    }

    fn zeus_window(&self, plan: &Plan, recorded: &RecordedTrial) -> Result<ZeusWindow, Error> {
        let window = Window::of(self.held.job(), &recorded.trial)?;
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

    fn run(&mut self, plan: &Plan, trials: u32) -> Result<RecordedTrial, Error> {
        self.held.progress().now(format!("searching, trial {}", trials + 1));
        let plan = LabelledPlan::new(format!("search {}", trials + 1), plan)?;
        self.held.trial(&plan.trial(), self.length)
    }
}
