//! Accepting connections and talking over them, on the one thread of a daemon's runtime.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::{
    ClientMessage, DaemonMessage, FrameError, HEADER_BYTES, Header, Refusal, RefusalCode,
    Unsupported, VERSION,
};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use crate::connections::{Connections, Entered, Room};
use crate::passed_files::{FileIdentity, identify};
use crate::peer::{Door, Peer};
use crate::sys;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// A peer must read an answer within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after an error that does not pass at once, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The pause after several refused connections: opening one after the other must not keep a core
/// busy, nor make later ones wait for long.
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);
const REFUSALS: u32 = 4;

/// One accepted connection and its peer.
pub struct Conversation {
    /// The connection.
    pub stream: UnixStream,
    /// The process that connected.
    pub peer: Peer,
    /// The socket that it connected to.
    pub door: Door,
    entered: Entered,
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
        match timeout(silence, self.read()).await {
            Ok(Ok(received)) => Some(received),
            Ok(Err(FrameError::Version(_))) => {
                let spoken = Unsupported { oldest: VERSION, newest: VERSION };
                send(&self.stream, &DaemonMessage::Unsupported(spoken)).await;
                None
            }
            Ok(Err(FrameError::Io(_) | FrameError::Truncated)) | Err(_) => None,
            Ok(Err(error)) => {
                let remedy = "see protocol/README.md for the layout of frames";
                let refusal = Refusal::new(RefusalCode::Malformed, error.to_string(), remedy);
                refuse(&self.stream, &self.peer, refusal).await;
                None
            }
        }
    }

    async fn read(&self) -> Result<Received, FrameError> {
        let mut header = [0; HEADER_BYTES];
        let (mut filled, files) = self.read_first(&mut header).await?;
        while filled < HEADER_BYTES {
            filled += self.read_some(&mut header[filled..]).await?;
        }
        let Header { kind, length } = Header::parse(header)?;
        let room = self.entered.room_for(length).await;
        // Grows with what arrives, not with what is announced.
        let mut payload = Vec::new();
        let mut chunk = [0; CHUNK_BYTES];
        while payload.len() < length {
            let wanted = CHUNK_BYTES.min(length - payload.len());
            let read = self.read_some(&mut chunk[..wanted]).await?;
            payload.extend_from_slice(&chunk[..read]);
        }
        Ok(Received { message: ClientMessage::from_payload(kind, &payload)?, room, files })
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
        Ok((read, identify(files, room).await))
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

/// Accepts connections for as long as the daemon runs, at most `most()` at a time, and runs `talk`
/// on each.
pub async fn accept<Talk>(
    listener: UnixListener,
    door: Door,
    open: Arc<Connections>,
    most: impl Fn() -> u32,
    talk: impl Fn(Conversation) -> Talk,
) where
    Talk: Future<Output = ()> + Send + 'static,
{
    let mut failing = false;
    let mut refused = 0;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                failing = false;
                let Ok(peer) = Peer::of(&stream) else { continue };
                match open.enter(door, peer.uid, most()) {
                    Ok(entered) => {
                        tokio::spawn(talk(Conversation { stream, peer, door, entered }));
                    }
                    Err(refusal) => {
                        tokio::spawn(async move { refuse(&stream, &peer, refusal).await });
                        refused = (refused + 1) % REFUSALS;
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
    tracing::warn!(
        name: "refused", uid = peer.uid.0, pid = peer.pid.0,
        "refused a connection of user {}, process {}: {}", peer.uid, peer.pid, refusal.message
    );
    send(stream, &DaemonMessage::Refusal(refusal)).await;
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
