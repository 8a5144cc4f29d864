//! One turn at a time for each person: what one brings and loads keeps only that person waiting, on however
//! many connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pfo_protocol::Uid;
use pfo_service::{People, lock};
use tokio::sync::OwnedMutexGuard;

/// The turns of all people.
#[derive(Debug)]
pub(super) struct Turns {
    people: Arc<People>,
    turns: Mutex<BTreeMap<Uid, Arc<tokio::sync::Mutex<()>>>>,
}

impl Turns {
    pub(super) fn of(people: Arc<People>) -> Self {
        Self { people, turns: Mutex::default() }
    }

    /// Waits for the turn of a user, which lasts until this is dropped.
    pub(super) async fn take(&self, uid: Uid) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = lock(&self.turns);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(self.people.person(uid)).or_default())
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_person_waits_for_its_own_turns_only_and_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let subuid = directory.path().join("subuid");
        std::fs::write(&subuid, "7:100000:65536\n").unwrap();
        let people = Arc::new(People::in_file(&subuid));
        people.read();
        let turns = Turns::of(people);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let first = turns.take(Uid(7)).await;
            let moment = Duration::from_millis(20);
            assert!(timeout(moment, turns.take(Uid(100_003))).await.is_err(), "the same person");
            drop(turns.take(Uid(8)).await);
            drop(first);
            drop(turns.take(Uid(100_003)).await);
            let _last = turns.take(Uid(9)).await;
            assert_eq!(lock(&turns.turns).len(), 1);
        });
    }
}
