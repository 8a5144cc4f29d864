//! When a call counts: at once, when the device has come to rest, or when the GPU gets to it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
    Device(OnDevice),
    Stream(StreamOrdered, Py<PyAny>),
}

impl Timed {
    pub(crate) fn new(session: pfo::Session, timing: Timing) -> Self {
        match timing {
            Timing::Cpu => Self::Cpu(session),
            Timing::Device(synchronize) => Self::Device(OnDevice {
                session,
                synchronize,
                ordinal: OnceLock::new(),
                has_told: AtomicBool::new(false),
                captured: AtomicU64::new(0),
            }),
            Timing::Stream(stream) => Self::Stream(StreamOrdered::new(session), stream),
        }
    }

    pub(crate) fn session(&self) -> &pfo::Session {
        match self {
            Self::Cpu(session) => session,
            Self::Device(device) => &device.session,
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
            (Self::Device(device), None) => return device.tell(py, call),
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
            Self::Device(device) => device.in_words(py),
            Self::Stream(ordered, _) => py.detach(|| ordered.timing()),
        }
    }

    /// Calls that counted for nothing, because a graph was being captured.
    pub(crate) fn captured(&self) -> u64 {
        match self {
            Self::Cpu(_) => 0,
            Self::Device(device) => device.captured.load(Ordering::Relaxed),
            Self::Stream(ordered, _) => ordered.captured(),
        }
    }
}

/// A session whose calls wait until its GPU has come to rest.
pub(crate) struct OnDevice {
    session: pfo::Session,
    synchronize: Py<PyAny>,
    /// The CUDA ordinal of the leased GPU, once the process has a context on it; none if CUDA does not say.
    ordinal: OnceLock<Option<u32>>,
    /// Whether a call was made before there was a context.
    has_told: AtomicBool,
    captured: AtomicU64,
}

impl OnDevice {
    fn tell(&self, py: Python<'_>, call: Call) -> PyResult<Told> {
        match self.wait(py, call)? {
            Some(true) => {
                self.session.tell(call);
                Ok(Told::ByGpu)
            }
            Some(false) => {
                self.session.count_untimed();
                self.session.tell(call);
                Ok(Told::Untimed)
            }
            None => {
                self.captured.fetch_add(1, Ordering::Relaxed);
                Ok(Told::Captured)
            }
        }
    }

    /// Waits for the leased GPU, and for no other; returns whether it could, and none while a graph is captured.
    fn wait(&self, py: Python<'_>, call: Call) -> PyResult<Option<bool>> {
        // To look for a context costs more than a call, and one that begins to wait in the middle of a step would
        // spoil its times.
        if call == Call::StepBegin
            && self.ordinal.get().is_none()
            && let Ok(found) = pfo::context_ordinal(&self.session)
        {
            self.ordinal.get_or_init(|| found);
        }
        let Some(ordinal) = self.ordinal.get() else {
            self.has_told.store(true, Ordering::Relaxed);
            return Ok(Some(false));
        };
        let waited = self.synchronize.call1(py, (*ordinal,)).and_then(|waited| waited.extract(py));
        waited.or_else(|error| forgive(py, error).map(|()| Some(false)))
    }

    fn in_words(&self, py: Python<'_>) -> String {
        let modules = py.import("sys").and_then(|sys| sys.getattr("modules"));
        let has_torch = modules.and_then(|modules| modules.contains("torch")).unwrap_or(false);
        let known = self.ordinal.get().copied();
        let device = match known.map_or_else(|| pfo::context_ordinal(&self.session), Ok) {
            Err(why) => return format!("cpu: {why}"),
            Ok(_) if !has_torch => return "cpu: PyTorch is not imported".to_owned(),
            Ok(Some(ordinal)) => format!("device cuda:{ordinal}"),
            Ok(None) => "device".to_owned(),
        };
        match known {
            None if self.has_told.load(Ordering::Relaxed) => {
                format!("cpu until the next step begins, then {device}")
            }
            _ => device,
        }
    }
}

fn handle(py: Python<'_>, current: &Py<PyAny>, ordinal: Option<u32>) -> PyResult<Option<Stream>> {
    Ok(current.call1(py, (ordinal,))?.extract::<Option<usize>>(py)?.map(Stream))
}

/// Drops what is a program's error, but not an interrupt or an exit.
pub(crate) fn forgive(py: Python<'_>, error: PyErr) -> PyResult<()> {
    // PyO3 panics when it has to find out the kind of an error while the interpreter ends.
    if is_ending() || error.is_instance_of::<PyException>(py) { Ok(()) } else { Err(error) }
}

#[allow(unsafe_code)]
fn is_ending() -> bool {
    // SAFETY: it may be called at any time.
    unsafe { pyo3::ffi::Py_IsInitialized() == 0 }
}
