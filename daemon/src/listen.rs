//! What systemd handed over at the start, and the two listening sockets: among it, or bound here when
//! run in the foreground.

use std::fs::{Permissions, remove_file, set_permissions, symlink_metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName};
use interprocess::os::unix::local_socket::ListenerOptionsExt;
use interprocess::os::unix::uds_local_socket::tokio::Listener;
use systemd::daemon::listen_fds_with_names;

use crate::settings::Settings;
use crate::{descriptor_store, sys};

/// Why a socket could not be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Binding failed.
    #[error("cannot listen on {path}: {source}")]
    Bind {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody answers there.
    #[error("another pfod serves {0}; stop it first")]
    Served(PathBuf),
    /// What systemd passed cannot be used.
    #[error("cannot use the sockets that systemd passed: {0}")]
    Passed(io::Error),
}

/// What systemd handed over. To be taken once.
#[derive(Debug, Default)]
pub struct Passed {
    /// The sockets that clients connect to; none in the foreground.
    pub listening: Vec<OwnedFd>,
    /// What the last daemon left in the descriptor store, by session.
    pub kept: Vec<(u64, OwnedFd)>,
}

impl Passed {
    /// Takes over what there is.
    ///
    /// # Errors
    /// If that cannot be found out.
    pub fn take() -> Result<Self, ListenError> {
        let names =
            listen_fds_with_names().map_err(|e| ListenError::Passed(io::Error::other(e)))?;
        let mut passed = Self::default();
        for (number, name) in names.iter() {
            let descriptor = sys::take_passed(number);
            match name.to_str().ok().and_then(descriptor_store::session_of) {
                Some(session) => passed.kept.push((session, descriptor)),
                None => passed.listening.push(descriptor),
            }
        }
        Ok(passed)
    }
}

/// Every socket to serve. Both kinds are served alike: who may do what is up to the peer.
///
/// # Errors
/// If a socket cannot be bound or taken over.
pub fn listen(passed: Vec<OwnedFd>, settings: &Settings) -> Result<Vec<Listener>, ListenError> {
    if !passed.is_empty() {
        let take = |socket| Listener::try_from(socket).map_err(ListenError::Passed);
        return passed.into_iter().map(take).collect();
    }
    let (trainers, administrators) = settings.authority.socket_groups();
    let sockets = &settings.config.sockets;
    Ok(vec![bind(&sockets.trainers, trainers)?, bind(&sockets.admin, administrators)?])
}

fn bind(path: &Path, group: Option<u32>) -> Result<Listener, ListenError> {
    let failed = |source| ListenError::Bind { path: path.to_owned(), source };
    remove_stale(path)?;
    let name = path.to_fs_name::<GenericFilePath>().map_err(failed)?;
    let listener = ListenerOptions::new()
        .name(name)
        .mode(0o600)
        .create_tokio_as::<Listener>()
        .map_err(failed)?;
    // Group first: until both are set, only the owner of the daemon can connect.
    chown(path, None, group).map_err(failed)?;
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
        // Whatever else is there, binding will say so.
        Err(_) => Ok(()),
    }
}
