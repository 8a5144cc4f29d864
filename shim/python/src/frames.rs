//! Requests to the daemons and their answers, between JSON and frames. The socket is Python's.

use std::borrow::Cow;

use pfo_protocol::{
    AgentResponse, ClientMessage, DaemonMessage, FrameError, HEADER_BYTES, Header, Refusal,
    Response, Unsupported, VERSION,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::Serialize;

pyo3::create_exception!(
    pfo_gpu,
    NodeError,
    PyRuntimeError,
    "A daemon of the node does not answer, or a request is invalid or refused. The message gives the remedy."
);

/// Encodes a JSON request to `pfod` as a frame. Raises `NodeError` if it is invalid.
#[pyfunction]
pub(crate) fn request_frame(request: &str) -> PyResult<Cow<'static, [u8]>> {
    let request = serde_json::from_str(request).map_err(|error| unsayable(&error))?;
    Ok(ClientMessage::Request(request).to_frame().map_err(failed)?.into())
}

/// Encodes a JSON request to `pfo-agent` as a frame. Raises `NodeError` if it is invalid.
#[pyfunction]
pub(crate) fn agent_request_frame(request: &str) -> PyResult<Cow<'static, [u8]>> {
    let request = serde_json::from_str(request).map_err(|error| unsayable(&error))?;
    Ok(ClientMessage::AgentRequest(request).to_frame().map_err(failed)?.into())
}

/// The number of bytes that follow a header. Raises `NodeError` if the header is invalid.
#[pyfunction]
pub(crate) fn payload_bytes(header: [u8; HEADER_BYTES]) -> PyResult<usize> {
    Ok(Header::parse(header).map_err(failed)?.length)
}

/// Decodes the answer in a frame to JSON. Raises `NodeError` if it is a refusal, or invalid.
#[pyfunction]
pub(crate) fn answer(frame: &[u8]) -> PyResult<String> {
    let mut unread = frame;
    match DaemonMessage::read_from(&mut unread).map_err(failed)? {
        DaemonMessage::Refusal(refusal)
        | DaemonMessage::Response(Response::Refused(refusal))
        | DaemonMessage::AgentResponse(AgentResponse::Refused(refusal)) => Err(refused(&refusal)),
        DaemonMessage::Response(response) => json(&response),
        DaemonMessage::AgentResponse(response) => json(&response),
        DaemonMessage::Unsupported(Unsupported { oldest, newest }) => {
            Err(NodeError::new_err(format!(
                "the daemon speaks versions {oldest} to {newest} of the protocol, not {VERSION}; \
                 install the same release of pfod and pfo-gpu"
            )))
        }
        _ => Err(NodeError::new_err("the daemon answers with a message of another kind")),
    }
}

fn json(response: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(response).map_err(failed)
}

fn refused(refusal: &Refusal) -> PyErr {
    let Refusal { message, remedy, .. } = refusal;
    NodeError::new_err(match &remedy[..] {
        "" => message.clone(),
        remedy => format!("{message}; {remedy}"),
    })
}

/// An argument that no request can have, without its place in the JSON, which the caller has not seen.
fn unsayable(error: &serde_json::Error) -> PyErr {
    let said = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    NodeError::new_err(said.strip_suffix(&place).unwrap_or(&said).to_owned())
}

/// What cannot be said or understood.
fn failed(error: impl Into<Failure>) -> PyErr {
    NodeError::new_err(error.into().to_string())
}

/// Where it goes wrong.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}
