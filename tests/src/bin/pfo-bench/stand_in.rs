//! A daemon that grants one lease and reads nothing by itself, so that no call wakes a process.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

use pfo::{RankDescription, Session};
use pfo_protocol::{DaemonMessage, HEADER_BYTES, Header, SessionId, Welcome};
use tempfile::TempDir;

use crate::Result;

/// One that waits for its client.
pub(crate) struct StandIn {
    granting: JoinHandle<std::result::Result<UnixStream, String>>,
    // The socket is in it.
    directory: TempDir,
}

impl StandIn {
    pub(crate) fn start() -> Result<Self> {
        let directory = TempDir::with_prefix("pfo-bench-")?;
        let listener = UnixListener::bind(directory.path().join("socket"))?;
        let granting = std::thread::spawn(move || grant(&listener).map_err(|e| e.to_string()));
        Ok(Self { granting, directory })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Its client, if that is this process.
    pub(crate) fn open_session(&self) -> Result<Session> {
        let session = Session::open(RankDescription {
            job: Some("bench".into()),
            gpu: Some("GPU-0".parse()?),
            socket: Some(self.socket()),
            ..RankDescription::default()
        })?;
        session.problem().map_or(Ok(session), |problem| Err(problem.to_string().into()))
    }

    /// Its end of the connection, once there is one.
    pub(crate) fn peer(self) -> Result<UnixStream> {
        Ok(self.granting.join().map_err(|_| "the stand-in daemon panicked")??)
    }
}

fn grant(listener: &UnixListener) -> Result<UnixStream> {
    let (mut stream, _) = listener.accept()?;
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let mut hello = vec![0; Header::parse(header)?.length];
    stream.read_exact(&mut hello)?;
    let welcome = Welcome {
        daemon: "a stand-in".into(),
        session: SessionId(1),
        gpu_uuid: "GPU-0".parse()?,
        gpu_model: "none".into(),
        idle_limit_ms: 60_000,
    };
    stream.write_all(&DaemonMessage::Welcome(welcome).to_frame()?)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Takes out of a socket what was sent, which must have the expected number of bytes.
pub(crate) fn drain(peer: &mut UnixStream, expected: usize) -> Result<()> {
    match drain_all(peer)? {
        drained if drained == expected => Ok(()),
        drained => Err(format!("{drained} bytes arrived instead of {expected}").into()),
    }
}

/// Takes everything out of a socket; returns how many bytes that were.
pub(crate) fn drain_all(peer: &mut UnixStream) -> Result<usize> {
    let (mut drained, mut buffer) = (0, [0; 16 * 1024]);
    loop {
        match peer.read(&mut buffer) {
            Ok(0) => return Err("the connection ended".into()),
            Ok(read) => drained += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(drained),
            Err(error) => return Err(error.into()),
        }
    }
}
