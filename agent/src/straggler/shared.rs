//! The frontiers of jobs that have ranks on other nodes: one that was loaded on any node is in the store,
//! and a node that needs it fetches it from there. So each of them can go on when the others are gone.

use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::{JobView, Refusal, RefusalCode};
use pfo_service::blocking;
use pfo_store::Note;
use tokio::time::sleep;

use crate::fleet::Fleet;
use crate::job::JobKey;
use crate::straggler::jobs::{FrontierJob, Stragglers, not_loaded};

/// How often to see whether a frontier is still to be shared.
const RHYTHM: Duration = Duration::from_secs(5);

/// Sees to it that the store has the frontiers of the jobs of a fleet that were loaded here, in each of
/// their runs, for as long as the agent runs.
pub(crate) async fn share_frontiers(stragglers: Arc<Stragglers>, fleet: Arc<Fleet>) {
    loop {
        sleep(RHYTHM).await;
        for key in fleet.jobs() {
            let Ok(known) = stragglers.of_key(&key) else { continue };
            if !fleet.has_settled(&key, known.digest) && stragglers.share(&fleet, &known).await {
                fleet.settle(&key, known.digest);
            }
        }
    }
}

impl Stragglers {
    /// The frontier of a job of several nodes: what was loaded last on any of them.
    ///
    /// # Errors
    /// If none was, or it cannot be had.
    pub(crate) async fn find_whole(
        &self,
        fleet: &Fleet,
        job: &JobView,
    ) -> Result<Arc<FrontierJob>, Refusal> {
        let (known, key) = (self.of(job), JobKey::of(job));
        let noted = match (fleet.noted(&key, Note::Frontier).await, &known) {
            (Ok(Some(noted)), _) => noted,
            (Ok(None), None) => return Err(not_loaded(&job.job)),
            (Err(why), None) => return Err(unknown(&key, &why)),
            (Ok(None) | Err(_), Some(known)) => return Ok(Arc::clone(known)),
        };
        if let Some(known) = &known
            && (known.digest == noted.digest || known.is_unshared())
        {
            return Ok(Arc::clone(known));
        }
        let fetched = match fleet.fetch_noted(&key, &noted).await {
            Ok(bytes) => self.load(job, (noted.label, bytes), false).await.map(drop),
            Err(why) => Err(unknown(&key, &why)),
        };
        let by_node = &noted.by_node;
        match (fetched, known) {
            (Ok(()), _) => {
                tracing::info!(
                    uid = key.uid.0, job = %key.name,
                    "fetched the frontier of {key}, which was loaded on node {by_node}"
                );
                self.find(job)
            }
            (Err(why), Some(known)) => {
                tracing::warn!(
                    uid = key.uid.0, job = %key.name,
                    "cannot fetch the frontier of {key} that was loaded on node {by_node}, and use the \
                     one from before: {why}"
                );
                Ok(known)
            }
            (Err(why), None) => Err(why),
        }
    }

    /// Notes the frontier of a job in the store, unless there is one that was loaded on another node since.
    /// Returns whether that is settled.
    async fn share(&self, fleet: &Fleet, known: &Arc<FrontierJob>) -> bool {
        let key = &known.key;
        match fleet.noted(key, Note::Frontier).await {
            Err(_) => return false,
            Ok(Some(noted)) if noted.digest == known.digest || !known.is_unshared() => {}
            Ok(_) => {
                let (files, of) = (Arc::clone(&self.files), key.clone());
                let read = blocking(move || files.read_frontier(&of)).await;
                let Ok(Ok(bytes)) = read else { return true };
                let label = known.label().to_owned();
                if let Err(why) = fleet.write_note(key, Note::Frontier, label, bytes).await {
                    tracing::debug!("the other nodes of {key} do not have its frontier: {why}");
                    return false;
                }
            }
        }
        if known.is_unshared() {
            known.set_shared();
            self.keep(known).await;
        }
        true
    }

    /// Notes a frontier that was just loaded; what fails is tried again.
    pub(crate) async fn share_now(&self, fleet: &Fleet, job: &JobView) {
        if let Some(known) = self.of(job)
            && self.share(fleet, &known).await
        {
            fleet.settle(&known.key, known.digest);
        }
    }
}

fn unknown(key: &JobKey, why: &str) -> Refusal {
    Refusal::new(
        RefusalCode::LimitReached,
        format!("the frontier of {key} is not on this node, and cannot be fetched: {why}"),
        "`pfoctl fleet check` says what is wrong with the store; or load it with `pfoctl plan load`",
    )
}
