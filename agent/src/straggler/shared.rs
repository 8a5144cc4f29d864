//! The frontiers of jobs that have ranks on other nodes: one that was loaded on any node is in the store,
//! and a node that needs it fetches it from there. So each of them can go on when the others are gone.

use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::{JobView, Refusal, RefusalCode};
use pfo_service::blocking;
use pfo_store::Note;
use tokio::time::sleep;

use crate::fleet::Fleet;
use crate::steer::{Steer, Steering};
use crate::straggler::jobs::{FrontierJob, Stragglers, not_loaded};

/// How often to see whether a frontier is still to be shared.
const RHYTHM: Duration = Duration::from_secs(5);

/// Sees to it that the store has the frontiers of the jobs of a fleet that were loaded here, in each of
/// their runs, for as long as the agent runs.
pub(crate) async fn share_frontiers(
    stragglers: Arc<Stragglers>,
    steering: Arc<Steering>,
    fleet: Arc<Fleet>,
) {
    loop {
        sleep(RHYTHM).await;
        for key in fleet.jobs() {
            let Ok(known) = stragglers.of_key(&key) else { continue };
            let is_settled = fleet.has_settled(&key, known.digest);
            if !is_settled && let Ok(Some(view)) = steering.questions.job(&key).await {
                stragglers.share_now(&steering, &view).await;
            }
        }
    }
}

impl Stragglers {
    /// The frontier of a job: what was loaded last on any of its nodes.
    ///
    /// # Errors
    /// If none was, or it cannot be had.
    pub(crate) async fn find(
        &self,
        job: &dyn Steer,
        view: &JobView,
    ) -> Result<Arc<FrontierJob>, Refusal> {
        let (known, key) = (self.of(view), job.key());
        let noted = match (job.noted(Note::Frontier).await, &known) {
            (Ok(Some(noted)), _) => noted,
            (Ok(None), None) => return Err(not_loaded(&view.job)),
            (Err(why), None) => return Err(why.into()),
            (Ok(None) | Err(_), Some(known)) => return Ok(Arc::clone(known)),
        };
        if let Some(known) = &known
            && (known.digest == noted.digest || known.is_unshared())
        {
            return Ok(Arc::clone(known));
        }
        let fetched = match job.fetch_noted(&noted).await {
            Ok(bytes) => self.load(view, (noted.label, bytes), false).await.map(drop),
            Err(why) => Err(why.into()),
        };
        let by_node = &noted.by_node;
        match (fetched, known) {
            (Ok(()), _) => {
                tracing::info!(
                    uid = key.uid.0, job = %key.name,
                    "fetched the frontier of {key}, which was loaded on node {by_node}"
                );
                self.of(view).ok_or_else(|| not_loaded(&view.job))
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

    /// The label of the frontier of a job, and the bytes of its file.
    ///
    /// # Errors
    /// As [`Self::find`], or if the file cannot be read.
    pub(crate) async fn file_of(
        &self,
        job: &dyn Steer,
        view: &JobView,
    ) -> Result<(String, Vec<u8>), Refusal> {
        let known = self.find(job, view).await?;
        let (files, key) = (Arc::clone(&self.files), known.key.clone());
        let bytes = blocking(move || files.read_frontier(&key)).await?;
        let unreadable = |error| {
            let message =
                format!("the file of the frontier of {} cannot be read: {error}", known.key);
            Refusal::new(RefusalCode::NoPlan, message, "load the frontier again")
        };
        Ok((known.label().to_owned(), bytes.map_err(unreadable)?))
    }

    /// Notes the frontier of a job in the store, unless there is one that was loaded on another node since.
    /// Returns whether that is settled.
    async fn share(&self, job: &dyn Steer, known: &Arc<FrontierJob>) -> bool {
        let key = &known.key;
        match job.noted(Note::Frontier).await {
            Err(_) => return false,
            Ok(Some(noted)) if noted.digest == known.digest || !known.is_unshared() => {}
            Ok(_) => {
                let (files, of) = (Arc::clone(&self.files), key.clone());
                let read = blocking(move || files.read_frontier(&of)).await;
                let Ok(Ok(bytes)) = read else { return true };
                let label = known.label().to_owned();
                if let Err(why) = job.note(Note::Frontier, label, bytes).await {
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

    /// Notes a frontier that was just loaded, if the job has other nodes; what fails is tried again.
    pub(crate) async fn share_now(&self, steering: &Arc<Steering>, view: &JobView) {
        if let Some(known) = self.of(view)
            && self.share(&*steering.of(view), &known).await
            && let Some(fleet) = &steering.fleet
        {
            fleet.settle(&known.key, known.digest);
        }
    }
}
