//! Where tests keep what they would wait for a disk for.

use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};
use tempfile::{Builder, TempDir};

/// A file system in memory, as `/run` is.
const IN_MEMORY: &str = "/dev/shm";

/// Where less than this is free, a dozen members of etcd may not fit.
const ROOM_BYTES: u64 = 8 << 30;

/// A directory in memory where there is room, so that a busy disk delays nobody; else a usual
/// temporary one.
pub(crate) fn scratch() -> TempDir {
    let mut builder = Builder::new();
    let builder = builder.prefix("pfo-test-");
    match has_room(Path::new(IN_MEMORY)) {
        true => builder.tempdir_in(IN_MEMORY).unwrap(),
        false => builder.tempdir().unwrap(),
    }
}

/// Whether libraries can be loaded from there, too.
fn has_room(path: &Path) -> bool {
    let limits = FsFlags::ST_RDONLY | FsFlags::ST_NOEXEC | FsFlags::ST_NODEV;
    statvfs(path).is_ok_and(|found| {
        !found.flags().intersects(limits)
            && found.blocks_available().saturating_mul(found.fragment_size()) >= ROOM_BYTES
    })
}
