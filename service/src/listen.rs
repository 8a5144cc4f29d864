//! The sockets of a daemon: those that systemd passed, or those bound here in the foreground.

use std::fs::{Permissions, remove_file, set_permissions, symlink_metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, umask};
use pfo_vocabulary::Gid;
use sd_notify::listen_fds_with_names;
use tokio::net::UnixListener;

use crate::sys;

/// Why a daemon cannot listen on a socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Binding failed.
    #[error("cannot listen on {path}: {source}")]
    Bind {
        /// The socket.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Another daemon answers there.
    #[error("another daemon serves {0}; stop it first")]
    Served(PathBuf),
    /// What systemd passed cannot be used.
    #[error("cannot use the sockets that systemd passed: {0}")]
    Passed(io::Error),
}

/// A descriptor that systemd passed.
#[derive(Debug)]
pub struct PassedDescriptor {
    /// Its name, `FileDescriptorName=` of a socket unit or what the daemon stored it under.
    pub name: String,
    /// The descriptor.
    pub descriptor: OwnedFd,
}

/// Takes the descriptors that systemd passed; none in the foreground. Call it once.
///
/// # Errors
/// If the environment that systemd set is inconsistent.
pub fn passed_descriptors() -> Result<Vec<PassedDescriptor>, ListenError> {
    let passed = listen_fds_with_names().map_err(ListenError::Passed)?;
    let take = |(number, name)| PassedDescriptor { name, descriptor: sys::take_passed(number) };
    Ok(passed.map(take).collect())
}

/// Listens on a socket that systemd passed. Call it on the runtime.
///
/// # Errors
/// If it is not a listening Unix socket.
pub fn passed_listener(socket: OwnedFd) -> Result<UnixListener, ListenError> {
    let listener = std::os::unix::net::UnixListener::from(socket);
    listener.set_nonblocking(true).map_err(ListenError::Passed)?;
    UnixListener::from_std(listener).map_err(ListenError::Passed)
}

/// Binds a socket that its owner and a group may connect to. Call it on the runtime, before there
/// are other threads.
///
/// # Errors
/// If another daemon serves it, or it cannot be bound.
pub fn bind(path: &Path, group: Option<Gid>) -> Result<UnixListener, ListenError> {
    let failed = |source| ListenError::Bind { path: path.to_owned(), source };
    remove_stale(path)?;
    let former = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(former);
    let listener = bound.map_err(failed)?;
    // Group first: until both are set, only the owner of the daemon can connect.
    chown(path, None, group.map(|gid| gid.0)).map_err(failed)?;
    set_permissions(path, Permissions::from_mode(0o660)).map_err(failed)?;
    Ok(listener)
}

/// Removes the socket of a daemon that died, and only that.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let failed = |source| ListenError::Bind { path: path.to_owned(), source };
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(ListenError::Served(path.to_owned())),
        // Linux refuses a connection to an ordinary file in the same way.
        Err(error)
            if error.kind() == io::ErrorKind::ConnectionRefused
                && symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) =>
        {
            remove_file(path).map_err(failed)
        }
        // Binding reports any other file that is there.
        Err(_) => Ok(()),
    }
}
