//! What pfo has locked or limited, on disk *before* it is locked: NVML cannot report it, and the
//! daemon may die at any instant. It must not call the driver.
//!
//! The file is only ever replaced as a whole. Locks vanish at a reboot, and so do entries of
//! another boot. While one daemon has the ledger open, no other can open it, lest a second one undo
//! the locks of the first.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use pfo_vocabulary::{GpuUuid, JobName, Pid, SessionId, Uid};
use serde::{Deserialize, Serialize};

use crate::base_clock::BaseClock;
use crate::power_limit::OwedLimit;
use crate::replace::replace;
use crate::salvage::{Damage, Salvaged, salvage};

pub(crate) const FORMAT: &str = "pfo-ledger/1";

/// The extension of the file beside the ledger that is locked.
const LOCK: &str = "lock";

/// Why the ledger cannot be relied on.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Reading or writing failed.
    #[error("cannot {action} the ledger {path}: {source}; pfod runs as root")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Another daemon has it open.
    #[error("another pfod has the ledger {0} open; stop it first")]
    InUse(PathBuf),
}

/// What is locked on one GPU, and on whose behalf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The GPU.
    pub gpu_uuid: GpuUuid,
    /// The SM clock is or may be locked.
    pub sm: bool,
    /// The memory clock is or may be locked.
    pub memory: bool,
    /// What the SM clock is to be restored to.
    #[serde(default, skip_serializing_if = "BaseClock::is_reset")]
    pub restore_to_mhz: BaseClock,
    /// The power limit is or may be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit: Option<OwedLimit>,
    /// The job.
    pub job: JobName,
    /// The user.
    pub uid: Uid,
    /// The process.
    pub pid: Pid,
    /// The session.
    pub session: SessionId,
}

impl Entry {
    fn owes(&self) -> bool {
        self.sm || self.memory || self.power_limit.is_some()
    }
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OnDisk {
    pub(crate) format: String,
    pub(crate) boot_id: String,
    pub(crate) entries: Vec<Entry>,
}

/// The ledger file and its content.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    boot_id: String,
    entries: Mutex<Vec<Entry>>,
    damage: Mutex<Option<Damage>>,
    _held: Flock<File>,
}

impl Ledger {
    /// Opens the ledger, with what a predecessor left in it. A damaged file is salvaged entry by
    /// entry. If that loses any, it is kept beside the ledger until the loss is acknowledged; see
    /// [`damage`](Self::damage).
    ///
    /// # Errors
    /// If another process has it open.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let held = hold(path)?;
        let boot_id = boot_id();
        let Salvaged { entries, damage } = read(path, &boot_id);
        let damage = Mutex::new(keep_damaged(path, &boot_id, damage));
        let entries = Mutex::new(entries);
        Ok(Self { path: path.to_owned(), boot_id, entries, damage, _held: held })
    }

    /// What was wrong with the file when it was opened, and whether every lock in it is known
    /// nevertheless. A loss stands, for later daemons too, until it is acknowledged.
    #[must_use]
    pub fn damage(&self) -> Option<Damage> {
        lock(&self.damage).clone()
    }

    /// Checks that the ledger is not on a read-only mount. A full disk passes.
    ///
    /// # Errors
    /// If it is.
    pub fn check_writable(&self) -> Result<(), LedgerError> {
        match File::options().append(true).open(self.path.with_extension(LOCK)) {
            Err(source) if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                Err(LedgerError::Io { action: "write", path: self.path.clone(), source })
            }
            _ => Ok(()),
        }
    }

    /// Reports the loss no more. Returns what was lost.
    ///
    /// # Errors
    /// If that could not be written; the loss then stands.
    pub fn acknowledge(&self) -> Result<Option<Damage>, LedgerError> {
        let failed = |source| LedgerError::Io { action: "write", path: self.path.clone(), source };
        // A damaged file that nothing has replaced yet would be found again.
        self.write(&lock(&self.entries)).map_err(failed)?;
        match fs::remove_file(damaged(&self.path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(lock(&self.damage).take()),
        }
    }

    /// Everything that is or may be locked now.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        lock(&self.entries).clone()
    }

    /// The entry of one GPU.
    #[must_use]
    pub fn entry(&self, gpu: &GpuUuid) -> Option<Entry> {
        lock(&self.entries).iter().find(|entry| entry.gpu_uuid == *gpu).cloned()
    }

    /// Replaces the entry of the GPU, on disk when it returns. An entry with nothing locked is
    /// removed.
    ///
    /// # Errors
    /// If it could not be written; the ledger is then as before, and nothing may be locked.
    pub fn record(&self, entry: Entry) -> Result<(), LedgerError> {
        self.change(|entries| {
            entries.retain(|other| other.gpu_uuid != entry.gpu_uuid);
            if entry.owes() {
                entries.push(entry);
            }
        })
    }

    /// Removes the entry of a GPU, after its clocks were restored.
    ///
    /// # Errors
    /// If it could not be written; the entry stays, and restoring once more does no harm.
    pub fn clear(&self, gpu: &GpuUuid) -> Result<(), LedgerError> {
        self.change(|entries| entries.retain(|entry| entry.gpu_uuid != *gpu))
    }

    fn change(&self, edit: impl FnOnce(&mut Vec<Entry>)) -> Result<(), LedgerError> {
        let mut entries = lock(&self.entries);
        let mut changed = entries.clone();
        edit(&mut changed);
        if changed != *entries {
            self.write(&changed).map_err(|source| LedgerError::Io {
                action: "write",
                path: self.path.clone(),
                source,
            })?;
            *entries = changed;
        }
        Ok(())
    }

    fn write(&self, entries: &[Entry]) -> io::Result<()> {
        let content = OnDisk {
            format: FORMAT.into(),
            boot_id: self.boot_id.clone(),
            entries: entries.to_vec(),
        };
        replace(&self.path, &serde_json::to_vec_pretty(&content)?)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic in the middle of a change: only what is on disk counts now, for the next daemon.
    shared.lock().unwrap_or_else(|_| std::process::abort())
}

/// Keeps other daemons out for as long as the result lives, and no longer than this process. The
/// lock is on a file beside the ledger, because the ledger is another file after each change.
fn hold(path: &Path) -> Result<Flock<File>, LedgerError> {
    let failed = |source| LedgerError::Io { action: "lock", path: path.to_owned(), source };
    let path_of_lock = path.with_extension(LOCK);
    // A user who could open this file could lock it, and keep the daemon from starting.
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    // Not open for writing: its directory may become read-only.
    let file = File::open(&path_of_lock)
        .or_else(|_| options.open(&path_of_lock).and_then(|_| File::open(&path_of_lock)))
        .map_err(failed)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => LedgerError::InUse(path.to_owned()),
        errno => failed(errno.into()),
    })
}

fn read(path: &Path, boot_id: &str) -> Salvaged {
    match fs::read(path) {
        Ok(bytes) => salvage(&bytes, boot_id),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Salvaged::default(),
        Err(error) => Salvaged::lost(format!("it cannot be read: {error}")),
    }
}

/// Where a ledger is kept whose entries are lost.
fn damaged(ledger: &Path) -> PathBuf {
    ledger.with_extension("damaged")
}

/// Keeps a ledger whose entries are lost. Returns the damage that stands: an earlier one that
/// nobody has acknowledged, or the one found now.
fn keep_damaged(path: &Path, boot_id: &str, found: Option<Damage>) -> Option<Damage> {
    let kept = damaged(path);
    let is_loss = |damage: &Damage| damage.lost_entries;
    let earlier = read(&kept, boot_id).damage.filter(is_loss);
    if earlier.is_none() {
        let _ = fs::remove_file(&kept);
        if let Some(loss) = found.as_ref().filter(|found| is_loss(found))
            // A link takes no space: the disk may be full.
            && fs::hard_link(path, &kept).is_err()
        {
            let _ = fs::write(&kept, &loss.reason);
        }
    }
    earlier.or(found)
}

/// The kernel's name of this boot: locks do not outlive it.
fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfo_vocabulary::Milliwatts;

    fn entry(gpu: &str) -> Entry {
        Entry {
            gpu_uuid: gpu.parse().unwrap(),
            sm: true,
            memory: false,
            restore_to_mhz: BaseClock::Reset,
            power_limit: None,
            job: "j".parse().unwrap(),
            uid: Uid(1),
            pid: Pid(2),
            session: SessionId(3),
        }
    }

    #[test]
    fn a_successor_reads_what_its_predecessor_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.json");
        let ledger = Ledger::open(&path).unwrap();
        ledger.record(entry("GPU-a")).unwrap();
        ledger.record(entry("GPU-b")).unwrap();
        ledger.clear(&"GPU-a".parse().unwrap()).unwrap();
        drop(ledger);
        assert_eq!(Ledger::open(&path).unwrap().entries(), [entry("GPU-b")]);
    }

    #[test]
    fn nobody_opens_a_ledger_that_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.json");
        let _ledger = Ledger::open(&path).unwrap();
        assert!(matches!(Ledger::open(&path), Err(LedgerError::InUse(_))));
    }

    #[test]
    fn an_entry_with_nothing_locked_is_no_entry() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&directory.path().join("ledger.json")).unwrap();
        ledger.record(entry("GPU-a")).unwrap();
        ledger.record(Entry { sm: false, ..entry("GPU-a") }).unwrap();
        assert!(ledger.entries().is_empty());
    }

    #[test]
    fn a_power_limit_alone_is_an_entry_and_a_ledger_from_before_there_were_any_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.json");
        let ledger = Ledger::open(&path).unwrap();
        let owed = OwedLimit::for_limit(Milliwatts(200_000), Milliwatts(300_000), None);
        let limited = Entry { sm: false, power_limit: Some(owed), ..entry("GPU-a") };
        ledger.record(limited.clone()).unwrap();
        drop(ledger);
        let ledger = Ledger::open(&path).unwrap();
        assert_eq!(ledger.entries(), [limited]);
        ledger.record(entry("GPU-a")).unwrap();
        assert!(!fs::read_to_string(&path).unwrap().contains("power"));
        drop(ledger);
        assert_eq!(Ledger::open(&path).unwrap().entries(), [entry("GPU-a")]);
    }

    #[test]
    fn what_cannot_be_written_is_not_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&directory.path().join("ledger.json")).unwrap();
        ledger.record(entry("GPU-a")).unwrap();
        directory.close().unwrap();
        let error = ledger.record(entry("GPU-b")).unwrap_err().to_string();
        assert!(error.contains("cannot write the ledger"), "{error}");
        assert_eq!(ledger.entries(), [entry("GPU-a")]);
    }

    #[test]
    fn entries_of_another_boot_are_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.json");
        Ledger::open(&path).unwrap().record(entry("GPU-a")).unwrap();
        let old = fs::read_to_string(&path).unwrap().replace("\"boot_id\": \"", "\"boot_id\": \"x");
        fs::write(&path, old).unwrap();
        assert!(Ledger::open(&path).unwrap().entries().is_empty());
    }

    #[test]
    fn a_damaged_ledger_that_names_every_lock_is_salvaged_and_nothing_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.json");
        Ledger::open(&path).unwrap().record(entry("GPU-a")).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, whole.replace(FORMAT, "pfo-ledger/9")).unwrap();
        let ledger = Ledger::open(&path).unwrap();
        assert_eq!(ledger.entries(), [entry("GPU-a")]);
        let damage = ledger.damage().unwrap();
        assert!(damage.reason.contains("pfo-ledger/9") && !damage.lost_entries, "{damage:?}");
        assert!(!damaged(&path).exists());
    }

    /// A ledger with one lock, of which only the first `bytes` are left.
    fn cut_off(path: &Path, bytes: usize) {
        Ledger::open(path).unwrap().record(entry("GPU-a")).unwrap();
        fs::write(path, &fs::read(path).unwrap()[..bytes]).unwrap();
    }

    #[test]
    fn a_loss_stands_for_every_later_daemon_until_it_is_acknowledged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.json");
        cut_off(&path, 20);
        let loss = Ledger::open(&path).unwrap().damage();
        assert!(loss.as_ref().unwrap().lost_entries);
        // Neither a new lock nor another damage hides it.
        Ledger::open(&path).unwrap().record(entry("GPU-b")).unwrap();
        assert_eq!(Ledger::open(&path).unwrap().damage(), loss);
        fs::write(&path, "again").unwrap();
        let ledger = Ledger::open(&path).unwrap();
        assert_eq!(ledger.damage(), loss);
        ledger.record(entry("GPU-c")).unwrap();
        assert_eq!(ledger.acknowledge().unwrap(), loss);
        assert_eq!((ledger.damage(), ledger.acknowledge().unwrap()), (None, None));
        drop(ledger);
        let ledger = Ledger::open(&path).unwrap();
        assert_eq!((ledger.damage(), ledger.entries()), (None, vec![entry("GPU-c")]));
    }

    #[test]
    fn a_ledger_that_cannot_be_read_is_a_loss_and_no_reason_not_to_serve() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.json");
        fs::create_dir(&path).unwrap();
        let ledger = Ledger::open(&path).unwrap();
        assert!(ledger.damage().unwrap().lost_entries);
        ledger.record(entry("GPU-a")).unwrap_err();
        ledger.acknowledge().unwrap_err();
        assert!(ledger.damage().is_some(), "it is gone although it could not be written");
        drop(ledger);
        fs::remove_dir(&path).unwrap();
        let ledger = Ledger::open(&path).unwrap();
        assert!(ledger.damage().unwrap().lost_entries);
        ledger.acknowledge().unwrap();
        assert_eq!(ledger.damage(), None);
    }
}
