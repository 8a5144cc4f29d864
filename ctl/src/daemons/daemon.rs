//! One of the two daemons: what it is asked, what it answers, and its sockets.

use std::fmt::{self, Debug};
use std::path::PathBuf;

use pfo_protocol::{
    AgentRequest, AgentResponse, ClientMessage, DaemonMessage, Refusal, Request, Response, Welcome,
};

use super::sockets::Daemons;

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

/// `pfod`, as a rank reaches it.
#[derive(Debug)]
pub(crate) enum Session {}

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

impl Daemon for Session {
    type Request = ClientMessage;
    type Response = Welcome;

    const WHICH: Which = Which::Pfod;

    fn sockets(daemons: &Daemons) -> &[PathBuf] {
        let sockets = daemons.pfod_sockets();
        &sockets[sockets.len().saturating_sub(1)..]
    }

    fn message(request: ClientMessage) -> ClientMessage {
        request
    }

    fn response(message: DaemonMessage) -> Option<Result<Welcome, Refusal>> {
        match message {
            DaemonMessage::Welcome(welcome) => Some(Ok(welcome)),
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

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pfod => "pfod",
            Self::Agent => "pfo-agent",
        })
    }
}
