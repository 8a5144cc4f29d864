//! Open files that a client passes with a message, to prove what the kernel lets it open.
//!
//! Only their identity is kept. A client may pass a file on which questions and closing block for as
//! long as the client likes (FUSE, sockets that linger). So both happen on a thread of
//! their own, of which each user has a few.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::{dev_t, ino_t};
use nix::sys::stat::{FileStat, SFlag, fstat, stat};
use pfo_vocabulary::Uid;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Files that are taken with one message; the kernel closes the others. No node has more GPUs.
pub(crate) const MOST: usize = 64;

/// What a file is, whatever its name: equal for all nodes of one character device, in any container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileIdentity {
    /// A character device, by its number.
    Device(dev_t),
    /// Any other file, by its file system and its number there.
    Other(dev_t, ino_t),
}

impl FileIdentity {
    /// The identity of the file of this path.
    ///
    /// # Errors
    /// If there is no such file, or it cannot be reached.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(stat(path)?))
    }

    /// The identity of a file that was opened for reading and writing, and that its mode lets the
    /// user open now. `None` for any other descriptor: `O_PATH` proves nothing, as it opens no device.
    fn of_opened(file: &OwnedFd, user: Uid) -> Option<Self> {
        let flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL).ok()?);
        let opened = flags & (OFlag::O_ACCMODE | OFlag::O_PATH) == OFlag::O_RDWR;
        fstat(file).ok().filter(|file| opened && may_open(file, user)).map(Self::from)
    }
}

impl From<FileStat> for FileIdentity {
    fn from(file: FileStat) -> Self {
        match SFlag::from_bits_truncate(file.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFCHR => Self::Device(file.st_rdev),
            _ => Self::Other(file.st_dev, file.st_ino),
        }
    }
}

/// Whether the mode of a file may let a user open it. To all but its owner, the bits of its group and
/// of others give the most that groups and an access list can.
fn may_open(file: &FileStat, user: Uid) -> bool {
    let mode = file.st_mode;
    let bits = if file.st_uid == user.0 { mode >> 6 } else { mode >> 3 | mode };
    user == Uid::ROOT || bits & 0o6 == 0o6
}

/// Identifies the files that a user has passed, and closes them. `room` is given back when the last
/// one is closed.
pub(crate) async fn identify(
    files: Vec<OwnedFd>,
    user: Uid,
    room: OwnedSemaphorePermit,
) -> Vec<FileIdentity> {
    if files.is_empty() {
        return Vec::new();
    }
    let (identified, identities) = oneshot::channel();
    let identify = move || {
        let found = files.iter().filter_map(|file| FileIdentity::of_opened(file, user)).collect();
        let _ = identified.send(found);
        drop((files, room));
    };
    // Without a thread, the client has proved nothing.
    drop(thread::Builder::new().name("files".into()).stack_size(64 * 1024).spawn(identify));
    identities.await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use nix::fcntl::open;
    use nix::sys::stat::Mode;

    use super::*;

    fn opened(path: &Path, flags: OFlag) -> Option<FileIdentity> {
        FileIdentity::of_opened(&open(path, flags, Mode::empty()).unwrap(), Uid(7))
    }

    #[test]
    fn a_device_is_the_same_by_whatever_path_and_no_other_device() {
        let [null, zero] = ["/dev/null", "/dev/zero"].map(Path::new);
        let identity = FileIdentity::of(null).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("nvidia0");
        std::os::unix::fs::symlink(null, &link).unwrap();
        assert_eq!(opened(&link, OFlag::O_RDWR), Some(identity));
        assert_ne!(opened(zero, OFlag::O_RDWR), Some(identity));
    }

    #[test]
    fn a_file_of_the_same_name_and_content_is_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let [own, other] = ["own", "other"].map(|name| directory.path().join(name));
        fs::write(&own, "").unwrap();
        fs::write(&other, "").unwrap();
        for file in [&own, &other] {
            fs::set_permissions(file, Permissions::from_mode(0o666)).unwrap();
        }
        let identity = FileIdentity::of(&own).unwrap();
        assert_eq!(opened(&own, OFlag::O_RDWR), Some(identity));
        assert_ne!(opened(&other, OFlag::O_RDWR), Some(identity));
    }

    #[test]
    fn a_file_that_its_mode_would_not_let_its_user_open_now_proves_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let owner = Uid(file.as_file().metadata().unwrap().uid());
        let other = Uid(owner.0 + 7);
        let opened = OwnedFd::from(file.reopen().unwrap());
        for (mode, proves_own, proves_others) in [
            (0o600, true, false),
            (0o640, true, false),
            (0o660, true, true),
            (0o606, true, true),
            (0o066, owner == Uid::ROOT, true),
        ] {
            fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
            let proves = |user| FileIdentity::of_opened(&opened, user).is_some();
            assert_eq!([proves(owner), proves(other)], [proves_own, proves_others], "{mode:o}");
            assert!(proves(Uid::ROOT), "{mode:o}");
        }
    }

    #[test]
    fn a_descriptor_that_is_not_open_for_reading_and_writing_proves_nothing() {
        let null = Path::new("/dev/null");
        for flags in [OFlag::O_PATH, OFlag::O_RDONLY, OFlag::O_WRONLY, OFlag::O_ACCMODE] {
            assert_eq!(opened(null, flags), None, "{flags:?}");
        }
        let path_only = File::from(open(null, OFlag::O_PATH, Mode::empty()).unwrap());
        // Opened through the descriptor, it is open for good: the kernel has checked it.
        let again = format!("/proc/self/fd/{}", path_only.as_raw_fd());
        assert_eq!(opened(Path::new(&again), OFlag::O_RDWR), FileIdentity::of(null).ok());
    }
}
