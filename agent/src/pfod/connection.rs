//! One connection to `pfod`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use interprocess::local_socket::traits::tokio::Stream as _;
use interprocess::local_socket::{GenericFilePath, ToFsName};
use interprocess::os::unix::uds_local_socket::tokio::Stream;
use pfo_protocol::{ClientMessage, DaemonMessage, Frame, FrameError, Pid, Request, Response, Uid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::pfod::error::PfodError;

/// How long `pfod` may take to accept a connection, or to answer a request that waits for nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes read at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// In whose name the agent acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    /// The user.
    pub(crate) uid: Uid,
    /// The process that waits for it; none for a sweep, which continues without one.
    pub(crate) pid: Option<Pid>,
    /// Whether the user asked as an administrator.
    pub(crate) administrator: bool,
}

/// Where `pfod` listens for the agent.
#[derive(Clone, Debug)]
pub(crate) struct Pfod(Arc<Path>);

impl Pfod {
    pub(crate) fn at(socket: PathBuf) -> Self {
        Self(socket.into())
    }

    /// A connection that may read everything and change nothing.
    ///
    /// # Errors
    /// If `pfod` does not listen.
    pub(crate) async fn connect(&self) -> Result<Connection, PfodError> {
        match connect(&self.0).await {
            Ok(stream) => Ok(Connection { stream, received: Vec::new() }),
            Err(error) => Err(PfodError::Away(format!("{}: {error}", self.0.display()))),
        }
    }

    /// A connection whose requests `pfod` decides as if the asker made them.
    ///
    /// # Errors
    /// If `pfod` does not listen, or `pfod` does not take the connection for the agent's.
    pub(crate) async fn on_behalf(&self, asker: Asker) -> Result<Connection, PfodError> {
        let Asker { uid, pid, administrator } = asker;
        let mut connection = self.connect().await?;
        connection.ask(Request::OnBehalf { uid, pid, administrator }).await?;
        Ok(connection)
    }
}

/// Connects at once or not at all.
async fn connect(socket: &Path) -> io::Result<Stream> {
    let stream = Stream::connect(socket.to_fs_name::<GenericFilePath>()?).await?;
    // The crate reports success where the queue of connections is full:
    // findings/interprocess-full-queue-is-a-connection.sh.
    let peer = stream.inner().peer_addr();
    peer.map(|_| stream).map_err(|_| io::Error::other("its queue of connections is full"))
}

/// Whether `pfod` has a rule that lets a user lease a GPU of this node.
///
/// # Errors
/// If `pfod` does not answer.
pub(crate) async fn lets_in(pfod: &Pfod, uid: Uid) -> Result<bool, PfodError> {
    let asker = Asker { uid, pid: None, administrator: false };
    let mut connection = pfod.on_behalf(asker).await?;
    match connection.ask(Request::PolicyExplain { who: None, gpu: None }).await? {
        Response::Policy(verdicts) => Ok(verdicts.iter().any(|verdict| verdict.terms.is_some())),
        other => Err(unexpected(&other)),
    }
}

/// A connection to `pfod`. A failed one is useless.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    /// The beginning of the next frame.
    received: Vec<u8>,
}

impl Connection {
    /// Asks something that is answered at once.
    ///
    /// # Errors
    /// If `pfod` refuses or does not answer.
    pub(crate) async fn ask(&mut self, request: Request) -> Result<Response, PfodError> {
        match timeout(ANSWER_TIMEOUT, self.ask_patiently(request)).await {
            Ok(answer) => answer,
            Err(_) => {
                Err(PfodError::Away(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs())))
            }
        }
    }

    /// Asks something that is answered when it has happened, however long that takes.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(crate) async fn ask_patiently(&mut self, request: Request) -> Result<Response, PfodError> {
        self.send(request).await?;
        self.answer().await
    }

    /// Sends a request whose answer [`answer`](Self::answer) awaits.
    ///
    /// # Errors
    /// If it does not fit into a frame, or the connection is broken.
    pub(crate) async fn send(&mut self, request: Request) -> Result<(), PfodError> {
        let frame = ClientMessage::Request(request).to_frame().map_err(|error| broken(&error))?;
        self.stream.write_all(&frame).await.map_err(|error| broken(&error))
    }

    /// The next answer. Cancel safe.
    ///
    /// # Errors
    /// If `pfod` refuses or the connection breaks.
    pub(crate) async fn answer(&mut self) -> Result<Response, PfodError> {
        match self.next().await? {
            DaemonMessage::Response(Response::Refused(refusal))
            | DaemonMessage::Refusal(refusal) => Err(PfodError::Refused(refusal)),
            DaemonMessage::Response(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }

    /// The next message of any kind. Cancel safe.
    ///
    /// # Errors
    /// If the connection breaks, or its bytes are no frame.
    pub(crate) async fn next(&mut self) -> Result<DaemonMessage, PfodError> {
        loop {
            let frame = Frame::first_of(&self.received).map_err(|error| broken(&error))?;
            if let Some(frame) = frame {
                let message = DaemonMessage::from_payload(frame.kind, frame.payload);
                let taken = frame.total_bytes();
                self.received.drain(..taken);
                if self.received.is_empty() {
                    self.received.shrink_to(CHUNK_BYTES);
                }
                return message.map_err(|error| broken(&error));
            }
            self.received.reserve(CHUNK_BYTES);
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) => return Err(PfodError::Away("the connection ended".into())),
                Ok(_) => {}
                Err(error) => return Err(broken(&FrameError::reading(error))),
            }
        }
    }
}

fn broken(error: &impl std::fmt::Display) -> PfodError {
    PfodError::Away(error.to_string())
}

/// An answer that does not belong to the request.
pub(crate) fn unexpected(answer: &impl std::fmt::Debug) -> PfodError {
    let mut answer = format!("{answer:?}");
    answer.truncate(answer.floor_char_boundary(80));
    PfodError::Away(format!("it answered {answer}; install the same release of pfod and pfo-agent"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::socket::{Backlog, listen};

    use super::*;

    #[tokio::test]
    async fn a_full_queue_of_connections_is_no_connection() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let pfod = Pfod::at(path.clone());
        let _queued = pfod.connect().await.unwrap();
        let error = pfod.connect().await.unwrap_err().to_string();
        let expected = format!("{}: its queue of connections is full", path.display());
        assert!(error.contains(&expected), "{error}");
    }
}
