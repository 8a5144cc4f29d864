//! Keeps the entries that one person causes from filling the journal: beyond a burst they are left
//! out, and counted. An entry is a user's if it has the user's `uid`; what came through the agent, which
//! names any user, counts as the agent's, too. What root does as an administrator is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pfo_vocabulary::Uid;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::boundary::is_administration;
use crate::people::People;

/// Entries that a person may cause at once: all ranks of a large node open and end a session twice.
const BURST: u32 = 256;

/// After the burst, one entry is kept in this time.
const INTERVAL: Duration = Duration::from_millis(250);

/// What came through the agent counts as this user's, which is nobody.
const THROUGH_AGENT: u32 = u32::MAX;

/// How long entries are counted before a report of those left out.
const REPORT_AFTER: Duration = Duration::from_secs(10);

/// The counts of this process.
static ENTRIES: Entries = Entries::new();

/// The people by whom they are counted, once they are known.
static PEOPLE: OnceLock<Arc<People>> = OnceLock::new();

/// The entries of every person.
#[derive(Debug)]
struct Entries {
    by_person: Mutex<Option<HashMap<u32, Person>>>,
    some_left_out: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Person {
    /// When the whole burst is available again.
    full_at: Instant,
    left_out: u64,
}

impl Entries {
    const fn new() -> Self {
        Self { by_person: Mutex::new(None), some_left_out: Notify::const_new() }
    }

    /// Whether another entry of a person is kept.
    fn keeps(&self, person: u32, now: Instant) -> bool {
        let mut people = self.people();
        let people = people.get_or_insert_default();
        let person = people.entry(person).or_insert(Person { full_at: now, left_out: 0 });
        let used = person.full_at.saturating_duration_since(now).saturating_add(INTERVAL);
        if used > INTERVAL.saturating_mul(BURST) {
            person.left_out = person.left_out.saturating_add(1);
            self.some_left_out.notify_one();
            return false;
        }
        person.full_at = now.checked_add(used).unwrap_or(now);
        true
    }

    /// The number of entries of each person that were left out since the last call.
    fn left_out(&self) -> Vec<(u32, u64)> {
        let mut people = self.people();
        let take = |(uid, of): (&u32, &mut Person)| (*uid, std::mem::take(&mut of.left_out));
        let counts = people.iter_mut().flatten().map(take);
        counts.filter(|(_, count)| *count > 0).collect()
    }

    fn people(&self) -> MutexGuard<'_, Option<HashMap<u32, Person>>> {
        self.by_person.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts entries by people from now on, and reports how many were left out, for as long as the
/// daemon runs.
pub async fn report_left_out(people: Arc<People>) {
    let _ = PEOPLE.set(people);
    loop {
        ENTRIES.some_left_out.notified().await;
        sleep(REPORT_AFTER).await;
        for (user, count) in ENTRIES.left_out() {
            let by =
                if user == THROUGH_AGENT { "pfo-agent".into() } else { format!("user {user}") };
            tracing::warn!("left out {count} journal entries caused by {by}");
        }
    }
}

/// The layer that drops entries before any other layer sees them.
#[derive(Debug)]
pub(crate) struct Limit;

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut user = UserOf::default();
        event.record(&mut user);
        let person = |uid| PEOPLE.get().map_or(uid, |people| people.person(Uid(uid)).0);
        let user_is = user.uid.filter(|uid| *uid != 0 || !is_administration()).map(person);
        let counted = [user.through_agent.then_some(THROUGH_AGENT), user_is];
        counted.into_iter().flatten().all(|counted| ENTRIES.keeps(counted, Instant::now()))
    }
}

#[derive(Default)]
struct UserOf {
    uid: Option<u32>,
    through_agent: bool,
}

impl Visit for UserOf {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.through_agent |= field.name() == "via_pid";
        if field.name() == "uid" {
            self.uid = u32::try_from(value).ok();
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_has_a_burst_and_then_a_trickle_and_nobody_else_less() {
        let entries = Entries::new();
        let now = Instant::now();
        let kept = |uid, at| (0..1000).filter(|_| entries.keeps(uid, at)).count();
        assert_eq!(kept(7, now), BURST as usize);
        assert_eq!(kept(7, now + 4 * INTERVAL), 4);
        assert_eq!(kept(8, now), BURST as usize);
        assert_eq!(kept(7, now + 2 * BURST * INTERVAL), BURST as usize);
    }

    #[test]
    fn what_is_left_out_is_told_once() {
        let entries = Entries::new();
        let now = Instant::now();
        (0..BURST + 44).for_each(|_| _ = entries.keeps(7, now));
        assert_eq!(entries.left_out(), [(7, 44)]);
        assert_eq!(entries.left_out(), []);
    }

    #[test]
    fn entries_with_a_uid_are_counted_but_those_of_root_as_an_administrator() {
        use pfo_vocabulary::Pid;
        use tracing_subscriber::layer::SubscriberExt;

        use crate::boundary::{Whose, catch};
        use crate::peer::Door;

        let administers = Whose { door: Some(Door::Admin), ..Whose::of(Uid(0), Pid(1)) };
        let inner = Whose::of(Uid(0), Pid(1));
        let uid = 4_000_000_123_u32;
        let subscriber = tracing_subscriber::registry().with(Limit);
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..2 * BURST {
                let entry = || tracing::info!(uid = 0_u32, pid = uid, "of an administrator");
                catch(&administers, || catch(&inner, entry)).unwrap().unwrap();
                tracing::info!(pid = uid, "of nobody");
                tracing::info!(uid, "of a user");
            }
        });
        let left_out = ENTRIES.left_out();
        assert!(left_out.contains(&(uid, BURST.into())) && left_out.len() == 1, "{left_out:?}");
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Limit), || {
            (0..2 * BURST).for_each(|_| tracing::info!(uid = 0_u32, "of root at another socket"));
        });
        assert_eq!(ENTRIES.left_out(), [(0, BURST.into())]);
    }

    #[test]
    fn the_entries_of_all_users_that_the_agent_names_have_one_burst() {
        use tracing_subscriber::layer::SubscriberExt;

        tracing::subscriber::with_default(tracing_subscriber::registry().with(Limit), || {
            let entry = |uid: u32| tracing::info!(uid, via_pid = 9_u32, "for a user");
            (300_000..300_000 + 2 * BURST).for_each(entry);
        });
        assert_eq!(ENTRIES.left_out(), [(THROUGH_AGENT, BURST.into())]);
    }
}
