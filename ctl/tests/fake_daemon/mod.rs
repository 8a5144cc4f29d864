//! Daemons that answer as a test says, and the real `pfoctl` that asks them.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use crate::ran::{self, Ran};
use pfo_protocol::{
    AgentRequest, AgentResponse, ClientMessage, DaemonMessage, GpuStatus, HEADER_BYTES, Header,
    Refusal, RefusalCode, Request, Response, Status,
};

/// A socket with something behind it that answers until the test ends, and perhaps an agent beside
/// it.
pub(crate) struct FakeDaemon {
    directory: tempfile::TempDir,
    requests: Receiver<Request>,
    agent_requests: Option<Receiver<AgentRequest>>,
}

impl FakeDaemon {
    /// Answers every request with what `answer` makes of it.
    pub(crate) fn answering(answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        Self::serving(move |stream, request| {
            send(stream, &DaemonMessage::Response(answer(request)));
        })
    }

    /// Refuses everything.
    pub(crate) fn refusing(code: RefusalCode, message: &'static str, remedy: &'static str) -> Self {
        Self::answering(move |_| Response::Refused(Refusal::new(code, message, remedy)))
    }

    /// Answers the first request of each connection with these bytes and hangs up.
    pub(crate) fn answering_bytes(bytes: Vec<u8>) -> Self {
        Self::serving(move |stream, _| {
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Both);
        })
    }

    /// With an agent whose socket is beside that of `pfod`.
    pub(crate) fn with_agent(
        self,
        answer: impl Fn(&AgentRequest) -> AgentResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = UnixListener::bind(self.directory.path().join("pfo-agent.sock")).unwrap();
        let requests = serve(listener, agent_request, move |stream, request| {
            send(stream, &DaemonMessage::AgentResponse(answer(request)));
        });
        Self { agent_requests: Some(requests), ..self }
    }

    fn serving(answer: impl Fn(&mut UnixStream, &Request) + Send + Sync + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("pfod.sock")).unwrap();
        let requests = serve(listener, pfod_request, answer);
        Self { directory, requests, agent_requests: None }
    }

    /// Where the daemon listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("pfod.sock")
    }

    /// A file beside the socket.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// `pfoctl` with these arguments, to be run against this daemon.
    pub(crate) fn pfoctl(&self, arguments: &[&str]) -> Command {
        pfoctl(&self.socket(), arguments)
    }

    /// Runs `pfoctl` with these arguments against this daemon.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(&mut self.pfoctl(arguments))
    }

    /// The next request that arrived.
    pub(crate) fn request(&self) -> Request {
        let patience = std::time::Duration::from_secs(5);
        self.requests.recv_timeout(patience).expect("a request")
    }

    /// The next request that arrived at the agent.
    pub(crate) fn agent_request(&self) -> AgentRequest {
        let patience = std::time::Duration::from_secs(5);
        self.agent_requests.as_ref().unwrap().recv_timeout(patience).expect("a request")
    }

    /// Whether no further request arrived.
    pub(crate) fn was_not_asked(&self) -> bool {
        self.requests.try_recv().is_err()
    }
}

/// The status of a daemon that knows no job.
pub(crate) fn no_jobs() -> Response {
    let status: Status = serde_json::from_str(include_str!("../golden/status.json")).unwrap();
    Response::Status(Box::new(Status { jobs: Vec::new(), ..status }))
}

/// The status of a daemon that knows these GPUs, each with its index.
pub(crate) fn with_gpus<const N: usize>(gpus: [(u32, &str); N]) -> Response {
    let status: Status = serde_json::from_str(include_str!("../golden/status.json")).unwrap();
    let example = &status.gpus[0];
    let gpus = gpus.map(|(index, uuid)| GpuStatus {
        index,
        uuid: uuid.parse().unwrap(),
        ..example.clone()
    });
    Response::Status(Box::new(Status { gpus: gpus.into(), ..status }))
}

fn serve<R: Clone + Send + 'static>(
    listener: UnixListener,
    of: fn(ClientMessage) -> R,
    answer: impl Fn(&mut UnixStream, &R) + Send + Sync + 'static,
) -> Receiver<R> {
    let (seen, requests) = channel();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, seen) = (stream.unwrap(), seen.clone());
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || {
                while let Some(message) = read_message(&mut stream) {
                    let request = of(message);
                    // Before it is answered: the next one may come over another connection.
                    if seen.send(request.clone()).is_err() {
                        return;
                    }
                    answer(&mut stream, &request);
                }
            });
        }
    });
    requests
}

fn send(stream: &mut UnixStream, message: &DaemonMessage) {
    // The client may be gone by now.
    let _ = stream.write_all(&message.to_frame().unwrap());
}

fn read_message(stream: &mut UnixStream) -> Option<ClientMessage> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).ok()?;
    let Header { kind, length } = Header::parse(header).unwrap();
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).ok()?;
    Some(ClientMessage::from_payload(kind, &payload).unwrap())
}

fn pfod_request(message: ClientMessage) -> Request {
    match message {
        ClientMessage::Request(request) => request,
        other => panic!("pfoctl sent {other:?} to pfod"),
    }
}

fn agent_request(message: ClientMessage) -> AgentRequest {
    match message {
        ClientMessage::AgentRequest(request) => request,
        other => panic!("pfoctl sent {other:?} to pfo-agent"),
    }
}

/// `pfoctl` with these arguments, pointed at this socket.
pub(crate) fn pfoctl(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = ran::pfoctl(arguments);
    command.env("PFO_SOCKET", socket);
    command
}
