//! Creating, opening and mapping the state file.

use std::env;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::Ordering;

use memmap2::{MmapOptions, MmapRaw};

use crate::error::SimError;
use crate::state::layout::{GPUS_OFFSET, GpuBlock, Header, MAGIC, VERSION, file_bytes};

/// The environment variable that names the state file.
pub const STATE_VARIABLE: &str = "PFO_SIM_STATE";
/// The state file when nothing names another.
pub const DEFAULT_STATE: &str = "/dev/shm/pfo-sim.state";

/// The state file that the environment names, or the default one.
pub fn state_path() -> PathBuf {
    env::var_os(STATE_VARIABLE)
        .filter(|value| !value.is_empty())
        .map_or_else(|| PathBuf::from(DEFAULT_STATE), PathBuf::from)
}

/// An open and mapped state file.
pub(crate) struct StateFile {
    path: PathBuf,
    file: File,
    map: MmapRaw,
    gpu_count: usize,
}

impl StateFile {
    /// Opens the state file at a path.
    pub(crate) fn open(path: &Path) -> Result<Self, SimError> {
        let file = open_shared(path)?;
        let bytes =
            file.metadata().map_err(|source| SimError::file("look at", path, source))?.len();
        let not_a_state =
            |difference: String| SimError::NotAState { path: path.into(), difference };
        if bytes < file_bytes(0) as u64 {
            return Err(not_a_state(format!("it has only {bytes} bytes")));
        }
        let map = map(&file, path)?;
        let mut state = Self { path: path.into(), file, map, gpu_count: 0 };
        let header = state.header();
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(not_a_state("it does not begin with PFO-SIM".into()));
        }
        let found = header.version.load(Ordering::Relaxed);
        if found != VERSION {
            return Err(SimError::OtherVersion { path: path.into(), found });
        }
        let gpu_count = header.gpu_count.load(Ordering::Relaxed) as usize;
        let gpu_bytes = header.gpu_bytes.load(Ordering::Relaxed);
        if gpu_bytes != size_of::<GpuBlock>() as u64 || bytes != file_bytes(gpu_count) as u64 {
            return Err(not_a_state(format!(
                "{bytes} bytes do not fit {gpu_count} GPUs of {gpu_bytes} bytes"
            )));
        }
        state.gpu_count = gpu_count;
        Ok(state)
    }

    /// Makes a new state file and puts it in place of any older one, in one step. `fill` sets it
    /// up; nobody can open it before.
    ///
    /// Its mode is 0666 whatever the umask: a simulated GPU is for all users of the machine.
    /// Processes that have an older file open go on with that one.
    pub(crate) fn create(
        path: &Path,
        gpus: usize,
        fill: impl FnOnce(&Self),
    ) -> Result<(), SimError> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.new", process::id()));
        let fresh = PathBuf::from(name);
        let result = Self::create_at(&fresh, gpus, fill).and_then(|()| {
            fs::rename(&fresh, path).map_err(|source| SimError::file("replace", path, source))
        });
        if result.is_err() {
            // Best effort: the error that matters is the first one.
            let _ = fs::remove_file(&fresh);
        }
        result
    }

    fn create_at(path: &Path, gpus: usize, fill: impl FnOnce(&Self)) -> Result<(), SimError> {
        let failed = |action| move |source| SimError::file(action, path, source);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed("create"))?;
        file.set_len(file_bytes(gpus) as u64).map_err(failed("resize"))?;
        let map = map(&file, path)?;
        let state = Self { path: path.into(), file, map, gpu_count: gpus };
        let header = state.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.gpu_count.store(gpus as u32, Ordering::Relaxed);
        header.gpu_bytes.store(size_of::<GpuBlock>() as u64, Ordering::Relaxed);
        fill(&state);
        header.magic.store(MAGIC, Ordering::Release);
        state.file.set_permissions(Permissions::from_mode(0o666)).map_err(failed("open up"))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for locks.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The same file, opened once more: locks taken on it are others than those on [`Self::file`].
    pub(crate) fn reopen(&self) -> Result<File, SimError> {
        // Not by its path, which may name a newer state by now.
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.file));
        File::options()
            .read(true)
            .write(true)
            .open(own)
            .map_err(|source| SimError::file("open again", &self.path, source))
    }

    /// The start of the file.
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the mapping is at least GPUS_OFFSET bytes long (checked in `open`, made so in
        // `create_at`), page-aligned and lives as long as `self`. `Header` is atomics only: every
        // bit pattern is valid and concurrent writes by other processes are no data race.
        unsafe { &*self.map.as_ptr().cast::<Header>() }
    }

    /// The GPUs.
    pub(crate) fn gpus(&self) -> &[GpuBlock] {
        // SAFETY: as for `header`; the file is long enough for `gpu_count` blocks (checked in
        // `open`, made so in `create_at`), and GPUS_OFFSET keeps their alignment of 64.
        unsafe {
            let first = self.map.as_ptr().add(GPUS_OFFSET).cast::<GpuBlock>();
            std::slice::from_raw_parts(first, self.gpu_count)
        }
    }
}

fn map(file: &File, path: &Path) -> Result<MmapRaw, SimError> {
    MmapOptions::new().map_raw(file).map_err(|source| SimError::file("map", path, source))
}

fn open_shared(path: &Path) -> Result<File, SimError> {
    File::options().read(true).write(true).open(path).map_err(|source: io::Error| {
        match source.kind() {
            ErrorKind::NotFound => SimError::NoState { path: path.into() },
            ErrorKind::PermissionDenied => SimError::StateForbidden { path: path.into(), source },
            _ => SimError::file("open", path, source),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_state_can_be_opened_and_written_by_every_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        StateFile::create(&path, 3, |_| ()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        assert_eq!(StateFile::open(&path).unwrap().gpus().len(), 3);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_not_a_state_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let message = |path: &Path| StateFile::open(path).err().unwrap().to_string();
        assert!(message(&path).contains("pfo-sim create"), "{}", message(&path));
        fs::write(&path, b"short").unwrap();
        assert!(message(&path).contains("only 5 bytes"), "{}", message(&path));
        fs::write(&path, vec![1; 100_000]).unwrap();
        assert!(message(&path).contains("does not begin"), "{}", message(&path));
        StateFile::create(&path, 1, |state| state.header().version.store(77, Ordering::Relaxed))
            .unwrap();
        assert!(message(&path).contains("version 77"), "{}", message(&path));
        StateFile::create(&path, 1, |_| ()).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
        assert!(message(&path).contains("do not fit"), "{}", message(&path));
    }
}
