//! The part of a job that is on this node, as `pfod` has it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pfo_fleet::{Degrees, Gpus, Member, Place, Run, Runs, Seen, SwapAnswer};
use pfo_protocol::{
    GpuName, JobSelector, JobView, Mhz, PlanStatus, RankPosition, RankView, RankWindow, Refusal,
    Request, Response, Stage, SwapTarget,
};
use pfo_service::lock;
use pfo_store::{LocalJob, Slices, digest_of};

use super::locks::Locks;
use super::part::{part_of, room_for_samples};
use super::parts::SlowOf;
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
    pub(super) slow: Arc<Mutex<SlowOf>>,
    pub(super) locks: Arc<Locks>,
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

    async fn found(&self) -> Result<Option<JobView>, PfodError> {
        self.questions.job(&self.key).await
    }

    /// Whether every rank may have each of these clocks; none if `pfod` does not answer.
    async fn check_clocks(&self, clocks: &[Mhz]) -> Option<Result<(), String>> {
        let allowed = allowed_clocks(&self.found().await.ok()??);
        let wrong = clocks.iter().find(|mhz| !allowed.contains(*mhz));
        let why = |mhz| format!("{mhz} is not allowed to all of its ranks there");
        Some(wrong.map_or(Ok(()), |mhz| Err(why(mhz))))
    }

    /// Whether every rank may have the power limit of its stage; none if `pfod` does not answer.
    async fn check_limits(&self, limits_w: &[u32]) -> Option<Result<(), String>> {
        for rank in self.found().await.ok()??.ranks {
            let (stage, gpu) = (rank.position.pp_rank, rank.gpu_uuid);
            let Some(limit_w) = limits_w.get(stage.index()) else {
                return Some(Err(format!("stage {stage} has no power limit")));
            };
            let may_have = |_| Request::PowerLimits(GpuName::Uuid(gpu.clone()));
            match self.change(may_have).await {
                Ok(Response::PowerLimits { lowest_w, highest_w })
                    if !(lowest_w..=highest_w).contains(limit_w) =>
                {
                    return Some(Err(format!(
                        "GPU {gpu} of stage {stage} may have {lowest_w} to {highest_w} W, and not \
                         {limit_w} W"
                    )));
                }
                Ok(Response::PowerLimits { .. }) => {}
                Ok(other) => return Some(Err(unexpected(&other).to_string())),
                Err(PfodError::Refused(refusal)) => return Some(Err(refusal.message)),
                Err(PfodError::Away(_)) => return None,
            }
        }
        Some(Ok(()))
    }

    async fn seen(&self) -> Result<Option<Seen>, PfodError> {
        let Some(job) = self.found().await? else { return Ok(None) };
        let runs = self.runs(&job).await?;
        let Some(seen) = seen_of(&job, runs) else { return Ok(None) };
        let (shown, missing) = self.locks.look(&self.questions, &job);
        Ok(Some(Seen { astray: seen.astray.or(missing), shown, ..seen }))
    }

    async fn runs(&self, job: &JobView) -> Result<Runs, PfodError> {
        let Some(plan) = &job.plan else { return Ok(Runs::DefaultClocks) };
        let Some(table) = self.questions.plan(self.key.selector()).await? else {
            return Ok(runs_of(plan));
        };
        let stages = job.ranks.iter().map(|rank| rank.position.pp_rank);
        let digest =
            |stage: Stage| Some((stage, digest_of(&slice_of(table.stages().get(stage.index())?))));
        Ok(Runs::Slices(stages.filter_map(digest).collect::<BTreeMap<_, _>>()))
    }
}

/// What a plan without a table is: `pfod` calls it by its clocks, unless it has power limits.
fn runs_of(plan: &PlanStatus) -> Runs {
    if !plan.power_limits_w.is_empty() {
        return Runs::PowerLimits(plan.power_limits_w.clone());
    }
    let clocks = || -> Option<Vec<Mhz>> {
        let clocks = plan.label.strip_prefix("all at ")?.strip_suffix(" MHz")?;
        clocks.split('/').map(|mhz| mhz.parse().ok().map(Mhz)).collect()
    };
    match clocks().as_deref() {
        Some([mhz]) => Runs::Uniform(*mhz),
        Some(clocks) => Runs::Replicas(clocks.to_vec()),
        None => Runs::Other,
    }
}

/// These clocks, one for each replica in turn.
pub(super) fn at_clocks(clocks: Vec<Mhz>) -> Run {
    match clocks[..] {
        [mhz] => Run::Uniform(mhz),
        _ => Run::Replicas(clocks),
    }
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
        swap: job.swap,
        held: check_free(job).err().map(|refusal| refusal.message),
        slow: Vec::new(),
        astray: job.ranks.iter().find_map(astray),
        shown: false,
    })
}

fn astray(rank: &RankView) -> Option<String> {
    let why = rank.problem.as_ref()?;
    Some(format!("rank {} ({}): {why}", rank.position.rank, rank.gpu_uuid))
}

/// This node as one of a job; none before the job has a rank.
pub(crate) fn member_of(job: &JobView) -> Option<Member> {
    let Seen { degrees, places, gpus, .. } = seen_of(job, Runs::Other)?;
    Some(Member { degrees, places, gpus, measures: false, slow: Vec::new() })
}

fn target_of(run: &Run, slices: &Slices) -> Result<SwapTarget, String> {
    match run {
        Run::DefaultClocks => Ok(SwapTarget::DefaultClocks),
        Run::Uniform(mhz) => Ok(SwapTarget::Uniform(*mhz)),
        Run::Replicas(clocks) => Ok(SwapTarget::Replicas(clocks.clone())),
        Run::PowerLimits { label, limits_w } => {
            let (label, limits_w) = (label.clone(), limits_w.clone());
            Ok(SwapTarget::PowerLimits { label, limits_w })
        }
        Run::Plan(plan) => {
            let (label, table) = (plan.label.clone(), table_of(plan, slices)?);
            Ok(SwapTarget::Table { label, table })
        }
    }
}

impl LocalJob for NodeJob {
    async fn look(&self) -> Option<Seen> {
        let seen = self.seen().await.unwrap_or_default()?;
        let slow = lock(&self.slow).get(&self.key).map(|(_, said)| said.clone());
        Some(Seen { slow: slow.unwrap_or_default(), ..seen })
    }

    async fn load(&self, run: &Run, slices: &Slices) -> Option<Result<(), String>> {
        // A plan that one node follows as if it was set would be said to be in force on all of them.
        if *run != Run::DefaultClocks && self.questions.status().await.ok()?.daemon.only_observes {
            return Some(Err("its pfod only observes, and sets nothing".to_owned()));
        }
        match run {
            Run::Uniform(mhz) => return self.check_clocks(std::slice::from_ref(mhz)).await,
            Run::Replicas(clocks) => return self.check_clocks(clocks).await,
            Run::PowerLimits { limits_w, .. } => return self.check_limits(limits_w).await,
            Run::DefaultClocks | Run::Plan(_) => {}
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

    async fn measure(&self, first_step: u64, steps: u32, samples: bool) -> Vec<u8> {
        let ranks = self.found().await.ok().flatten().map_or(1, |job| job.ranks.len());
        let room = samples.then(|| room_for_samples(ranks));
        let steps = (first_step, steps);
        let measured = observe(&self.pfod, &self.questions, &self.key, steps, room).await;
        part_of(measured.map_err(Refusal::from))
    }

    async fn swap(
        &self,
        run: &Run,
        slices: &Slices,
        at_step: Option<u64>,
        after: u64,
    ) -> SwapAnswer {
        let target = match target_of(run, slices) {
            Ok(target) => target,
            Err(why) => return SwapAnswer::Refused(why),
        };
        let swap =
            |job| Request::PlanSwap { job, target, at_step, after: Some(after), wait: false };
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
