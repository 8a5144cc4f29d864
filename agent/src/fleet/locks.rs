//! What the GPUs of this node show of a plan: a driver may accept a lock and ignore it.
//!
//! The other nodes of a job know of its GPUs here what this node says of them. So they are looked at
//! whenever the job has taken up another plan, and from time to time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pfo_experiment::{Asked, Looks, SET_WITHIN};
use pfo_protocol::{GpuUuid, JobView, Rank, RankView};
use pfo_service::lock;
use tokio::time::{Instant, sleep};

use crate::job::is_taken_up;
use crate::pfod::Questions;

/// For how long GPUs are looked at that do not show their lock, and how often. The slowest set calls known
/// take a tenth of a second, and a clock settles in another.
const LOOKED_AT_FOR: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(90);

/// How long what was seen holds, if the job runs the same plan. A look reads every GPU of the node.
const HOLDS_FOR: Duration = Duration::from_secs(10);

/// The GPUs of one job.
#[derive(Debug, Default)]
pub(super) struct Locks(Mutex<Looked>);

#[derive(Debug, Default)]
struct Looked {
    swap: u64,
    looking: bool,
    at: Option<Instant>,
    missing: Option<String>,
}

impl Looked {
    /// Whether to look again at GPUs that have taken up this swap.
    fn is_due(&self, swap: u64) -> bool {
        let holds = self.at.is_some_and(|at| at.elapsed() < HOLDS_FOR);
        !self.looking && (swap != self.swap || !holds)
    }
}

impl Locks {
    /// Whether every GPU has shown what the newest swap led to, and which rank's does something else, as
    /// the last looks have shown. Looks again if that is due.
    pub(super) fn look(
        self: &Arc<Self>,
        questions: &Arc<Questions>,
        job: &JobView,
    ) -> (bool, Option<String>) {
        if !is_taken_up(job) {
            return (false, None);
        }
        let mut looked = lock(&self.0);
        if looked.is_due(job.swap) {
            looked.looking = true;
            let (this, questions, swap) = (Arc::clone(self), Arc::clone(questions), job.swap);
            let gpus: Vec<_> = job.ranks.iter().map(|rank| gpu_of(rank, job)).collect();
            tokio::spawn(async move {
                let answered = look(&questions, &gpus).await;
                let at = answered.is_some().then(Instant::now);
                let missing = answered.flatten();
                *lock(&this.0) = Looked { swap, looking: false, at, missing };
            });
        }
        let is_of_it = looked.swap == job.swap && looked.at.is_some();
        let missing = looked.missing.clone().filter(|_| is_of_it);
        (is_of_it && missing.is_none(), missing)
    }
}

/// A GPU of a job and what is asked of it.
struct AskedGpu {
    rank: Rank,
    uuid: GpuUuid,
    asked: Asked,
}

fn gpu_of(rank: &RankView, job: &JobView) -> AskedGpu {
    let asked = Asked::by(job.plan.as_ref(), rank.position.pp_rank);
    AskedGpu { rank: rank.position.rank, uuid: rank.gpu_uuid.clone(), asked }
}

/// Looks at GPUs until each has shown what is asked of it, or for long enough to know one that does
/// something else; none if `pfod` does not answer.
async fn look(questions: &Questions, gpus: &[AskedGpu]) -> Option<Option<String>> {
    sleep(SET_WITHIN).await;
    let began = Instant::now();
    let mut looks = vec![Looks::default(); gpus.len()];
    loop {
        let status = questions.status().await.ok()?;
        let found = |uuid: &GpuUuid| status.gpus.iter().find(|gpu| gpu.uuid == *uuid);
        for (looks, gpu) in looks.iter_mut().zip(gpus) {
            found(&gpu.uuid).into_iter().for_each(|found| looks.add(gpu.asked, found));
        }
        if looks.iter().all(|looks| looks.is_held()) {
            return Some(None);
        }
        if began.elapsed() > LOOKED_AT_FOR {
            return Some(looks.iter().zip(gpus).find_map(|(looks, gpu)| {
                let why = looks.missing(gpu.asked, found(&gpu.uuid)?)?;
                Some(format!("rank {} ({}): {why}", gpu.rank, gpu.uuid))
            }));
        }
        sleep(LOOK_EVERY).await;
    }
}
