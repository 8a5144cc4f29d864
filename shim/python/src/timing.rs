//! When a call counts: at once, when the device has come to rest, or when the GPU gets to it.

use std::sync::atomic::{AtomicU64, Ordering};

use pfo::{Call, Stream, StreamOrdered, Told};
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

/// How a session is to time its calls.
pub(crate) enum Timing {
    Cpu,
    /// With what waits for the device, and returns whether it could; None while a graph is captured.
    Device(Py<PyAny>),
    /// With what gives the handle of the current stream of a device.
    Stream(Py<PyAny>),
}

impl Timing {
    pub(crate) fn named(sync: &str, cuda: Py<PyAny>) -> PyResult<Self> {
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
    Device { session: pfo::Session, synchronize: Py<PyAny>, captured: AtomicU64 },
    Stream(StreamOrdered, Py<PyAny>),
}

impl Timed {
    pub(crate) fn new(session: pfo::Session, timing: Timing) -> Self {
        match timing {
            Timing::Cpu => Self::Cpu(session),
            Timing::Device(synchronize) => {
                Self::Device { session, synchronize, captured: AtomicU64::new(0) }
            }
            Timing::Stream(stream) => Self::Stream(StreamOrdered::new(session), stream),
        }
    }

    pub(crate) fn session(&self) -> &pfo::Session {
        match self {
            Self::Cpu(session) | Self::Device { session, .. } => session,
            Self::Stream(ordered, _) => ordered.session(),
        }
    }

    /// Makes a call, which counts from a time on if the trainer knows it. Returns when it counts.
    ///
    /// # Errors
    /// Only if the user interrupts. What is wrong with CUDA, the trainer's own next call says.
    pub(crate) fn tell(&self, py: Python<'_>, call: Call, at_ns: Option<u64>) -> PyResult<Told> {
        match (self, at_ns) {
            (Self::Stream(ordered, _), Some(at_ns)) => ordered.tell_at(call, at_ns),
            (_, Some(at_ns)) => self.session().tell_at(call, at_ns),
            (Self::Cpu(session), None) => session.tell(call),
            (Self::Device { session, synchronize, captured }, None) => {
                let waited = synchronize.call0(py).and_then(|waited| waited.extract(py));
                match waited.or_else(|error| forgive(py, error).map(|()| Some(false)))? {
                    Some(true) => {}
                    Some(false) => session.count_untimed(),
                    None => {
                        captured.fetch_add(1, Ordering::Relaxed);
                        return Ok(Told::Captured);
                    }
                }
                session.tell(call);
            }
            (Self::Stream(ordered, _), None) if !ordered.is_timed(call) => {
                return Ok(ordered.tell_on(call, None));
            }
            (Self::Stream(ordered, current), None) => {
                let mut interrupt = Ok(());
                let stream = handle(py, current, ordered.ordinal()).unwrap_or_else(|error| {
                    interrupt = forgive(py, error);
                    None
                });
                // CUDA waits while its launch queue is full.
                let told = py.detach(|| ordered.tell_on(call, stream));
                return interrupt.map(|()| told);
            }
        }
        Ok(Told::AtOnce)
    }

    /// When a call that is made now counts, and why.
    pub(crate) fn in_words(&self, py: Python<'_>) -> String {
        match self {
            Self::Cpu(_) => "cpu: as asked".to_owned(),
            Self::Device { .. } => "device".to_owned(),
            Self::Stream(ordered, _) => py.detach(|| ordered.timing()),
        }
    }

    /// Calls that counted for nothing, because a graph was being captured.
    pub(crate) fn captured(&self) -> u64 {
        match self {
            Self::Cpu(_) => 0,
            Self::Device { captured, .. } => captured.load(Ordering::Relaxed),
            Self::Stream(ordered, _) => ordered.captured(),
        }
    }
}

fn handle(py: Python<'_>, current: &Py<PyAny>, ordinal: Option<u32>) -> PyResult<Option<Stream>> {
    Ok(current.call1(py, (ordinal,))?.extract::<Option<usize>>(py)?.map(Stream))
}

/// Drops what is a program's error, but not an interrupt or an exit.
pub(crate) fn forgive(py: Python<'_>, error: PyErr) -> PyResult<()> {
    if error.is_instance_of::<PyException>(py) { Ok(()) } else { Err(error) }
}
