//! What each person may use of a daemon beside its sessions: connections, requests per second, and
//! memory for large frames. Who wants more waits or is refused, and others are not affected. A
//! person is a user with all of its subordinate uids.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use pfo_protocol::{Refusal, RefusalCode, Uid};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::boundary::lock;
use crate::peer::Door;
use crate::people::User;
use crate::sys;

/// Connections of one person, not counting sessions: all ranks of a node open theirs at once, and a
/// command asks for each.
const PER_PERSON: u32 = 128;

/// Connections of one person while three quarters of all are open: the last quarter is for people who
/// have few.
const FEW: u32 = 8;

/// Connections of the agent, which acts for all users: two for each recording, and one for each
/// watched job.
const OF_AGENT: u32 = 512;

/// In the long run, a person may send one request in this time.
const INTERVAL: Duration = Duration::from_millis(10);

/// How far ahead of that rate a person may be: all ranks of a node connect at once.
const AHEAD: Duration = Duration::from_secs(2);

/// A frame with a larger payload is large; the daemon holds only a few of those at a time.
const LARGE_BYTES: usize = 64 * 1024;

/// Large frames at a time; each person may have one.
const LARGE_FRAMES: usize = 4;

/// Threads that look at files which a person passed. One that a file blocks is lost to that person.
const LOOKING: usize = 4;

/// How long a frame waits for one of these before its files are left alone. 64 ranks that start at once
/// on a busy node may need some.
const LOOKING_PATIENCE: Duration = Duration::from_secs(2);

/// Closed connections of one person that hold unread bytes, beyond which none is answered or admitted.
const UNREAD: usize = 256;

/// How often it is looked which of these were read, at most: whenever somebody connects.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The connections of all people. Those of sessions count only as sessions.
#[derive(Debug)]
pub struct Connections {
    by_person: Mutex<HashMap<Key, Person>>,
    large: Arc<Semaphore>,
}

/// A person at one of the sockets.
type Key = (Door, Uid);

#[derive(Debug)]
struct Person {
    open: u32,
    /// When the person's requests so far are within its rate.
    even_at: Instant,
    large: Arc<Semaphore>,
    looking: Arc<Semaphore>,
    unread: Vec<Unread>,
    looked_at: Instant,
}

/// A closed connection of which the peer has not read everything. Until it has, or is gone, the
/// kernel keeps these bytes in memory of this process.
#[derive(Debug)]
struct Unread {
    socket: OwnedFd,
    has_place: bool,
}

impl Default for Connections {
    fn default() -> Self {
        Self { by_person: Mutex::default(), large: Arc::new(Semaphore::new(LARGE_FRAMES)) }
    }
}

impl Connections {
    /// Admits a connection, if its person and all people together have fewer than they may.
    ///
    /// # Errors
    /// Which of the two has too many.
    pub fn enter(self: &Arc<Self>, door: Door, user: User, most: u32) -> Result<Entered, Refusal> {
        let mut people = self.people();
        people.values_mut().for_each(Person::forget_read);
        let key = (door, user.person);
        // The agent takes no room from users.
        let counted = people.iter().filter(|((door, _), _)| *door != Door::Agent);
        let all: u32 = counted.map(|(_, person)| person.open).sum();
        let own = people.get(&key).map_or(0, |person| person.open);
        let refused = |message: String, remedy: &str| {
            Err(Refusal::new(RefusalCode::LimitReached, message, remedy))
        };
        let own_limit = match door {
            Door::Agent => OF_AGENT,
            Door::Admin | Door::Users if all >= most.saturating_sub(most / 4) => FEW,
            Door::Admin | Door::Users => PER_PERSON,
        };
        // Root is an ordinary user, except through the socket for administration: there it is
        // admitted even when all others together are at the limit.
        let unlimited = door == Door::Admin && user.uid == Uid::ROOT;
        let unread = people.get(&key).map_or(0, |person| person.unread.len());
        if !unlimited && unread >= UNREAD {
            let message = format!("{user} has left {UNREAD} answers unread, or more");
            return refused(message, "read or close connections that were refused or have ended");
        }
        if !unlimited && own >= own_limit {
            let message = format!(
                "{user} has {own} connections open, and may not have more while {all} of {most} are \
                 open"
            );
            return refused(message, "close some, or try again later");
        }
        if !unlimited && door != Door::Agent && all >= most {
            let message = format!("{all} connections are open, the administrator allows {most}");
            return refused(message, "try again later, or ask for a higher limits.connections");
        }
        let person = people.entry(key).or_insert_with(Person::new);
        person.open = person.open.saturating_add(1);
        Ok(Entered { all: Arc::clone(self), key, unlimited })
    }

    /// Ends a connection of a person, and counts it until the peer has read what it was sent.
    pub fn close(&self, door: Door, person: Uid, socket: impl AsFd) {
        self.keep((door, person), socket, false);
    }

    fn keep(&self, key: Key, socket: impl AsFd, has_place: bool) {
        let socket = socket.as_fd();
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        if sys::unread_bytes(socket) == 0 {
            return;
        }
        let Ok(socket) = socket.try_clone_to_owned() else { return };
        let mut people = self.people();
        let person = people.entry(key).or_insert_with(Person::new);
        person.open = person.open.saturating_add(has_place.into());
        person.unread.push(Unread { socket, has_place });
    }

    /// Whether a refusal can be sent to a person who read the ones before.
    pub(crate) fn may_answer(&self, door: Door, person: Uid) -> bool {
        self.people().get(&(door, person)).is_none_or(|person| person.unread.len() < UNREAD)
    }

    /// A person is remembered after the last connection: connecting anew must not reset its rate.
    fn people(&self) -> MutexGuard<'_, HashMap<Key, Person>> {
        lock(&self.by_person)
    }
}

impl Person {
    fn new() -> Self {
        let [large, looking] = [1, LOOKING].map(|permits| Arc::new(Semaphore::new(permits)));
        let now = Instant::now();
        Self { open: 0, even_at: now, large, looking, unread: Vec::new(), looked_at: now }
    }

    /// Forgets the closed connections that were read.
    fn forget_read(&mut self) {
        if self.unread.is_empty() || self.looked_at.elapsed() < LOOK_EVERY {
            return;
        }
        self.looked_at = Instant::now();
        let Self { open, unread, .. } = self;
        unread.retain(|Unread { socket, has_place }| {
            let is_unread = sys::unread_bytes(socket.as_fd()) > 0;
            *open = open.saturating_sub((*has_place && !is_unread).into());
            is_unread
        });
    }

    /// How long the person must wait before the next request.
    fn ask(&mut self, now: Instant) -> Duration {
        let ahead = self.even_at.saturating_duration_since(now).saturating_add(INTERVAL);
        self.even_at = now.checked_add(ahead).unwrap_or(now);
        ahead.saturating_sub(AHEAD)
    }
}

/// A connection of a user.
pub struct Entered {
    all: Arc<Connections>,
    key: Key,
    unlimited: bool,
}

/// Room for a large frame, until it is dropped.
pub struct Room {
    _of_person: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Entered {
    /// Waits until the user may send another request. The agent, which sends many, and root as an
    /// administrator never wait.
    pub async fn turn(&self) {
        if self.key.0 == Door::Agent || self.unlimited {
            return;
        }
        let wait = {
            let mut people = self.all.people();
            people.get_mut(&self.key).map(|person| person.ask(Instant::now()))
        };
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            sleep(wait).await;
        }
    }

    /// Ends the connection, which has its place until the peer has read what it was sent.
    pub(crate) fn close(&self, socket: impl AsFd) {
        self.all.keep(self.key, socket, true);
    }

    /// Waits until files of the user may be looked at; `None` if those before still block.
    pub(crate) async fn room_for_files(&self) -> Option<OwnedSemaphorePermit> {
        let looking = Arc::clone(&self.all.people().get(&self.key)?.looking);
        timeout(LOOKING_PATIENCE, looking.acquire_owned()).await.ok()?.ok()
    }

    /// Waits for room for a frame, if the frame is large.
    pub async fn room_for(&self, bytes: usize) -> Option<Room> {
        if bytes <= LARGE_BYTES {
            return None;
        }
        let own = Arc::clone(&self.all.people().get(&self.key)?.large);
        // The semaphore is never closed.
        let of_person = own.acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all.large).acquire_owned().await.ok()?;
        Some(Room { _of_person: of_person, _of_all: of_all })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(person) = self.all.people().get_mut(&self.key) {
            person.open = person.open.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use tokio::runtime::{Builder, Runtime};
    use tokio::time::sleep;

    use super::*;

    const ALICE: User = user(1001);
    const BOB: User = user(1002);
    const ROOT: User = user(0);

    const fn user(uid: u32) -> User {
        User { uid: Uid(uid), person: Uid(uid) }
    }

    fn fill(all: &Arc<Connections>, door: Door, user: User, most: u32) -> Vec<Entered> {
        std::iter::from_fn(|| all.enter(door, user, most).ok()).take(1000).collect()
    }

    fn at_once<T>(waiting: impl Future<Output = T>) -> Option<T> {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { timeout(Duration::ZERO, waiting).await.ok() })
    }

    #[test]
    fn a_person_has_so_many_connections_whatever_its_uids_and_nobody_else_fewer() {
        let all = Arc::new(Connections::default());
        let sub_uid = |uid| User { uid: Uid(uid), ..ALICE };
        let entered: Vec<_> =
            (0..).map_while(|n| all.enter(Door::Users, sub_uid(100_000 + n), 1000).ok()).collect();
        assert_eq!(entered.len(), PER_PERSON as usize);
        let refusal = all.enter(Door::Users, ALICE, 1000).err().unwrap();
        assert!(refusal.message.starts_with("user 1001 has 128 connections open"), "{refusal}");
        let refusal = all.enter(Door::Users, sub_uid(100_000), 1000).err().unwrap();
        assert!(refusal.message.starts_with("user 100000 of user 1001 has 128"), "{refusal}");
        assert_eq!(fill(&all, Door::Users, BOB, 1000).len(), PER_PERSON as usize);
        drop(entered);
        assert!(all.enter(Door::Users, ALICE, 1000).is_ok());
    }

    #[test]
    fn people_who_take_all_they_can_leave_a_quarter_to_those_who_have_few() {
        let all = Arc::new(Connections::default());
        let taken: Vec<_> = (1..=10).map(|uid| fill(&all, Door::Users, user(uid), 1024)).collect();
        assert_eq!(taken.iter().map(Vec::len).sum::<usize>(), 768 + 4 * FEW as usize);
        assert_eq!(fill(&all, Door::Users, ALICE, 1024).len(), FEW as usize);
        let _rest: Vec<_> = (20..)
            .map_while(|uid| {
                let few = fill(&all, Door::Users, user(uid), 1024);
                (!few.is_empty()).then_some(few)
            })
            .collect();
        let refusal = all.enter(Door::Users, BOB, 1024).err().unwrap();
        assert!(refusal.message.starts_with("1024 connections are open"), "{refusal}");
        assert!(all.enter(Door::Admin, ROOT, 1024).is_ok());
        assert!(all.enter(Door::Agent, user(998), 1024).is_ok());
    }

    #[test]
    fn root_is_an_ordinary_user_at_the_users_door_and_the_agent_has_room_for_many() {
        let all = Arc::new(Connections::default());
        let lengths = [(Door::Users, ROOT), (Door::Agent, user(998)), (Door::Admin, ROOT)]
            .map(|(door, user)| fill(&all, door, user, 10_000).len());
        assert_eq!(lengths, [PER_PERSON as usize, OF_AGENT as usize, 1000]);
        let of_root = User { uid: Uid(1_000_000), person: Uid(1_000_000) };
        assert_eq!(fill(&all, Door::Admin, of_root, 10_000).len(), PER_PERSON as usize);
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
        let root = all.enter(Door::Admin, ROOT, 1000).unwrap();
        assert!((0..10 * ahead).all(|_| at_once(root.turn()).is_some()));
    }

    #[test]
    fn a_person_holds_one_large_frame_and_leaves_room_for_others() {
        let all = Arc::new(Connections::default());
        let enter = |user| all.enter(Door::Users, user, 1000).unwrap();
        let other_uid = User { uid: Uid(100_004), ..ALICE };
        let (one, other) = (enter(ALICE), enter(other_uid));
        let room = at_once(one.room_for(LARGE_BYTES + 1)).unwrap();
        assert!(room.is_some());
        assert!(at_once(other.room_for(LARGE_BYTES + 1)).is_none());
        assert!(at_once(other.room_for(LARGE_BYTES)).unwrap().is_none());
        let rooms: Vec<_> =
            (0..).map_while(|uid| at_once(enter(user(2000 + uid)).room_for(1 << 20))).collect();
        assert_eq!(rooms.len(), LARGE_FRAMES - 1);
        drop((room, rooms));
        assert!(at_once(other.room_for(LARGE_BYTES + 1)).is_some());
    }

    /// Both ends of a connection, over which something was sent.
    fn sent() -> (UnixStream, UnixStream) {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"answer").unwrap();
        (near, far)
    }

    fn look_again(all: &Connections) {
        all.people().values_mut().for_each(|person| person.looked_at -= LOOK_EVERY);
    }

    #[test]
    fn a_connection_keeps_its_place_until_its_peer_has_read_what_it_was_sent() {
        let all = Arc::new(Connections::default());
        let enter = || all.enter(Door::Users, ALICE, 1000);
        let mut peers: Vec<_> = (0..PER_PERSON)
            .map(|_| {
                let (entered, (near, far)) = (enter().unwrap(), sent());
                entered.close(&near);
                far
            })
            .collect();
        assert!(enter().is_err());
        assert!(all.enter(Door::Users, BOB, 1000).is_ok());
        let mut read = Vec::new();
        peers[0].read_to_end(&mut read).unwrap();
        assert_eq!(read, b"answer");
        drop(peers.pop());
        look_again(&all);
        assert_eq!(fill(&all, Door::Users, ALICE, 1000).len(), 2);
    }

    #[test]
    fn who_reads_no_refusal_gets_no_more_of_them_and_no_other_connection() {
        let all = Arc::new(Connections::default());
        let refuse = |_| {
            let (near, far) = sent();
            all.close(Door::Users, ALICE.person, &near);
            far
        };
        let peers: Vec<_> = (0..UNREAD).map(refuse).collect();
        assert!(!all.may_answer(Door::Users, ALICE.person));
        let refusal = all.enter(Door::Users, ALICE, 1000).err().unwrap();
        assert!(refusal.message.contains("has left 256 answers unread"), "{refusal}");
        assert!(all.may_answer(Door::Users, BOB.person));
        drop(peers);
        look_again(&all);
        assert!(all.enter(Door::Users, ALICE, 1000).is_ok());
        assert!(all.may_answer(Door::Users, ALICE.person));
    }

    fn paused() -> Runtime {
        let mut paused = Builder::new_current_thread();
        paused.enable_time().start_paused(true).build().unwrap()
    }

    #[test]
    fn files_that_block_cost_their_user_the_proof_and_nobody_else() {
        let all = Arc::new(Connections::default());
        let enter = |uid| all.enter(Door::Users, uid, 1000).unwrap();
        let runtime = paused();
        let room = |entered: &Entered| runtime.block_on(entered.room_for_files());
        let (blocking, again) = (enter(ALICE), enter(ALICE));
        let mut blocked: Vec<_> = (0..LOOKING).map(|_| room(&blocking).unwrap()).collect();
        assert!(room(&again).is_none());
        assert!(room(&enter(BOB)).is_some());
        blocked.pop();
        assert!(room(&again).is_some());
    }

    #[test]
    fn sixty_four_ranks_that_start_at_once_where_a_look_at_their_files_takes_100_ms_have_it() {
        let all = Arc::new(Connections::default());
        let runtime = paused();
        let look = |entered: Entered| async move {
            let room = entered.room_for_files().await;
            sleep(Duration::from_millis(100)).await;
            room.is_some()
        };
        let enter = |_| all.enter(Door::Users, ALICE, 1000).unwrap();
        let looks: Vec<_> = (0..64).map(|n| runtime.spawn(look(enter(n)))).collect();
        for looked in looks {
            assert!(runtime.block_on(looked).unwrap());
        }
    }
}
