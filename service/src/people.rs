//! The person behind a uid: a subordinate uid counts as the user that `/etc/subuid` gives it to.
//! Quotas and the journal ask; no right follows from it.
//!
//! Only that file decides, because only root writes it. What a process shows of itself is not used:
//! its `uid_map` may leave its owner out, and its cgroup may be that of whoever started it.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pfo_vocabulary::Uid;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::accounts::{Accounts, NodeAccounts};

/// The file that gives subordinate uids to users.
pub const SUBORDINATE_UIDS: &str = "/etc/subuid";

/// A connection waits this long for the uid behind a name, and is counted by its range then.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long a name without an account is not looked up again.
const RETRY: Duration = Duration::from_secs(60);

/// Uids of one container. `subuid` of shadow-utils, systemd-nspawn and container engines give out as
/// many.
const CONTAINER: u32 = 1 << 16;

/// A user, and the person that it counts as: another user for a subordinate uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The user, as the kernel gave it.
    pub uid: Uid,
    /// The user that it counts as.
    pub person: Uid,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uid, person } = self;
        write!(f, "user {uid}")?;
        if person == uid { Ok(()) } else { write!(f, " of user {person}") }
    }
}

/// The people of this node.
#[derive(Debug)]
pub struct People {
    file: PathBuf,
    known: Mutex<Known>,
    /// Accounts may come from a service that hangs: one lookup at a time.
    looking_up: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Inode, size and time of change of the file that was read.
    version: Option<(u64, u64, i64, i64)>,
    given: Vec<Given>,
    accounts: HashMap<String, (Option<Uid>, Instant)>,
}

/// Subordinate uids of a user: a line of the file.
#[derive(Debug)]
struct Given {
    uids: Range<u32>,
    /// A name or a uid.
    to: String,
}

impl People {
    /// The people that a file in the format of subuid(5) tells apart.
    #[must_use]
    pub fn in_file(file: impl Into<PathBuf>) -> Self {
        Self { file: file.into(), known: Mutex::default(), looking_up: Arc::default() }
    }

    /// The person that a uid counts as, by what is known of the accounts.
    #[must_use]
    pub fn person(&self, uid: Uid) -> Uid {
        self.known().person(uid)
    }

    /// Whether two users count as one.
    #[must_use]
    pub fn are_one(&self, one: Uid, other: Uid) -> bool {
        let known = self.known();
        known.person(one) == known.person(other)
    }

    /// Like [`person`](Self::person), with the file and the accounts as they are now.
    pub async fn look_up(self: &Arc<Self>, uid: Uid) -> Uid {
        self.read();
        let unknown = self.known().unknown_name(uid);
        if let Some(name) = unknown
            && let Ok(only_one) = Arc::clone(&self.looking_up).try_lock_owned()
        {
            let people = Arc::clone(self);
            let look_up = spawn_blocking(move || {
                let account = NodeAccounts.user(&name).ok().flatten();
                people.known().accounts.insert(name, (account, Instant::now()));
                drop(only_one);
            });
            let _ = timeout(PATIENCE, look_up).await;
        }
        self.person(uid)
    }

    /// Reads the file if it has changed.
    pub fn read(&self) {
        self.known().read_again(&self.file);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn read_again(&mut self, file: &PathBuf) {
        let version = fs::metadata(file).ok();
        let version = version.map(|v| (v.ino(), v.size(), v.mtime(), v.mtime_nsec()));
        if version != self.version {
            let text = fs::read(file).unwrap_or_default();
            let given = String::from_utf8_lossy(&text).lines().filter_map(Given::parse).collect();
            *self = Self { version, given, accounts: HashMap::new() };
        }
    }

    fn given(&self, uid: Uid) -> impl Iterator<Item = &Given> {
        self.given.iter().filter(move |given| given.uids.contains(&uid.0))
    }

    fn account(&self, name: &str) -> Option<Uid> {
        let known = || self.accounts.get(name).and_then(|(account, _)| *account);
        name.parse().ok().map(Uid).or_else(known)
    }

    /// The name that decides about a uid, if it is to be looked up.
    fn unknown_name(&self, uid: Uid) -> Option<String> {
        let name = &self.given(uid).next()?.to;
        let looked_up = self.accounts.get(name).is_some_and(|(_, at)| at.elapsed() < RETRY);
        (self.account(name).is_none() && !looked_up).then(|| name.clone())
    }

    fn person(&self, uid: Uid) -> Uid {
        let mut given = self.given(uid);
        let Some(Given { uids, to }) = given.next().filter(|_| uid != Uid::ROOT) else {
            return uid;
        };
        // Given to two users, it counts as neither, together with what else both were given.
        let beginnings = given.filter(|other| other.to != *to).map(|other| other.uids.start);
        if let Some(last) = beginnings.max() {
            return Uid(last.max(uids.start));
        }
        match self.account(to) {
            // Root gives its own to containers of anybody.
            Some(Uid::ROOT) => {
                Uid(uid.0.saturating_sub(uid.0.saturating_sub(uids.start) % CONTAINER))
            }
            Some(person) => person,
            None => {
                let own = self.given.iter().filter(|other| other.to == *to);
                Uid(own.map(|own| own.uids.start).min().unwrap_or(uids.start))
            }
        }
    }
}

impl Given {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.trim().splitn(3, ':');
        let (to, start, count) = (fields.next()?, fields.next()?, fields.next()?);
        let (start, count): (u32, u32) = (start.parse().ok()?, count.parse().ok()?);
        let given = Self { uids: start..start.saturating_add(count), to: to.to_owned() };
        Some(given).filter(|_| !to.starts_with('#'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn people(text: &str) -> (tempfile::TempDir, Arc<People>) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("subuid");
        fs::write(&file, text).unwrap();
        (directory, Arc::new(People::in_file(file)))
    }

    fn persons(people: &Arc<People>, uids: &[u32]) -> Vec<u32> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let look_up = |uid: &u32| runtime.block_on(people.look_up(Uid(*uid))).0;
        uids.iter().map(look_up).collect()
    }

    #[test]
    fn every_subordinate_uid_counts_as_the_user_that_it_was_given_to() {
        let (_directory, people) = people("1001:100000:65536\n1002:165536:65536\n1001:900000:10\n");
        let uids = [1001, 99_999, 100_000, 165_535, 165_536, 231_071, 231_072, 900_009, 900_010];
        let expected = [1001, 99_999, 1001, 1001, 1002, 1002, 231_072, 1001, 900_010];
        assert_eq!(persons(&people, &uids), expected);
        assert_eq!(people.person(Uid(100_004)), Uid(1001), "without a lookup");
    }

    #[test]
    fn a_name_counts_by_its_account_and_without_one_by_its_first_range() {
        let (_directory, people) =
            people("daemon:100000:65536\nno-such-user:400000:9\nno-such-user:300000:9");
        let daemon = NodeAccounts.user("daemon").unwrap().unwrap();
        assert_eq!(persons(&people, &[100_004, 400_003, 300_007]), [daemon.0, 300_000, 300_000]);
    }

    #[test]
    fn what_two_users_were_given_counts_as_neither() {
        let (_directory, people) = people("1001:100000:65536\n1002:150000:65536\n1002:150000:9");
        assert_eq!(persons(&people, &[149_999, 165_536]), [1001, 1002]);
        assert_eq!(persons(&people, &[150_000, 165_535]), [150_000, 150_000]);
        assert_eq!(persons(&people, &[150_003]), [150_000]);
    }

    #[test]
    fn a_container_of_root_is_a_person_of_its_own_and_never_root() {
        let (_directory, people) = people("root:1000000:1000000000\n0:50:1000\n1001:0:10");
        assert_eq!(persons(&people, &[1_000_000, 1_065_535]), [1_000_000, 1_000_000]);
        assert_eq!(persons(&people, &[1_065_536, 999_999_999]), [1_065_536, 999_965_248]);
        assert_eq!(persons(&people, &[0, 1, 60]), [0, 1001, 50]);
    }

    #[test]
    fn the_file_is_read_again_when_it_has_changed_and_may_be_missing() {
        let (directory, people) = people("");
        assert_eq!(persons(&people, &[100_004]), [100_004]);
        let file = directory.path().join("subuid");
        fs::write(&file, "1001:100000:65536").unwrap();
        assert_eq!(persons(&people, &[100_004]), [1001]);
        fs::remove_file(&file).unwrap();
        assert_eq!(persons(&people, &[100_004]), [100_004]);
    }

    #[test]
    fn lines_that_are_none_give_nothing_to_anybody() {
        let text = "1001:100000\n# 1001:100000:65536\n1001:x:9\n:::\n1001:4294967295:9\n\u{fffd}";
        let (_directory, people) = people(text);
        assert_eq!(persons(&people, &[100_004, 7, u32::MAX]), [100_004, 7, u32::MAX]);
    }

    #[test]
    fn a_user_is_shown_with_the_person_that_it_counts_as() {
        let user = |uid, person| User { uid: Uid(uid), person: Uid(person) }.to_string();
        assert_eq!(user(7, 7), "user 7");
        assert_eq!(user(100_004, 7), "user 100004 of user 7");
    }
}
