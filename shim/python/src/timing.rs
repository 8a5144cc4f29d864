//! When a call counts: at once, when the device has come to rest, or when the GPU gets to it.

use std::time::Duration;

use pfo::{Call, Stream, StreamOrdered};
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

/// How a session is to time its calls.
pub(crate) enum Timing {
    Cpu,
    /// With what waits for the device; None where there is none.
    Device(Option<Py<PyAny>>),
    /// With what gives the handle of the current stream; None for the default stream.
    Stream(Option<Py<PyAny>>),
}

impl Timing {
    pub(crate) fn named(sync: &str, cuda: Option<Py<PyAny>>) -> PyResult<Self> {
        match sync {
            "cpu" => Ok(Self::Cpu),
            "device" => Ok(Self::Device(cuda)),
            "stream" => Ok(Self::Stream(cuda)),
            _ => Err(PyValueError::new_err(format!(
                "sync={sync:?}; it is one of \"stream\", \"device\" and \"cpu\""
            ))),
        }
    }
}

/// A session that times its calls.
pub(crate) enum Timed {
    Cpu(pfo::Session),
    Device(pfo::Session, Py<PyAny>),
    Stream(StreamOrdered, Option<Py<PyAny>>),
}

impl Timed {
    pub(crate) fn new(session: pfo::Session, timing: Timing) -> Self {
        match timing {
            Timing::Cpu | Timing::Device(None) => Self::Cpu(session),
            Timing::Device(Some(synchronize)) => Self::Device(session, synchronize),
            Timing::Stream(stream) => Self::Stream(StreamOrdered::new(session), stream),
        }
    }

    pub(crate) fn session(&self) -> &pfo::Session {
        match self {
            Self::Cpu(session) | Self::Device(session, _) => session,
            Self::Stream(ordered, _) => ordered.session(),
        }
    }

    /// # Errors
    /// Only if the user interrupts. What is wrong with CUDA, the trainer's own next call says.
    pub(crate) fn tell(&self, py: Python<'_>, call: Call) -> PyResult<()> {
        match self {
            Self::Cpu(session) => session.tell(call),
            Self::Device(session, synchronize) => {
                synchronize.call0(py).map(drop).or_else(|error| forgive(py, error))?;
                session.tell(call);
            }
            Self::Stream(ordered, current) => {
                let mut interrupt = Ok(());
                ordered.tell(call, || {
                    let handle = current.as_ref().map_or(Ok(0), |current| handle(py, current));
                    Stream(handle.unwrap_or_else(|error| {
                        interrupt = forgive(py, error);
                        0
                    }))
                });
                return interrupt;
            }
        }
        Ok(())
    }

    pub(crate) fn wait(&self, patience: Duration) {
        if let Self::Stream(ordered, _) = self {
            ordered.wait(patience);
        }
    }
}

fn handle(py: Python<'_>, current: &Py<PyAny>) -> PyResult<usize> {
    current.call0(py)?.extract(py)
}

/// Drops what is a program's error, but not an interrupt or an exit.
fn forgive(py: Python<'_>, error: PyErr) -> PyResult<()> {
    if error.is_instance_of::<PyException>(py) { Ok(()) } else { Err(error) }
}
