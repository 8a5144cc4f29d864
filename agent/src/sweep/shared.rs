//! Sweeps of jobs that have ranks on other nodes. How far one is stands in the store, and its profile once
//! it is over: when the node that sweeps has left the job for good, another one goes on where it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::{ProfileKey, Rank, Refusal, SweepEnd};
use pfo_service::{Panicked, blocking};
use pfo_store::{JobId, Note};
use tokio::time::sleep;

use crate::fleet::{Fleet, Members, Noted};
use crate::job::JobKey;
use crate::profile::stored_key;
use crate::steer::{Steer, SteerError};
use crate::sweep::file;
use crate::sweep::record::{Pause, SweepRecord};
use crate::sweep::requests;
use crate::sweep::sweeps::{Progress, Sweeps};

/// How often to look at the sweeps of this node, and how often at those in the store.
const RHYTHM: Duration = Duration::from_secs(1);
const LOOKS_AT_STORE: u32 = 5;

/// What a note says of a sweep that is over, or that goes on.
const OVER: &str = "over";
const UNFINISHED: &str = "unfinished";

/// Notes the sweeps of this node, and goes on with those of nodes that are gone, for as long as the agent
/// runs.
pub(crate) async fn share_sweeps(sweeps: Arc<Sweeps>, fleet: Arc<Fleet>) {
    let mut noted: BTreeMap<JobId, u64> = BTreeMap::new();
    for look in 0_u32.. {
        sleep(RHYTHM).await;
        let jobs = fleet.jobs();
        noted.retain(|id, _| jobs.iter().any(|key| fleet.id_of(key) == *id));
        for key in jobs {
            let id = fleet.id_of(&key);
            let Ok(Some(view)) = sweeps.job(&key).await else { continue };
            let job = sweeps.steering().of(&view);
            let turn = Turn { sweeps: &sweeps, job: &*job };
            // First the job runs what it ran before: a sweep ends with nothing else.
            let is_time = look % LOOKS_AT_STORE == 0 && !fleet.is_carried_over(&key);
            if let Err(why) = turn.take(&id, &mut noted, is_time).await {
                tracing::debug!("cannot share the sweep of {key}: {why}");
            }
        }
    }
}

/// A look at one job.
struct Turn<'a> {
    sweeps: &'a Arc<Sweeps>,
    job: &'a dyn Steer,
}

impl Turn<'_> {
    async fn take(
        &self,
        id: &JobId,
        noted: &mut BTreeMap<JobId, u64>,
        is_time: bool,
    ) -> Result<(), String> {
        match self.sweeps.progress(self.job.key()) {
            Some(Progress { changes, restored: true, .. })
                if !noted.contains_key(id) && self.has_gone_on_elsewhere().await? =>
            {
                tracing::info!(
                    uid = self.job.key().uid.0, job = %self.job.key().name,
                    "another node goes on with the sweep of {} that was begun here", self.job.key()
                );
                let (sweeps, key) = (Arc::clone(self.sweeps), self.job.key().clone());
                let _ = blocking(move || sweeps.drop_restored(&key, changes)).await;
            }
            Some(Progress { changes, record, end: None, .. })
                if noted.get(id) != Some(&changes) =>
            {
                self.note(UNFINISHED, file::content(&record)).await?;
                noted.insert(id.clone(), changes);
            }
            Some(Progress { record, end: Some(end), .. }) if noted.contains_key(id) => {
                self.end(&record, end != SweepEnd::Stopped).await?;
                noted.remove(id);
            }
            Some(Progress { end: Some(_), .. }) | None if is_time => self.look_at_store().await?,
            Some(_) | None => {}
        }
        Ok(())
    }

    async fn note(&self, label: &str, content: serde_json::Result<Vec<u8>>) -> Result<(), String> {
        let content = content.map_err(|error| error.to_string())?;
        let noted = self.job.note(Note::Sweep, label.to_owned(), content).await;
        noted.map_err(SteerError::message)
    }

    /// Notes that a sweep is over and, if it is stored, its profile.
    async fn end(&self, record: &SweepRecord, is_stored: bool) -> Result<(), String> {
        if is_stored {
            let (sweeps, of) = (Arc::clone(self.sweeps), record.profile());
            let read = blocking(move || sweeps.read_profile(&of)).await;
            if let Ok(Some(csv)) = read {
                let label = serde_json::to_string(&record.profile()).unwrap_or_default();
                let noted = self.job.note(Note::Profile, label, csv).await;
                noted.map_err(SteerError::message)?;
            }
        }
        self.note(OVER, Ok(Vec::new())).await
    }

    async fn noted(&self) -> Result<Option<Noted>, String> {
        let noted = self.job.noted(Note::Sweep).await.map_err(SteerError::message)?;
        Ok(noted.filter(|noted| noted.label == UNFINISHED))
    }

    /// Whether a node that is there goes on with a sweep that this one had.
    async fn has_gone_on_elsewhere(&self) -> Result<bool, String> {
        let noted = self.noted().await?;
        let members = self.members().await?;
        Ok(noted.is_some_and(|noted| {
            noted.by_node != *self.job.node() && members.contains_key(&noted.by_node)
        }))
    }

    async fn fetch(&self, noted: &Noted) -> Result<Vec<u8>, String> {
        self.job.fetch_noted(noted).await.map_err(SteerError::message)
    }

    async fn members(&self) -> Result<Members, String> {
        let whole = self.job.look().await.map_err(SteerError::message)?;
        Ok(whole.members)
    }

    /// Goes on with a sweep in the store that nobody goes on with, if that is for this node: it has rank 0.
    async fn look_at_store(&self) -> Result<(), String> {
        let Some(noted) = self.noted().await? else { return Ok(()) };
        if noted.by_node == *self.job.node() {
            // The agent before this one had just ended it.
            let record = file::parse(&self.fetch(&noted).await?)?;
            return self.end(&record, true).await;
        }
        let members = self.members().await?;
        let own = members.get(self.job.node());
        let has_first = own.is_some_and(|own| own.places.iter().any(|place| place.rank == Rank(0)));
        if !has_first || members.contains_key(&noted.by_node) {
            return Ok(());
        }
        self.adopt(&noted).await
    }

    async fn adopt(&self, noted: &Noted) -> Result<(), String> {
        let record = file::parse(&self.fetch(noted).await?)?;
        let record = adopted(record, self.job.key(), noted)?;
        let sweeps = Arc::clone(self.sweeps);
        in_words(blocking(move || sweeps.adopt(record)).await)?;
        tracing::info!(
            uid = self.job.key().uid.0, job = %self.job.key().name,
            "goes on with the sweep of {} that was begun on node {}, which has left",
            self.job.key(), noted.by_node
        );
        Ok(())
    }
}

fn in_words(done: Result<Result<(), Refusal>, Panicked>) -> Result<(), String> {
    done.unwrap_or_else(|panicked| Err(panicked.into())).map_err(|refusal| refusal.message)
}

/// A sweep in the store as this node goes on with it, in the name of the job's owner.
fn adopted(mut record: SweepRecord, key: &JobKey, noted: &Noted) -> Result<SweepRecord, String> {
    if record.key() != *key {
        return Err(format!("it is of {}", record.key()));
    }
    requests::check(record.settings).map_err(|refusal| refusal.message)?;
    let waits = || {
        let node = &noted.by_node;
        format!("node {node} has left, and who waited for the sweep there is gone; resume it")
    };
    let why = record.attended.then(waits);
    let pause = record.pause.clone().or_else(|| why.map(Pause::because));
    (record.by_uid, record.pause) = (key.uid, pause);
    Ok(record)
}

/// Fetches what other nodes that are gone have measured of a job: a sweep that is not over, and the profile
/// that was measured last. To be called before a sweep is begun.
pub(crate) async fn fetch_measured(sweeps: &Arc<Sweeps>, job: &dyn Steer) {
    let (turn, key) = (Turn { sweeps, job }, job.key());
    let fetched = async {
        turn.fetch_profile().await?;
        let Some(noted) = turn.noted().await? else { return Ok(()) };
        if sweeps.is_sweeping(key) || turn.members().await?.contains_key(&noted.by_node) {
            return Ok(());
        }
        turn.adopt(&noted).await
    };
    if let Err(why) = fetched.await {
        let why: String = why;
        tracing::debug!("cannot fetch what was measured of {key}: {why}");
    }
}

impl Turn<'_> {
    async fn fetch_profile(&self) -> Result<(), String> {
        let noted = self.job.noted(Note::Profile).await.map_err(SteerError::message)?;
        let Some(noted) = noted.filter(|noted| noted.by_node != *self.job.node()) else {
            return Ok(());
        };
        let of: ProfileKey =
            serde_json::from_str(&noted.label).map_err(|error| error.to_string())?;
        let of = stored_key(&of);
        if of.uid != self.job.key().uid || self.sweeps.stored(&of).is_some() {
            return Ok(());
        }
        let csv = self.fetch(&noted).await?;
        let csv = String::from_utf8(csv).map_err(|error| error.to_string())?;
        let sweeps = Arc::clone(self.sweeps);
        in_words(blocking(move || sweeps.keep_profile(&of, &csv)).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::record::tests::record;

    fn noted() -> Noted {
        serde_json::from_value(serde_json::json!({
            "format": "pfo-noted/1",
            "label": UNFINISHED,
            "by_node": "a",
            "digest": "0".repeat(64),
            "slices": [],
        }))
        .unwrap()
    }

    #[test]
    fn a_sweep_is_gone_on_with_in_the_name_of_the_owner_and_paused_if_somebody_waited() {
        let mut one = record(None, 3);
        let key = one.key();
        one.by_uid = pfo_protocol::Uid(0);
        let going_on = adopted(one.clone(), &key, &noted()).unwrap();
        assert_eq!((going_on.by_uid, going_on.pause), (key.uid, None));
        one.attended = true;
        let paused = adopted(one.clone(), &key, &noted()).unwrap().pause.unwrap();
        assert!(paused.why.unwrap().contains("node a has left"));
        one.pause = Some(Pause::default());
        assert_eq!(adopted(one, &key, &noted()).unwrap().pause, Some(Pause::default()));
    }

    #[test]
    fn a_sweep_of_another_job_or_without_end_is_not_gone_on_with() {
        let mut one = record(None, 3);
        let key = one.key();
        let other = JobKey { uid: pfo_protocol::Uid(key.uid.0 + 1), name: key.name.clone() };
        assert!(adopted(one.clone(), &other, &noted()).is_err());
        one.settings.steps = u32::MAX;
        assert!(adopted(one, &key, &noted()).is_err());
    }
}
