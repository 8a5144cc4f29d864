//! The file of P2P-blocking powers. It outlives the node's boot: the power of a GPU does not change
//! with it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use pfo_protocol::{GpuUuid, Mhz, P2pPower, P2pSource};
use serde::{Deserialize, Serialize};

use pfo_service::{lock, parse_versioned, replace_in_own_directory};

const FORMAT: &str = "pfo-p2p/1";

/// Powers that are kept; the oldest ones are removed.
const KEPT: usize = 4096;

/// More bytes than that number of powers takes.
const MOST_BYTES: u64 = 4 << 20;

/// No GPU draws more than that.
const MOST_W: f64 = 10_000.0;

/// The longest name of a model.
const LONGEST_MODEL: usize = 96;

/// Every power that is known.
#[derive(Debug)]
pub(crate) struct P2pStore {
    path: PathBuf,
    powers: Mutex<Vec<P2pPower>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    powers: Vec<P2pPower>,
}

impl P2pStore {
    /// The powers in the directory of what outlives the node's boot. An unreadable file is put
    /// aside.
    pub(crate) fn under(state: &Path) -> Self {
        let path = state.join("p2p.json");
        let powers = read(&path).unwrap_or_else(|why| {
            let aside = path.with_extension("damaged");
            tracing::error!("no P2P-blocking powers, {} is put aside: {why}", path.display());
            let _ = fs::rename(&path, aside);
            Vec::new()
        });
        Self { path, powers: Mutex::new(powers) }
    }

    /// Every power, by model, GPU and clock.
    pub(crate) fn list(&self) -> Vec<P2pPower> {
        self.lock().clone()
    }

    /// Replaces the powers of the same GPUs, clocks and sources.
    ///
    /// # Errors
    /// If the file cannot be written; the former powers stay.
    pub(crate) fn put(&self, new: &[P2pPower]) -> io::Result<()> {
        self.change(|powers| {
            powers.retain(|old| !new.iter().any(|new| key(new) == key(old)));
            powers.extend_from_slice(new);
            let surplus = powers.len().saturating_sub(KEPT);
            powers.sort_by_key(|power| power.since_unix_s);
            powers.drain(..surplus);
            powers.sort_by(|a, b| key(a).cmp(&key(b)));
        })
    }

    /// Removes powers.
    ///
    /// # Errors
    /// If the file cannot be written; the powers stay.
    pub(crate) fn forget(&self, which: impl Fn(&P2pPower) -> bool) -> io::Result<()> {
        self.change(|powers| powers.retain(|power| !which(power)))
    }

    fn change(&self, change: impl FnOnce(&mut Vec<P2pPower>)) -> io::Result<()> {
        let mut powers = self.lock();
        let mut changed = powers.clone();
        change(&mut changed);
        let content = OnDisk { format: FORMAT.into(), powers: changed };
        replace_in_own_directory(&self.path, &serde_json::to_vec_pretty(&content)?)?;
        *powers = content.powers;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<P2pPower>> {
        lock(&self.powers)
    }
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

fn read(path: &Path) -> Result<Vec<P2pPower>, String> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MOST_BYTES + 1).read_to_end(&mut bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => Err(error),
    }
    .map_err(|error| error.to_string())?;
    parse(&bytes)
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<P2pPower>, String> {
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("it has more than {MOST_BYTES} bytes"));
    }
    let OnDisk { powers, .. } = parse_versioned(bytes, FORMAT)?;
    if powers.len() > KEPT {
        return Err(format!("it has {} powers, not at most {KEPT}", powers.len()));
    }
    let is_wrong = |power: &&P2pPower| {
        !(is_plausible(power.power_w) && power.error_w >= 0.0 && is_model(&power.model))
    };
    match powers.iter().find(is_wrong) {
        Some(wrong) => Err(format!("{} W ± {} W cannot be", wrong.power_w, wrong.error_w)),
        None => Ok(powers),
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Uid;

    use super::*;

    fn power(gpu: &str, mhz: u32, power_w: f64) -> P2pPower {
        P2pPower {
            model: "A40".into(),
            gpu_uuid: Some(gpu.parse().unwrap()),
            mhz: Some(Mhz(mhz)),
            power_w,
            error_w: 0.1,
            count: 3,
            source: P2pSource::Receive,
            by_uid: Uid(7),
            since_unix_s: 1,
        }
    }

    fn store() -> (tempfile::TempDir, P2pStore) {
        let directory = tempfile::tempdir().unwrap();
        let store = P2pStore::under(&directory.path().join("state"));
        (directory, store)
    }

    #[test]
    fn a_power_is_found_again_by_the_next_daemon_until_a_newer_one_takes_its_place() {
        let (directory, store) = store();
        assert!(store.list().is_empty());
        store.put(&[power("GPU-b", 900, 60.0), power("GPU-a", 900, 61.0)]).unwrap();
        store.put(&[power("GPU-a", 900, 62.0), power("GPU-a", 1410, 80.0)]).unwrap();
        let again = P2pStore::under(&directory.path().join("state")).list();
        assert_eq!(again, store.list());
        let powers: Vec<_> = again.iter().map(|power| power.power_w).collect();
        assert_eq!(powers, [62.0, 80.0, 60.0]);
        store.forget(|power| power.mhz == Some(Mhz(900))).unwrap();
        assert_eq!(store.list().len(), 1);
    }

    #[test]
    fn no_more_than_so_many_powers_are_kept_and_the_oldest_go() {
        let (_directory, store) = store();
        let many: Vec<_> = (0..KEPT as u32 + 9)
            .map(|i| P2pPower { since_unix_s: i.into(), ..power("GPU-a", i, 60.0) })
            .collect();
        store.put(&many).unwrap();
        let kept = store.list();
        assert_eq!((kept.len(), kept[0].since_unix_s), (KEPT, 9));
        assert!(read(&store.path).is_ok());
    }

    #[test]
    fn a_file_that_is_none_is_put_aside() {
        let (directory, store) = store();
        store.put(&[power("GPU-a", 900, 60.0)]).unwrap();
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
            assert!(P2pStore::under(&directory.path().join("state")).list().is_empty(), "{to}");
            assert!(!store.path.exists() && store.path.with_extension("damaged").exists());
        }
    }
}
