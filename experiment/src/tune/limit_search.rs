//! Zeus' search over power limits on the running job, trial by trial.

use pfo_planner::{Instruction, Stage, Zeus, ZeusFound, ZeusSearch, ZeusSettings, ZeusWindow};
use pfo_protocol::{GpuName, GpuUuid, Request, Response, TrialLength, TrialResult, TrialRun};

use super::instruction_times::InstructionTimes;
use crate::bench::{Bench, Phase};
use crate::error::TuneError;
use crate::report::Searched;
use crate::subject::{Subject, unexpected};

/// The result of a search.
pub(crate) struct FoundLimits {
    /// The limit of each stage, in watts.
    pub(crate) limits_w: Vec<u32>,
    pub(crate) searched: Vec<Searched>,
}

/// A search on a job.
pub(crate) struct LimitSearch<'s, 'b, B> {
    pub(crate) subject: &'s mut Subject<'b, B>,
    /// A trial at default clocks, which lists the ranks.
    pub(crate) baseline: &'s TrialResult,
    /// How far apart the limits are.
    pub(crate) step_w: u32,
    pub(crate) length: TrialLength,
}

impl<B: Bench> LimitSearch<'_, '_, B> {
    /// Searches for the limits of least cost, with a trial in place of each of Zeus' windows. Its next
    /// window follows from those before, so that it is asked for over and over, with one more of them
    /// each time.
    pub(crate) async fn zeus(
        mut self,
        zeus: Zeus,
        search: ZeusSearch,
    ) -> Result<FoundLimits, TuneError> {
        let ranks = &self.baseline.ranks;
        let stages = ranks.iter().map(|rank| rank.stage.index() + 1).max().unwrap_or(0);
        let ranks = ranks.len() as f64;
        let (lowest_w, highest_w) = self.range().await?;
        let falling = falling(lowest_w, highest_w, self.step_w);
        let highest = f64::from(highest_w) * ranks;
        let mut windows: Vec<ZeusWindow> = Vec::new();
        let mut searched = Vec::new();
        loop {
            let mut known = windows.iter();
            let settings = ZeusSettings { falling: &falling, stages, highest };
            let found = zeus.search_settings(search, settings, &mut |limits_w: &[u32]| {
                known.next().cloned().ok_or_else(|| limits_w.to_vec())
            });
            let limits_w = match found {
                Ok(ZeusFound { mut found, chosen, .. }) => {
                    return Ok(FoundLimits { limits_w: found.swap_remove(chosen), searched });
                }
                Err(limits_w) => limits_w,
            };
            let window = self.run(&limits_w, searched.len() + 1).await?;
            searched.push(Searched {
                power_limits_w: limits_w,
                iteration_time_s: window.iteration_time_s,
                iteration_energy_j: window.iteration_energy_j,
            });
            windows.push(window);
        }
    }

    /// The power limits that all of the job's GPUs on this node may have, in watts. Other nodes say so if
    /// one of theirs may not have a limit that is tried.
    async fn range(&mut self) -> Result<(u32, u32), TuneError> {
        let here = self.subject.status().await?.gpus;
        let is_here = |uuid: &GpuUuid| here.iter().any(|gpu| gpu.uuid == *uuid);
        let mut common = None;
        for rank in self.baseline.ranks.iter().filter(|rank| is_here(&rank.gpu_uuid)) {
            let gpu = GpuName::Uuid(rank.gpu_uuid.clone());
            let (lowest_w, highest_w) = match self.subject.pfod(Request::PowerLimits(gpu)).await? {
                Response::PowerLimits { lowest_w, highest_w } => (lowest_w, highest_w),
                other => return Err(unexpected(&other)),
            };
            let (lowest, highest) = common.unwrap_or((lowest_w, highest_w));
            common = Some((lowest_w.max(lowest), highest_w.min(highest)));
        }
        let job = self.subject.job();
        match common {
            Some((lowest, highest)) if lowest <= highest => Ok((lowest, highest)),
            Some((lowest, highest)) => Err(TuneError::NoCommonLimit { job, lowest, highest }),
            None => Err(TuneError::NoGpuHere { job }),
        }
    }

    async fn run(&mut self, limits_w: &[u32], number: usize) -> Result<ZeusWindow, TuneError> {
        self.subject.begin(Phase::Search, format!("searching, trial {number}"));
        let (label, limits_w) = (format!("search {number}"), limits_w.to_vec());
        let stages = 0..limits_w.len() as u16;
        let run = TrialRun::PowerLimits { label, limits_w };
        let trial = self.subject.trial(&run, self.length).await?;
        let window = self.subject.window(&trial.trial)?;
        let times = InstructionTimes::of(&trial.trial, &trial.ranks);
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
    let steps = highest_w.saturating_sub(lowest_w) / step_w.max(1);
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
