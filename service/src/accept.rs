//! Accepting connections and talking over them, on the one thread of a daemon's runtime.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use pfo_protocol::{
    ClientMessage, DaemonMessage, FrameError, HEADER_BYTES, Header, LARGEST_PAYLOAD, Refusal,
    RefusalCode, Request, Unsupported, VERSION,
};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use crate::boundary::{Whose, catch_in};
use crate::connections::{Connections, Entered, Room};
use crate::passed_files::{FileIdentity, identify};
use crate::peer::{Door, Peer};
use crate::people::People;
use crate::sys;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// A peer must read an answer within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that a peer may leave unread before a connection waits for it. The kernel doubles them, and
/// keeps them in memory of this process.
const SEND_BYTES: usize = 16 * 1024;

/// The rest of a frame must follow its header within this time: others may wait for its room.
const PAYLOAD_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause after an error that does not pass at once, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The pause after several refused connections: opening one after the other must not keep a core
/// busy, nor make later ones wait for long.
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);
const REFUSALS: u32 = 8;

/// One accepted connection and its peer.
pub struct Conversation {
    /// The connection.
    pub stream: UnixStream,
    /// The process that connected.
    pub peer: Peer,
    /// The socket that it connected to.
    pub door: Door,
    entered: Entered,
    handed_over: AtomicBool,
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if !self.handed_over.load(Relaxed) {
            self.entered.close(&self.stream);
        }
    }
}

/// What a peer has sent.
pub struct Received {
    /// The message.
    pub message: ClientMessage,
    /// What it takes of the room for large frames.
    pub room: Option<Room>,
    /// The files that were passed with it, opened for reading and writing.
    pub files: Vec<FileIdentity>,
}

impl Conversation {
    /// Waits for the peer's next message. `None` if the conversation is over: the peer is gone, was
    /// silent for too long, or was refused for what it sent.
    pub async fn next(&self, silence: Duration) -> Option<Received> {
        self.entered.turn().await;
        match self.read(silence).await {
            Ok(received) => Some(received),
            Err(FrameError::Version(_)) => {
                let spoken = Unsupported { oldest: VERSION, newest: VERSION };
                send(&self.stream, &DaemonMessage::Unsupported(spoken)).await;
                None
            }
            Err(FrameError::Io(_) | FrameError::Truncated) => None,
            Err(error) => {
                let remedy = "see protocol/README.md for the layout of frames";
                let refusal = Refusal::new(RefusalCode::Malformed, error.to_string(), remedy);
                refuse(&self.stream, &self.peer, refusal).await;
                None
            }
        }
    }

    /// Leaves the connection open: somebody else has a copy of it, and ends it.
    pub fn hand_over(&self) {
        self.handed_over.store(true, Relaxed);
    }

    /// Waits for room for the answer to a message, if that may be large. To be held until the peer
    /// has taken it: a peer that does not read takes memory for one answer.
    pub async fn room_for_answer(&self, message: &ClientMessage) -> Option<Room> {
        let is_large = match message {
            ClientMessage::Request(request) => matches!(request, Request::PlanRead(_)),
            ClientMessage::AgentRequest(request) => request.has_large_answer(),
            _ => false,
        };
        if is_large { self.entered.room_for(LARGEST_PAYLOAD).await } else { None }
    }

    /// Ends the time in which files may come, for a session: nobody would look at those that come
    /// with an event, and one whose closing blocks would keep the session's lease.
    ///
    /// # Errors
    /// If the peer has sent more than its last message, and maybe files with it.
    pub fn refuse_files(&self) -> Result<(), Refusal> {
        let stream = self.stream.as_fd();
        sys::refuse_files(stream);
        let _ = setsockopt(&stream, sockopt::OobInline, &true);
        match recv(stream.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
            Ok(1..) => Err(Refusal::new(
                RefusalCode::Malformed,
                "more was sent with a hello",
                "send events when the hello is answered",
            )),
            _ => Ok(()),
        }
    }

    async fn read(&self, silence: Duration) -> Result<Received, FrameError> {
        let mut header = [0; HEADER_BYTES];
        let files = within(silence, self.header(&mut header)).await?;
        let Header { kind, length } = Header::parse(header)?;
        // The wait for others is not the peer's silence.
        let room = self.entered.room_for(length).await;
        let payload = within(PAYLOAD_TIMEOUT, self.payload(length)).await?;
        Ok(Received { message: ClientMessage::from_payload(kind, &payload)?, room, files })
    }

    /// Reads a header, with the files that came along.
    async fn header(
        &self,
        header: &mut [u8; HEADER_BYTES],
    ) -> Result<Vec<FileIdentity>, FrameError> {
        let (mut filled, files) = self.read_first(header).await?;
        while filled < HEADER_BYTES {
            let read = self.read_some(&mut header[filled..]).await?;
            filled = filled.saturating_add(read);
        }
        Ok(files)
    }

    /// Grows with what arrives, not with what is announced.
    async fn payload(&self, length: usize) -> Result<Vec<u8>, FrameError> {
        let mut payload = Vec::new();
        let mut filled = 0_usize;
        while filled < length {
            payload.resize(length.min(filled.saturating_add(CHUNK_BYTES)), 0);
            filled = filled.saturating_add(self.read_some(&mut payload[filled..]).await?);
        }
        Ok(payload)
    }

    /// Reads the first bytes of a frame, with the files that came along. The kernel closes those
    /// that come with any other bytes.
    async fn read_first(
        &self,
        buffer: &mut [u8],
    ) -> Result<(usize, Vec<FileIdentity>), FrameError> {
        // A peer that is silent takes up no room.
        self.stream.readable().await?;
        let Some(room) = self.entered.room_for_files().await else {
            return Ok((self.read_some(buffer).await?, Vec::new()));
        };
        let (read, files) = loop {
            self.stream.readable().await?;
            let receive = || sys::receive(self.stream.as_fd(), buffer);
            match self.stream.try_io(Interest::READABLE, receive) {
                Ok((0, _)) => return Err(FrameError::Truncated),
                Ok(received) => break received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(FrameError::reading(error)),
            }
        };
        Ok((read, identify(files, self.peer.uid, room).await))
    }

    async fn read_some(&self, buffer: &mut [u8]) -> Result<usize, FrameError> {
        loop {
            self.stream.readable().await?;
            match self.stream.try_read(buffer) {
                Ok(0) => return Err(FrameError::Truncated),
                Ok(read) => return Ok(read),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(FrameError::reading(error)),
            }
        }
    }
}

/// A peer that takes longer is as good as gone.
async fn within<T>(
    time: Duration,
    reading: impl Future<Output = Result<T, FrameError>>,
) -> Result<T, FrameError> {
    timeout(time, reading).await.unwrap_or(Err(FrameError::Truncated))
}

/// Accepts connections for as long as the daemon runs, at most `most()` at a time, and runs `talk`
/// on each. A panic in it ends that connection.
pub async fn accept<Talk>(
    listener: UnixListener,
    door: Door,
    open: Arc<Connections>,
    people: Arc<People>,
    most: impl Fn() -> u32,
    talk: impl Fn(Conversation) -> Talk,
) where
    Talk: Future<Output = ()> + Send + 'static,
{
    let mut failing = false;
    let mut refused = 0_u32;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                failing = false;
                let Ok(mut peer) = Peer::of(&stream) else { continue };
                // Without it, what a peer does not read would take more.
                let _ = setsockopt(&stream, sockopt::SndBuf, &SEND_BYTES);
                peer.person = people.look_up(peer.uid).await;
                match open.enter(door, peer.user(), most()) {
                    Ok(entered) => {
                        let whose = Whose { door: Some(door), ..Whose::of(peer.uid, peer.pid) };
                        let handed_over = AtomicBool::default();
                        let talking =
                            talk(Conversation { stream, peer, door, entered, handed_over });
                        tokio::spawn(async move { catch_in(&whose, talking).await });
                    }
                    Err(refusal) => {
                        let open = Arc::clone(&open);
                        tokio::spawn(async move {
                            if open.may_answer(door, peer.person) {
                                refuse(&stream, &peer, refusal).await;
                                open.close(door, peer.person, &stream);
                            } else {
                                log_refused(&peer, &refusal);
                            }
                        });
                        refused = refused.wrapping_add(1) % REFUSALS;
                        if refused == 0 {
                            sleep(REFUSAL_PAUSE).await;
                        }
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!("cannot accept connections: {error}; retrying");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Sends a message. False if the peer did not take it in time.
pub async fn send(stream: &UnixStream, message: &DaemonMessage) -> bool {
    let Ok(frame) = message.to_frame() else {
        return false;
    };
    matches!(timeout(ANSWER_TIMEOUT, write_all(stream, &frame)).await, Ok(Ok(())))
}

async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Refuses a connection, and records that in the journal.
pub async fn refuse(stream: &UnixStream, peer: &Peer, refusal: Refusal) {
    log_refused(peer, &refusal);
    send(stream, &DaemonMessage::Refusal(refusal)).await;
}

fn log_refused(peer: &Peer, refusal: &Refusal) {
    tracing::warn!(
        name: "refused", uid = peer.uid.0, owner_uid = peer.person.0, pid = peer.pid.0,
        "refused a connection of {}, process {}: {}", peer.user(), peer.pid, refusal.message
    );
}

/// Waits until the peer can no longer receive an answer, whatever is still to be read from it.
pub async fn hung_up(stream: &UnixStream) {
    let watched = stream.as_fd().try_clone_to_owned().and_then(sys::register);
    let Ok(watched) = watched else { return std::future::pending().await };
    loop {
        match watched.writable().await {
            Ok(ready) if ready.ready().is_write_closed() => return,
            Ok(mut ready) => ready.clear_ready(),
            Err(_) => return,
        }
    }
}
