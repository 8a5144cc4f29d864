//! The part of a job that is on this node, as `pfod` has it.

use std::collections::BTreeMap;
use std::sync::Arc;

use pfo_fleet::{Degrees, Gpus, Place, Run, Runs, Seen, SwapAnswer};
use pfo_protocol::{
    JobSelector, JobView, Mhz, PlanStatus, RankPosition, RankWindow, Refusal, Request, Response,
    Stage, SwapTarget,
};
use pfo_store::{LocalJob, Slices, digest_of};

use super::part::part_of;
use super::slices::{slice_of, table_of};
use crate::job::{JobKey, check_free};
use crate::pfod::{Asker, Pfod, PfodError, Questions, unexpected};
use crate::record::observe;
use crate::sweep::allowed_clocks;

/// A job of this node.
#[derive(Debug)]
pub(super) struct NodeJob {
    pub(super) pfod: Pfod,
    pub(super) questions: Arc<Questions>,
    pub(super) key: JobKey,
}

impl NodeJob {
    /// Asks as the job's owner: what comes from the store may do no more than its owner may.
    async fn change(
        &self,
        request: impl FnOnce(JobSelector) -> Request,
    ) -> Result<Response, PfodError> {
        let asker = Asker { uid: self.key.uid, pid: None, administrator: false };
        self.pfod.on_behalf(asker).await?.ask(request(self.key.selector())).await
    }

    async fn seen(&self) -> Result<Option<Seen>, PfodError> {
        let jobs = self.questions.jobs().await?;
        let Some(job) = jobs.iter().find(|job| JobKey::of(job) == self.key) else {
            return Ok(None);
        };
        let Some(plan) = &job.plan else { return Ok(seen_of(job, Runs::DefaultClocks)) };
        let Some(table) = self.questions.plan(self.key.selector()).await? else {
            let runs = uniform_clock(plan).map_or(Runs::Other, Runs::Uniform);
            return Ok(seen_of(job, runs));
        };
        let stages = job.ranks.iter().map(|rank| rank.position.pp_rank);
        let digest =
            |stage: Stage| Some((stage, digest_of(&slice_of(table.stages().get(stage.index())?))));
        Ok(seen_of(job, Runs::Slices(stages.filter_map(digest).collect::<BTreeMap<_, _>>())))
    }
}

/// The one clock of a plan without a table, by which `pfod` calls it; none if it has power limits.
fn uniform_clock(plan: &PlanStatus) -> Option<Mhz> {
    let mhz = plan.label.strip_prefix("all at ")?.strip_suffix(" MHz")?.parse().ok()?;
    plan.power_limits_w.is_empty().then_some(Mhz(mhz))
}

/// What is to be known of a job; none if it has no rank.
fn seen_of(job: &JobView, runs: Runs) -> Option<Seen> {
    let first = &job.ranks.first()?.position;
    let place = |position: &RankPosition| Place {
        rank: position.rank,
        stage: position.pp_rank,
        dp: position.dp_rank,
        tp: position.tp_rank,
    };
    let step_s =
        |window: RankWindow| (window.steps > 0).then(|| window.time_s / window.steps as f64);
    let next_steps = job.ranks.iter().map(|rank| Some(rank.step?.saturating_add(1)));
    let steps_s = job.ranks.iter().filter_map(|rank| step_s(rank.window?));
    Some(Seen {
        degrees: Degrees { pp: first.pp_degree, dp: first.dp_degree, tp: first.tp_degree },
        places: job.ranks.iter().map(|rank| place(&rank.position)).collect(),
        gpus: Gpus {
            models: job.ranks.iter().map(|rank| rank.gpu_model.clone()).collect(),
            clocks: allowed_clocks(job).into_iter().collect(),
        },
        next_step: next_steps.collect::<Option<Vec<_>>>().and_then(|next| next.into_iter().max()),
        step_ms: steps_s.reduce(f64::max).map(|step_s| (1e3 * step_s).ceil() as u64),
        runs,
        held: check_free(job).err().map(|refusal| refusal.message),
    })
}

fn target_of(run: &Run, slices: &Slices) -> Result<SwapTarget, String> {
    match run {
        Run::DefaultClocks => Ok(SwapTarget::DefaultClocks),
        Run::Uniform(mhz) => Ok(SwapTarget::Uniform(*mhz)),
        Run::Plan(plan) => {
            let (label, table) = (plan.label.clone(), table_of(plan, slices)?);
            Ok(SwapTarget::Table { label, table })
        }
    }
}

impl LocalJob for NodeJob {
    async fn look(&self) -> Option<Seen> {
        self.seen().await.unwrap_or_default()
    }

    async fn load(&self, run: &Run, slices: &Slices) -> Option<Result<(), String>> {
        if let Run::Uniform(mhz) = run {
            let jobs = self.questions.jobs().await.ok()?;
            let job = jobs.iter().find(|job| JobKey::of(job) == self.key)?;
            let is_allowed = allowed_clocks(job).contains(mhz);
            let why = || format!("{mhz} is not allowed to all of its ranks there");
            return Some(if is_allowed { Ok(()) } else { Err(why()) });
        }
        let (label, table) = match target_of(run, slices) {
            Ok(SwapTarget::Table { label, table }) => (label, table),
            Ok(_) => return Some(Ok(())),
            Err(why) => return Some(Err(why)),
        };
        match self.change(|job| Request::PlanCheck { job, label, table }).await {
            Ok(Response::Loaded(_)) => Some(Ok(())),
            Ok(other) => Some(Err(unexpected(&other).to_string())),
            Err(PfodError::Refused(refusal)) => Some(Err(refusal.message)),
            Err(PfodError::Away(_)) => None,
        }
    }

    async fn measure(&self, first_step: u64, steps: u32) -> Vec<u8> {
        let measured = observe(&self.pfod, &self.questions, &self.key, first_step, steps).await;
        part_of(measured.map_err(Refusal::from))
    }

    async fn swap(&self, run: &Run, slices: &Slices, at_step: Option<u64>) -> SwapAnswer {
        let target = match target_of(run, slices) {
            Ok(target) => target,
            Err(why) => return SwapAnswer::Refused(why),
        };
        let swap = |job| Request::PlanSwap { job, target, at_step, wait: false };
        match self.change(swap).await {
            Ok(Response::Swapped(swapped)) => SwapAnswer::At(swapped.step),
            Err(PfodError::Refused(refusal)) => SwapAnswer::Refused(refusal.message),
            Ok(_) | Err(PfodError::Away(_)) => SwapAnswer::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::tests::job as example_job;

    #[test]
    fn a_job_of_which_one_rank_has_begun_no_step_has_no_next_one() {
        let mut job = example_job(2);
        job.ranks[0].step = Some(7);
        job.ranks[1].step = Some(8);
        assert_eq!(seen_of(&job, Runs::Other).unwrap().next_step, Some(9));
        job.ranks[1].step = None;
        assert_eq!(seen_of(&job, Runs::Other).unwrap().next_step, None);
        job.ranks.clear();
        assert_eq!(seen_of(&job, Runs::Other), None);
    }
}
