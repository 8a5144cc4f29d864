//! Zeus' search over power limits on the running job, trial by trial.

use pfo_planner::{Instruction, Stage, Zeus, ZeusFound, ZeusSearch, ZeusSettings, ZeusWindow};
use pfo_protocol::{GpuName, GpuUuid, Request, Response, TrialLength, TrialResult, TrialRun};
use serde::Serialize;

use super::TuneError;
use super::instruction_times::InstructionTimes;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::trial::{Held, Measuring, Window, patiently};

/// The result of a search.
pub(super) struct FoundLimits {
    /// The limit of each stage, in watts.
    pub(super) limits_w: Vec<u32>,
    pub(super) searched: Vec<Searched>,
}

/// What a step took under the power limits of one trial.
#[derive(Debug, Serialize)]
pub(super) struct Searched {
    power_limits_w: Vec<u32>,
    iteration_time_s: f64,
    iteration_energy_j: f64,
}

/// A search on a job that is held.
pub(super) struct LimitSearch<'a, 'b, D> {
    pub(super) daemons: &'a Daemons,
    pub(super) held: &'b mut Held<'a, D>,
    /// A trial at default clocks, which lists the ranks.
    pub(super) baseline: &'b TrialResult,
    /// How far apart the limits are.
    pub(super) step_w: u32,
    pub(super) length: TrialLength,
}

impl<D: Measuring> LimitSearch<'_, '_, D> {
    /// Searches for the limits of least cost, with a trial in place of each of Zeus' windows.
    pub(super) fn zeus(mut self, zeus: Zeus, search: ZeusSearch) -> Result<FoundLimits, Error> {
        let ranks = &self.baseline.ranks;
        let stages = ranks.iter().map(|rank| rank.stage.index() + 1).max().unwrap_or(0);
        let ranks = ranks.len() as f64;
        let (lowest_w, highest_w) = self.range()?;
        let falling = falling(lowest_w, highest_w, self.step_w);
        let highest = f64::from(highest_w) * ranks;
        let settings = ZeusSettings { falling: &falling, stages, highest };
        let mut searched = Vec::new();
        let ZeusFound { mut found, chosen, .. } =
            zeus.search_settings(search, settings, &mut |limits_w| {
                let window = self.run(limits_w, searched.len() + 1)?;
                searched.push(Searched {
                    power_limits_w: limits_w.to_vec(),
                    iteration_time_s: window.iteration_time_s,
                    iteration_energy_j: window.iteration_energy_j,
                });
                Ok::<_, Error>(window)
            })?;
        Ok(FoundLimits { limits_w: found.swap_remove(chosen), searched })
    }

    /// The power limits that all of the job's GPUs on this node may have, in watts. Other nodes say so if
    /// one of theirs may not have a limit that is tried.
    fn range(&self) -> Result<(u32, u32), Error> {
        let here = patiently(self.held.progress(), || Ok(self.daemons.pfod()?.status()?.gpus))?;
        let is_here = |uuid: &GpuUuid| here.iter().any(|gpu| gpu.uuid == *uuid);
        let mut common = None;
        for rank in self.baseline.ranks.iter().filter(|rank| is_here(&rank.gpu_uuid)) {
            let gpu = GpuName::Uuid(rank.gpu_uuid.clone());
            let (lowest_w, highest_w) = self.range_of(&gpu)?;
            let (lowest, highest) = common.unwrap_or((lowest_w, highest_w));
            common = Some((lowest_w.max(lowest), highest_w.min(highest)));
        }
        let job = || self.held.job().clone();
        match common {
            Some((lowest, highest)) if lowest <= highest => Ok((lowest, highest)),
            Some((lowest, highest)) => {
                Err(TuneError::NoCommonLimit { job: job(), lowest, highest }.into())
            }
            None => Err(TuneError::NoGpuHere { job: job() }.into()),
        }
    }

    fn range_of(&self, gpu: &GpuName) -> Result<(u32, u32), Error> {
        patiently(self.held.progress(), || {
            let mut pfod = self.daemons.pfod()?;
            match pfod.ask(Request::PowerLimits(gpu.clone()))? {
                Response::PowerLimits { lowest_w, highest_w } => Ok((lowest_w, highest_w)),
                other => Err(pfod.unexpected(&other).into()),
            }
        })
    }

    fn run(&mut self, limits_w: &[u32], number: usize) -> Result<ZeusWindow, Error> {
        self.held.progress().now(format!("searching, trial {number}"));
        let (label, limits_w) = (format!("search {number}"), limits_w.to_vec());
        let stages = 0..limits_w.len() as u16;
        let trial = self.held.trial(&TrialRun::PowerLimits { label, limits_w }, self.length)?;
        let window = Window::of(self.held.job(), D::windows(&trial))?;
        let times = InstructionTimes::of(D::windows(&trial), D::recorded(&trial));
        let forward_s = |stage| times.mean_s(Stage(stage), Instruction::Forward, None);
        Ok(ZeusWindow {
            iteration_time_s: window.time_s(),
            iteration_energy_j: window.energy_j(),
            forward_s: stages.map(|stage| forward_s(stage).unwrap_or(0.0)).collect(),
        })
    }
}

/// From the highest on, and none below the lowest.
fn falling(lowest_w: u32, highest_w: u32, step_w: u32) -> Vec<u32> {
    let steps = (highest_w - lowest_w) / step_w;
    (0..=steps).map(|step| highest_w - step * step_w).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_fall_from_the_highest_and_not_below_the_lowest() {
        assert_eq!(falling(100, 200, 25), [200, 175, 150, 125, 100]);
        assert_eq!(falling(101, 166, 25), [166, 141, 116]);
        assert_eq!(falling(300, 300, 25), [300]);
    }
}
