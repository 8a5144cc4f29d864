//! This node tells the fleet what it saved, and reads what all nodes tell.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::Refusal;
use pfo_service::blocking;
use pfo_store::{LARGEST_SLICE, Store, StoreError, Topic};
use tokio::time::{sleep, timeout};

use super::Fleet;
use crate::ledger::{Ledger, Told};
use crate::refusal::of_store;

/// How often the node looks whether it has something new to tell.
const TELL_EVERY: Duration = Duration::from_secs(600);

/// How long the store may take to say what all nodes tell.
const PATIENCE: Duration = Duration::from_secs(10);

impl Fleet {
    /// Tells what this node saved for as long as the agent runs.
    pub(crate) async fn tell_saved(&self, ledger: Arc<Ledger>) {
        let store = self.store().await;
        let mut refused = None;
        loop {
            let told = tell(&*store, &ledger).await;
            // That the store is away is said elsewhere.
            let now = told.err().filter(|error| matches!(error, StoreError::Refused(_)));
            if let Some(error) = now.as_ref().filter(|_| refused.is_none()) {
                tracing::warn!(
                    "the fleet does not hear what this node saved: {error}; docs/fleet.md has its roles"
                );
            }
            refused = now;
            sleep(TELL_EVERY).await;
        }
    }

    /// What all nodes tell, by their names, with what this one would tell now.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(crate) async fn all_saved(
        &self,
        ledger: &Arc<Ledger>,
    ) -> Result<BTreeMap<String, Told>, Refusal> {
        let said = async { self.store_now()?.said(Topic::Savings).await };
        let said = timeout(PATIENCE, said).await;
        let late = StoreError::Away(format!("it takes more than {} s", PATIENCE.as_secs()));
        let said = said.unwrap_or(Err(late));
        let said =
            said.map_err(|why| of_store("cannot fetch what other nodes have saved", &why))?;
        let (ledger, me) = (Arc::clone(ledger), self.node().to_string());
        let read = move || {
            let told = said.iter().map(|(node, bytes)| (node.to_string(), Told::read(bytes)));
            let mut told: BTreeMap<_, _> = told.collect();
            let own = told.remove(&me).unwrap_or_default();
            told.extend(ledger.told(own).map(|own| (me, own)));
            told
        };
        Ok(blocking(read).await?)
    }
}

/// Writes what is new.
async fn tell(store: &impl Store, ledger: &Arc<Ledger>) -> Result<(), StoreError> {
    let before = store.own(Topic::Savings).await?.unwrap_or_default();
    let ledger = Arc::clone(ledger);
    let told = blocking(move || {
        let before = Told::read(&before);
        let told = ledger.told(before.clone())?;
        (told != before).then(|| told.written(LARGEST_SLICE))
    });
    match told.await {
        Ok(Some(new)) => store.say(Topic::Savings, &new).await,
        _ => Ok(()),
    }
}
