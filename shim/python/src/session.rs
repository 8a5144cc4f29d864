//! The session of a rank. A method that is called in the training loop keeps the interpreter's lock: it never
//! waits, and giving the lock away would cost a turn of another thread. What waits releases it.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use pfo::{DescriptionError, Gpu, RankDescription};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::instruction;

/// Why there is no lease right now.
#[pyclass(frozen, get_all, module = "pfo")]
pub(crate) struct Problem {
    /// The code of `enum pfo_code` in `pfo.h`.
    code: i32,
    /// What is wrong.
    message: String,
    /// What to do about it; empty where nothing can be said.
    remedy: String,
}

#[pymethods]
impl Problem {
    fn __str__(&self) -> String {
        match &self.remedy[..] {
            "" => self.message.clone(),
            remedy => format!("{}; {remedy}", self.message),
        }
    }

    fn __repr__(&self) -> String {
        format!("<pfo.Problem {}: {}>", self.code, self.__str__())
    }
}

/// What became of a session's events.
#[pyclass(frozen, get_all, module = "pfo")]
pub(crate) struct Counters {
    /// Events that the kernel took.
    sent: u64,
    /// Events that nobody took: there was no connection, or its socket was full.
    dropped: u64,
    /// How often a lost lease was had again.
    reconnects: u64,
    /// Whether the session holds a lease now, as far as it knows.
    connected: bool,
}

#[pymethods]
impl Counters {
    fn __repr__(&self) -> String {
        let Self { sent, dropped, reconnects, connected } = self;
        let connected = if *connected { "True" } else { "False" };
        format!(
            "Counters(sent={sent}, dropped={dropped}, reconnects={reconnects}, connected={connected})"
        )
    }
}

/// A session that is over until `_open` opens it.
#[pyclass(frozen, subclass, module = "pfo._native")]
pub(crate) struct Session(RwLock<Option<pfo::Session>>);

impl Session {
    fn get(&self) -> RwLockReadGuard<'_, Option<pfo::Session>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, session: Option<pfo::Session>) {
        let mut place = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *place = session;
    }

    fn tell(&self, event: impl FnOnce(&pfo::Session)) {
        if let Some(session) = &*self.get() {
            event(session);
        }
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (*_arguments, **_named_arguments))]
    fn new(_arguments: &Bound<'_, PyTuple>, _named_arguments: Option<&Bound<'_, PyDict>>) -> Self {
        Self(RwLock::new(None))
    }

    #[expect(clippy::too_many_arguments, reason = "a description in one call, by keywords only")]
    #[pyo3(signature = (*, job, gpu, socket, rank, pp_rank, dp_rank, tp_rank, pp_degree, dp_degree,
                        tp_degree, num_microbatches, first_step, setup_timeout_s))]
    fn _open(
        &self,
        py: Python<'_>,
        job: Option<String>,
        gpu: Option<&str>,
        socket: Option<PathBuf>,
        rank: u32,
        pp_rank: u32,
        dp_rank: u32,
        tp_rank: u32,
        pp_degree: u32,
        dp_degree: u32,
        tp_degree: u32,
        num_microbatches: Option<u32>,
        first_step: u64,
        setup_timeout_s: f64,
    ) -> PyResult<()> {
        let gpu = gpu.map(str::parse::<Gpu>).transpose().map_err(|error| invalid(&error))?;
        let setup_timeout = Duration::try_from_secs_f64(setup_timeout_s)
            .map_err(|error| invalid(&format!("setup_timeout_s {setup_timeout_s}: {error}")))?;
        let description = RankDescription {
            job,
            gpu,
            socket,
            rank,
            pp_rank,
            dp_rank,
            tp_rank,
            pp_degree,
            dp_degree,
            tp_degree,
            num_microbatches,
            first_step,
            setup_timeout,
        };
        let session = py
            .detach(|| pfo::Session::open(description))
            .map_err(|error: DescriptionError| invalid(&error))?;
        self.replace(Some(session));
        Ok(())
    }

    /// The next training step begins.
    fn step_begin(&self) {
        self.tell(pfo::Session::step_begin);
    }

    /// The step ends.
    fn step_end(&self) {
        self.tell(pfo::Session::step_end);
    }

    /// An instruction of a microbatch begins.
    ///
    /// Without a number it is the microbatch after the last one of the same instruction and chunk in
    /// this step.
    #[pyo3(signature = (name, microbatch=None, chunk=0))]
    fn instruction_begin(
        &self,
        name: &Bound<'_, PyString>,
        microbatch: Option<u32>,
        chunk: u16,
    ) -> PyResult<()> {
        let instruction = instruction::named(name)?;
        self.tell(|session| session.instruction_begin_in_chunk(instruction, chunk, microbatch));
        Ok(())
    }

    /// The instruction that began last ends.
    fn instruction_end(&self) {
        self.tell(pfo::Session::instruction_end);
    }

    /// Why there is no lease right now; None if there is one, or if the session is over.
    #[getter]
    fn problem(&self) -> Option<Problem> {
        let problem = self.get().as_ref()?.problem()?;
        Some(Problem {
            code: problem.code.number(),
            message: problem.message,
            remedy: problem.remedy,
        })
    }

    /// What became of the events so far.
    #[getter]
    fn counters(&self) -> Counters {
        let counters = self.get().as_ref().map(pfo::Session::counters).unwrap_or_default();
        Counters {
            sent: counters.sent,
            dropped: counters.dropped,
            reconnects: counters.reconnects,
            connected: counters.connected,
        }
    }

    /// Ends the session, without waiting: the daemon restores the GPU's clocks.
    fn close(&self) {
        self.replace(None);
    }
}

fn invalid(error: &impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}
