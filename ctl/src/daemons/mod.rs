//! The two daemons of a node and the way to each: `pfod`, and `pfo-agent` beside it.
//!
//! A command opens a connection to the one that its request is for. No request goes to one of them
//! for the other, so a missing one costs only the commands that need it.

mod connection;
mod daemon;
mod error;
mod sockets;

use std::path::{Path, PathBuf};

use pfo_protocol::{
    AgentRequest, AgentResponse, AgentStatus, GpuListing, Request, Response, Status,
};

pub(crate) use self::connection::{Connection, Patience};
pub(crate) use self::daemon::{Agent, Daemon, Pfod, Session, Which};
pub(crate) use self::error::ConnectionError;
pub(crate) use self::sockets::{Daemons, HELP};

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
