//! The file of P2P-blocking powers. It outlives the node's boot: the power of a GPU does not change
//! with it.
//!
//! Administrators measure and set those of the node. What a user measures is the user's own: plans
//! of others would use it otherwise.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use pfo_protocol::{GpuUuid, Mhz, P2pPower, P2pSource, Uid};
use serde::{Deserialize, Serialize};

use pfo_service::{People, lock, parse_versioned, replace_in_own_directory};

const FORMAT: &str = "pfo-p2p/1";

/// Powers of the node, and of all users, that are kept; the oldest ones are removed.
const KEPT: usize = 4096;

/// Powers that one person measured that are kept.
const KEPT_PER_PERSON: usize = 256;

/// More bytes than twice that number of powers takes.
const MOST_BYTES: u64 = 8 << 20;

/// No GPU draws more than that.
const MOST_W: f64 = 10_000.0;

/// The longest name of a model.
const LONGEST_MODEL: usize = 96;

/// Every power that is known.
#[derive(Debug)]
pub(crate) struct P2pStore {
    path: PathBuf,
    people: Arc<People>,
    powers: Mutex<Powers>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Powers {
    of_node: Vec<P2pPower>,
    of_users: Vec<P2pPower>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    powers: Vec<P2pPower>,
    /// Release 0.1 kept what users measured among the others.
    of_users: Option<Vec<P2pPower>>,
}

impl Powers {
    /// Those of the node, then those of users.
    pub(crate) fn all(&self) -> impl Iterator<Item = &P2pPower> {
        self.of_node.iter().chain(&self.of_users)
    }
}

impl P2pStore {
    /// The powers in the directory of what outlives the node's boot. An unreadable file is put
    /// aside.
    pub(crate) fn under(state: &Path, people: Arc<People>) -> Self {
        let path = state.join("p2p.json");
        let powers = read(&path).unwrap_or_else(|why| {
            let aside = path.with_extension("damaged");
            tracing::error!("no P2P-blocking powers, {} is put aside: {why}", path.display());
            let _ = fs::rename(&path, aside);
            Powers::default()
        });
        Self { path, people, powers: Mutex::new(powers) }
    }

    /// The powers that a user plans with, by model, GPU and clock: those that the user measured,
    /// and the node's where there is none.
    pub(crate) fn list(&self, uid: Uid) -> Vec<P2pPower> {
        let powers = self.lock();
        let mut listed: Vec<_> =
            powers.of_users.iter().filter(|power| power.by_uid == uid).cloned().collect();
        let of_node = powers.of_node.iter();
        listed.extend(of_node.filter(|power| !holds(&listed, power)).cloned().collect::<Vec<_>>());
        listed.sort_by(|a, b| key(a).cmp(&key(b)));
        listed
    }

    /// Replaces the powers of the same GPUs, clocks and sources: those of the node if `trusted`,
    /// and the user's own otherwise.
    ///
    /// # Errors
    /// If the file cannot be written; the former powers stay.
    pub(crate) fn put(&self, new: &[P2pPower], trusted: bool) -> io::Result<()> {
        self.change(|Powers { of_node, of_users }| {
            if trusted {
                of_node.retain(|old| !holds(new, old));
                keep_newest(of_node, new, KEPT, |_| true);
                return;
            }
            let Some(uid) = new.first().map(|power| power.by_uid) else { return };
            of_users.retain(|old| old.by_uid != uid || !holds(new, old));
            let is_own = |old: &P2pPower| self.people.are_one(uid, old.by_uid);
            keep_newest(of_users, new, KEPT_PER_PERSON, is_own);
            keep_newest(of_users, &[], KEPT, |_| true);
        })
    }

    /// Removes powers of the node.
    ///
    /// # Errors
    /// If the file cannot be written; the powers stay.
    pub(crate) fn forget(&self, which: impl Fn(&P2pPower) -> bool) -> io::Result<()> {
        self.change(|powers| powers.of_node.retain(|power| !which(power)))
    }

    fn change(&self, change: impl FnOnce(&mut Powers)) -> io::Result<()> {
        let mut powers = self.lock();
        let mut changed = powers.clone();
        change(&mut changed);
        let Powers { of_node, of_users } = changed.clone();
        let content = OnDisk { format: FORMAT.into(), powers: of_node, of_users: Some(of_users) };
        replace_in_own_directory(&self.path, &serde_json::to_vec_pretty(&content)?)?;
        *powers = changed;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Powers> {
        lock(&self.powers)
    }
}

/// Adds powers, and of those that count keeps the newest ones.
fn keep_newest(
    powers: &mut Vec<P2pPower>,
    new: &[P2pPower],
    most: usize,
    counts: impl Fn(&P2pPower) -> bool,
) {
    powers.extend_from_slice(new);
    powers.sort_by_key(|power| power.since_unix_s);
    let mut surplus = powers.iter().filter(|power| counts(power)).count().saturating_sub(most);
    powers.retain(|power| {
        let is_surplus = surplus > 0 && counts(power);
        surplus = surplus.saturating_sub(usize::from(is_surplus));
        !is_surplus
    });
}

/// Whether there is a power of the same GPU, clock and source.
fn holds(powers: &[P2pPower], power: &P2pPower) -> bool {
    powers.iter().any(|other| key(other) == key(power))
}

fn key(power: &P2pPower) -> (&str, Option<&str>, P2pSource, Option<Mhz>) {
    let gpu = power.gpu_uuid.as_ref().map(GpuUuid::as_str);
    (&power.model, gpu, power.source, power.mhz)
}

/// Whether a GPU may draw this.
pub(crate) fn is_plausible(power_w: f64) -> bool {
    power_w > 0.0 && power_w <= MOST_W
}

/// Whether this may be the model of a GPU.
pub(crate) fn is_model(name: &str) -> bool {
    (1..=LONGEST_MODEL).contains(&name.len()) && !name.contains(char::is_control)
}

fn read(path: &Path) -> Result<Powers, String> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MOST_BYTES + 1).read_to_end(&mut bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Powers::default()),
        Err(error) => Err(error),
    }
    .map_err(|error| error.to_string())?;
    parse(&bytes)
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Powers, String> {
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("it has more than {MOST_BYTES} bytes"));
    }
    let OnDisk { powers, of_users, .. } = parse_versioned(bytes, FORMAT)?;
    let (of_node, of_users) = match of_users {
        Some(of_users) => (powers, of_users),
        None => powers.into_iter().partition(|power| power.source == P2pSource::Set),
    };
    let count = of_node.len().max(of_users.len());
    if count > KEPT {
        return Err(format!("it has {count} powers, not at most {KEPT}"));
    }
    let is_wrong = |power: &&P2pPower| {
        !(is_plausible(power.power_w) && power.error_w >= 0.0 && is_model(&power.model))
    };
    let powers = Powers { of_node, of_users };
    if let Some(wrong) = powers.all().find(is_wrong) {
        return Err(format!("{} W ± {} W cannot be", wrong.power_w, wrong.error_w));
    }
    Ok(powers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Uid = Uid(7);

    fn power(gpu: &str, mhz: u32, power_w: f64) -> P2pPower {
        P2pPower {
            model: "A40".into(),
            gpu_uuid: Some(gpu.parse().unwrap()),
            mhz: Some(Mhz(mhz)),
            power_w,
            error_w: 0.1,
            count: 3,
            source: P2pSource::Receive,
            by_uid: USER,
            since_unix_s: 1,
        }
    }

    /// The store in a directory. User 7 has subordinate uids from 100000 on.
    fn store_in(directory: &Path) -> P2pStore {
        let subuid = directory.join("subuid");
        fs::write(&subuid, "7:100000:65536").unwrap();
        let people = People::in_file(subuid);
        people.read();
        P2pStore::under(&directory.join("state"), Arc::new(people))
    }

    fn store() -> (tempfile::TempDir, P2pStore) {
        let directory = tempfile::tempdir().unwrap();
        let store = store_in(directory.path());
        (directory, store)
    }

    #[test]
    fn a_power_is_found_again_by_the_next_daemon_until_a_newer_one_takes_its_place() {
        let (directory, store) = store();
        assert!(store.list(USER).is_empty());
        store.put(&[power("GPU-b", 900, 60.0), power("GPU-a", 900, 61.0)], true).unwrap();
        store.put(&[power("GPU-a", 900, 62.0), power("GPU-a", 1410, 80.0)], true).unwrap();
        let again = store_in(directory.path()).list(USER);
        assert_eq!(again, store.list(USER));
        let powers: Vec<_> = again.iter().map(|power| power.power_w).collect();
        assert_eq!(powers, [62.0, 80.0, 60.0]);
        store.forget(|power| power.mhz == Some(Mhz(900))).unwrap();
        assert_eq!(store.list(USER).len(), 1);
    }

    #[test]
    fn no_more_than_so_many_powers_are_kept_and_the_oldest_go() {
        let (_directory, store) = store();
        let many: Vec<_> = (0..KEPT as u32 + 9)
            .map(|i| P2pPower { since_unix_s: i.into(), ..power("GPU-a", i, 60.0) })
            .collect();
        store.put(&many, true).unwrap();
        let kept = store.list(USER);
        assert_eq!((kept.len(), kept[0].since_unix_s), (KEPT, 9));
        assert!(read(&store.path).is_ok());
    }

    #[test]
    fn what_a_user_measured_is_seen_by_no_other_and_goes_before_what_the_node_has() {
        let (directory, store) = store();
        store.put(&[power("GPU-a", 900, 60.0), power("GPU-b", 900, 61.0)], true).unwrap();
        store.put(&[power("GPU-a", 900, 99.0)], false).unwrap();
        let watts = |store: &P2pStore, uid| -> Vec<_> {
            store.list(uid).iter().map(|power| power.power_w).collect()
        };
        for store in [&store, &store_in(directory.path())] {
            assert_eq!(watts(store, USER), [99.0, 61.0]);
            assert_eq!(watts(store, Uid(8)), [60.0, 61.0]);
            assert_eq!(
                watts(store, Uid(100_004)),
                [60.0, 61.0],
                "it counts as the user, and is none"
            );
        }
        store.put(&[power("GPU-a", 900, 62.0)], true).unwrap();
        assert_eq!(watts(&store, USER), [99.0, 61.0]);
    }

    #[test]
    fn a_person_keeps_so_many_measured_powers_and_removes_those_of_nobody_else() {
        let (_directory, store) = store();
        let many = |uid, count: usize| -> Vec<_> {
            let one = |mhz| P2pPower { by_uid: Uid(uid), ..power("GPU-a", mhz, 60.0) };
            (0..count as u32).map(one).collect()
        };
        store.put(&many(8, 3), false).unwrap();
        store.put(&many(7, KEPT_PER_PERSON), false).unwrap();
        store.put(&many(100_004, KEPT_PER_PERSON), false).unwrap();
        let count = |uid| store.list(Uid(uid)).len();
        assert_eq!((count(7) + count(100_004), count(8)), (KEPT_PER_PERSON, 3));
    }

    #[test]
    fn what_was_measured_under_release_0_1_belongs_to_its_user() {
        let (_directory, store) = store();
        let set = P2pPower { source: P2pSource::Set, ..power("GPU-b", 900, 65.0) };
        store.put(&[power("GPU-a", 900, 60.0), set], true).unwrap();
        let file = fs::read_to_string(&store.path).unwrap();
        let Powers { of_node, of_users } = parse(file.as_bytes()).unwrap();
        assert_eq!((of_node.len(), of_users.len()), (2, 0));
        let old = file.replace(",\n  \"of_users\": []", "");
        assert_ne!(old, file);
        let Powers { of_node, of_users } = parse(old.as_bytes()).unwrap();
        assert_eq!((of_node[0].power_w, of_users[0].power_w), (65.0, 60.0));
    }

    #[test]
    fn a_file_that_is_none_is_put_aside() {
        let (directory, store) = store();
        store.put(&[power("GPU-a", 900, 60.0)], true).unwrap();
        let good = fs::read_to_string(&store.path).unwrap();
        assert!(parse(good.as_bytes()).is_ok());
        for (from, to) in [
            ("pfo-p2p/1", "pfo-p2p/2"),
            ("60.0", "-60.0"),
            ("60.0", "1e9"),
            ("\"count\"", "\"more\": 1, \"count\""),
            ("receive", "guess"),
            ("A40", "\\n"),
        ] {
            assert!(good.contains(from));
            fs::write(&store.path, good.replace(from, to)).unwrap();
            assert!(store_in(directory.path()).list(USER).is_empty(), "{to}");
            assert!(!store.path.exists() && store.path.with_extension("damaged").exists());
        }
    }
}
