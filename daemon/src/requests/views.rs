//! Jobs as the agent sees them, and what it streams.

use std::sync::atomic::Ordering::Relaxed;

use pfo_protocol::{JobView, MeasuredBy, RankView, RankWindow, Uid};

use crate::job::{Job, Jobs, Measurer, Member};

/// Every job, or those of one user.
pub(super) fn jobs(jobs: &Jobs, only_of: Option<Uid>) -> Vec<JobView> {
    let visible = |job: &&std::sync::Arc<Job>| only_of.is_none_or(|uid| uid == job.key.uid);
    jobs.all().iter().filter(visible).map(|job| view(job)).collect()
}

fn view(job: &Job) -> JobView {
    let members = job.members();
    JobView {
        job: job.key.name.clone(),
        uid: job.key.uid,
        pp_degree: job.pp_degree,
        plan: members.plans.current().map(|plan| plan.status()),
        swap: members.plans.newest_number(),
        measured_by: members.held.map(|Measurer { uid, pid, .. }| MeasuredBy { uid, pid }),
        ranks: members.ranks().map(rank).collect(),
    }
}

fn rank(member: &Member) -> RankView {
    let progress = &member.session.progress;
    let swap = progress.swap.load(Relaxed);
    let measured = progress.measured.load();
    let window = measured.windows.measured().find(|window| window.swap == swap);
    let (min, max) = member.session.grant.load().terms.bounds();
    let is_allowed = |clock: &&pfo_protocol::Mhz| (min..=max).contains(*clock);
    let ran = progress.ran.load();
    let seen = || ran.as_ref()?.iter().map(|unit| unit.microbatch.0).max()?.checked_add(1);
    RankView {
        position: member.hello.position.clone(),
        session: member.session.holder.session,
        gpu_uuid: member.gpu.uuid.clone(),
        gpu_model: member.gpu.model.clone(),
        sm_clocks: member.gpu.sm_clocks.iter().filter(is_allowed).copied().collect(),
        num_microbatches: member.hello.num_microbatches.or_else(seen),
        swap,
        step: progress.step(),
        window: window.map(|window| RankWindow {
            steps: window.steps,
            time_s: window.time_s,
            energy_j: window.energy_j,
        }),
    }
}
