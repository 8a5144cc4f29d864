//! What each user may use of a daemon beside its sessions: connections, requests per second, and
//! memory for large frames. A user who wants more waits or is refused, and other users are not
//! affected.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::peer::Door;
use pfo_protocol::{Refusal, RefusalCode, Uid};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

/// Connections of one user, not counting sessions.
const PER_USER: u32 = 16;

/// Connections of the agent, which acts for all users: two for each recording, and one for each
/// watched job.
const OF_AGENT: u32 = 512;

/// In the long run, a user may send one request in this time.
const INTERVAL: Duration = Duration::from_millis(10);

/// How far ahead of that rate a user may be: all ranks of a node connect at once.
const AHEAD: Duration = Duration::from_secs(2);

/// A frame with a larger payload is large; the daemon holds only a few of those at a time.
const LARGE_BYTES: usize = 64 * 1024;

/// Large frames at a time; each user may have one.
const LARGE_FRAMES: usize = 4;

/// Threads that look at files which a user passed. One that a file blocks is lost to its user.
const LOOKING: usize = 4;

/// How long a user's frame waits for one of these before its files are left alone.
const LOOKING_PATIENCE: Duration = Duration::from_millis(250);

/// The connections of all users. Those of sessions count only as sessions.
#[derive(Debug)]
pub struct Connections {
    by_user: Mutex<HashMap<(Door, Uid), User>>,
    large: Arc<Semaphore>,
}

#[derive(Debug)]
struct User {
    open: u32,
    /// When the user's requests so far are within its rate.
    even_at: Instant,
    large: Arc<Semaphore>,
    looking: Arc<Semaphore>,
}

impl Default for Connections {
    fn default() -> Self {
        Self { by_user: Mutex::default(), large: Arc::new(Semaphore::new(LARGE_FRAMES)) }
    }
}

impl Connections {
    /// Admits a connection, if its user and all users together have fewer than they may.
    ///
    /// # Errors
    /// Which of the two has too many.
    pub fn enter(self: &Arc<Self>, door: Door, uid: Uid, most: u32) -> Result<Entered, Refusal> {
        let mut users = self.users();
        let all: u32 = users.values().map(|user| user.open).sum();
        let own = users.get(&(door, uid)).map_or(0, |user| user.open);
        let refused = |message: String, remedy: &str| {
            Err(Refusal::new(RefusalCode::LimitReached, message, remedy))
        };
        let own_limit = match door {
            Door::Agent => OF_AGENT,
            Door::Admin | Door::Users => PER_USER,
        };
        // An administrator is admitted even when all other users together are at the limit.
        if !is_unlimited(door, uid) && own >= own_limit {
            let message = format!("user {uid} has {own} connections open, and may not have more");
            return refused(message, "close some");
        }
        if !is_unlimited(door, uid) && all >= most {
            let message = format!("{all} connections are open, the administrator allows {most}");
            return refused(message, "try again later, or ask for a higher limits.connections");
        }
        let user = users.entry((door, uid)).or_insert_with(User::new);
        user.open = user.open.saturating_add(1);
        Ok(Entered { all: Arc::clone(self), door, uid })
    }

    /// A user is remembered after its last connection: connecting anew must not reset its rate.
    fn users(&self) -> MutexGuard<'_, HashMap<(Door, Uid), User>> {
        self.by_user.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl User {
    fn new() -> Self {
        let [large, looking] = [1, LOOKING].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { open: 0, even_at: Instant::now(), large, looking }
    }

    /// How long the user must wait before its next request.
    fn ask(&mut self, now: Instant) -> Duration {
        self.even_at = self.even_at.max(now) + INTERVAL;
        self.even_at.saturating_duration_since(now + AHEAD)
    }
}

/// Root is an ordinary user, except through the socket for administration.
fn is_unlimited(door: Door, uid: Uid) -> bool {
    door == Door::Admin && uid == Uid::ROOT
}

/// A connection of a user.
pub struct Entered {
    all: Arc<Connections>,
    door: Door,
    uid: Uid,
}

/// Room for a large frame, until it is dropped.
pub struct Room {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Entered {
    /// Waits until the user may send another request. The agent, which sends many, and root as an
    /// administrator never wait.
    pub async fn turn(&self) {
        if self.door == Door::Agent || is_unlimited(self.door, self.uid) {
            return;
        }
        let wait = {
            let mut users = self.all.users();
            users.get_mut(&(self.door, self.uid)).map(|user| user.ask(Instant::now()))
        };
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            sleep(wait).await;
        }
    }

    /// Waits until files of the user may be looked at; `None` if those before still block.
    pub(crate) async fn room_for_files(&self) -> Option<OwnedSemaphorePermit> {
        let looking = Arc::clone(&self.all.users().get(&(self.door, self.uid))?.looking);
        timeout(LOOKING_PATIENCE, looking.acquire_owned()).await.ok()?.ok()
    }

    /// Waits for room for a frame, if the frame is large.
    pub async fn room_for(&self, bytes: usize) -> Option<Room> {
        if bytes <= LARGE_BYTES {
            return None;
        }
        let own = Arc::clone(&self.all.users().get(&(self.door, self.uid))?.large);
        // The semaphore is never closed.
        let of_user = own.acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all.large).acquire_owned().await.ok()?;
        Some(Room { _of_user: of_user, _of_all: of_all })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(user) = self.all.users().get_mut(&(self.door, self.uid)) {
            user.open = user.open.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Uid = Uid(1001);
    const BOB: Uid = Uid(1002);

    fn at_once<T>(waiting: impl Future<Output = T>) -> Option<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { timeout(Duration::ZERO, waiting).await.ok() })
    }

    #[test]
    fn a_user_has_so_many_connections_and_root_has_more() {
        let all = Arc::new(Connections::default());
        let entered: Vec<_> =
            (0..PER_USER).map(|_| all.enter(Door::Users, ALICE, 1000).unwrap()).collect();
        let refusal = all.enter(Door::Users, ALICE, 1000).err().unwrap();
        assert!(refusal.message.contains("user 1001 has 16 connections"), "{refusal}");
        let refusal = all.enter(Door::Users, BOB, PER_USER).err().unwrap();
        assert!(refusal.message.contains("16 connections are open"), "{refusal}");
        assert!(
            all.enter(Door::Users, BOB, 1000).is_ok()
                && all.enter(Door::Admin, Uid::ROOT, PER_USER).is_ok()
        );
        drop(entered);
        assert!(all.enter(Door::Users, ALICE, PER_USER).is_ok());
    }

    #[test]
    fn root_is_an_ordinary_user_at_the_users_door_and_the_agent_has_room_for_many() {
        let all = Arc::new(Connections::default());
        let fill = |door, uid| -> Vec<_> {
            std::iter::from_fn(|| all.enter(door, uid, 10_000).ok()).take(1000).collect()
        };
        let (root, agent) = (fill(Door::Users, Uid::ROOT), fill(Door::Agent, Uid(998)));
        assert_eq!((root.len(), agent.len()), (PER_USER as usize, OF_AGENT as usize));
        assert_eq!(fill(Door::Admin, Uid::ROOT).len(), 1000);
    }

    #[test]
    fn who_asks_without_a_pause_waits_in_the_end_however_often_it_connects_anew() {
        let all = Arc::new(Connections::default());
        let ahead = (AHEAD.as_millis() / INTERVAL.as_millis()) as usize;
        let asked = (0..10 * ahead).take_while(|_| {
            let entered = all.enter(Door::Users, ALICE, 1000).unwrap();
            at_once(entered.turn()).is_some()
        });
        // A busy machine pays something off meanwhile.
        assert!((ahead..3 * ahead).contains(&asked.count()));
        assert!(at_once(all.enter(Door::Users, BOB, 1000).unwrap().turn()).is_some());
        let root = all.enter(Door::Admin, Uid::ROOT, 1000).unwrap();
        assert!((0..10 * ahead).all(|_| at_once(root.turn()).is_some()));
    }

    #[test]
    fn a_user_holds_one_large_frame_and_leaves_room_for_others() {
        let all = Arc::new(Connections::default());
        let enter = |uid| all.enter(Door::Users, uid, 1000).unwrap();
        let (one, other) = (enter(ALICE), enter(ALICE));
        let room = at_once(one.room_for(LARGE_BYTES + 1)).unwrap();
        assert!(room.is_some());
        assert!(at_once(other.room_for(LARGE_BYTES + 1)).is_none());
        assert!(at_once(other.room_for(LARGE_BYTES)).unwrap().is_none());
        let rooms: Vec<_> =
            (0..).map_while(|user| at_once(enter(Uid(BOB.0 + user)).room_for(1 << 20))).collect();
        assert_eq!(rooms.len(), LARGE_FRAMES - 1);
        drop((room, rooms));
        assert!(at_once(other.room_for(LARGE_BYTES + 1)).is_some());
    }

    #[test]
    fn files_that_block_cost_their_user_the_proof_and_nobody_else() {
        let all = Arc::new(Connections::default());
        let enter = |uid| all.enter(Door::Users, uid, 1000).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let room = |entered: &Entered| runtime.block_on(entered.room_for_files());
        let (blocking, again) = (enter(ALICE), enter(ALICE));
        let mut blocked: Vec<_> = (0..LOOKING).map(|_| room(&blocking).unwrap()).collect();
        assert!(room(&again).is_none());
        assert!(room(&enter(BOB)).is_some());
        blocked.pop();
        assert!(room(&again).is_some());
    }
}
