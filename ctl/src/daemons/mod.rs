//! The two daemons of a node and the way to each: `pfod`, and `pfo-agent` beside it.
//!
//! A command opens a connection to the one that its request is for. Neither is asked for the other,
//! so that a missing one costs only what needs it.

mod connection;
mod error;
mod sockets;

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use pfo_protocol::{
    AgentRequest, AgentResponse, AgentStatus, ClientMessage, DaemonMessage, GpuListing, Refusal,
    Request, Response, Status,
};

pub(crate) use self::connection::{Connection, Patience};
pub(crate) use self::error::ConnectionError;
pub(crate) use self::sockets::{Daemons, HELP};

/// One of the two, as a type: what it is asked and what it answers.
pub(crate) trait Daemon {
    type Request;
    type Response: Debug;

    const WHICH: Which;

    /// Its sockets, in the order in which to try them.
    fn sockets(daemons: &Daemons) -> &[PathBuf];

    fn message(request: Self::Request) -> ClientMessage;

    /// The response in a message; none if this daemon sends no such message.
    fn response(message: DaemonMessage) -> Option<Result<Self::Response, Refusal>>;
}

/// One of the two, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Pfod,
    Agent,
}

/// `pfod`.
#[derive(Debug)]
pub(crate) enum Pfod {}

/// `pfo-agent`.
#[derive(Debug)]
pub(crate) enum Agent {}

impl Daemon for Pfod {
    type Request = Request;
    type Response = Response;

    const WHICH: Which = Which::Pfod;

    fn sockets(daemons: &Daemons) -> &[PathBuf] {
        daemons.pfod_sockets()
    }

    fn message(request: Request) -> ClientMessage {
        ClientMessage::Request(request)
    }

    fn response(message: DaemonMessage) -> Option<Result<Response, Refusal>> {
        match message {
            DaemonMessage::Response(Response::Refused(refusal)) => Some(Err(refusal)),
            DaemonMessage::Response(response) => Some(Ok(response)),
            _ => None,
        }
    }
}

impl Daemon for Agent {
    type Request = AgentRequest;
    type Response = AgentResponse;

    const WHICH: Which = Which::Agent;

    fn sockets(daemons: &Daemons) -> &[PathBuf] {
        daemons.agent_sockets()
    }

    fn message(request: AgentRequest) -> ClientMessage {
        ClientMessage::AgentRequest(request)
    }

    fn response(message: DaemonMessage) -> Option<Result<AgentResponse, Refusal>> {
        match message {
            DaemonMessage::AgentResponse(AgentResponse::Refused(refusal)) => Some(Err(refusal)),
            DaemonMessage::AgentResponse(response) => Some(Ok(response)),
            _ => None,
        }
    }
}

impl Daemons {
    pub(crate) fn pfod(&self) -> Result<Connection<Pfod>, ConnectionError> {
        self.open()
    }

    pub(crate) fn agent(&self) -> Result<Connection<Agent>, ConnectionError> {
        self.open()
    }

    pub(crate) fn open<D: Daemon>(&self) -> Result<Connection<D>, ConnectionError> {
        Connection::open(D::sockets(self))
    }

    /// Where a rank that this process starts reaches `pfod`.
    pub(crate) fn trainer_socket(&self) -> Option<&Path> {
        self.pfod_sockets().last().map(PathBuf::as_path)
    }
}

impl Connection<Pfod> {
    pub(crate) fn status(&mut self) -> Result<Status, ConnectionError> {
        match self.ask(Request::Status)? {
            Response::Status(status) => Ok(*status),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The GPUs of the node, in the driver's order.
    pub(crate) fn gpus(&mut self) -> Result<Vec<GpuListing>, ConnectionError> {
        match self.ask(Request::Gpus)? {
            Response::Gpus(gpus) => Ok(gpus),
            other => Err(self.unexpected(&other)),
        }
    }
}

impl Connection<Agent> {
    pub(crate) fn status(&mut self) -> Result<AgentStatus, ConnectionError> {
        match self.ask(AgentRequest::Status)? {
            AgentResponse::Status(status) => Ok(*status),
            other => Err(self.unexpected(&other)),
        }
    }
}
