//! The session of a rank. A method that is called in the training loop stays attached to the
//! interpreter: it never waits, and where there is a lock of the interpreter, giving it away would cost a
//! turn of another thread. What waits detaches. Nothing here relies on that lock: the session has one
//! of its own, under which no Python code runs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use pfo::{Call, DescriptionError, DpRank, Gpu, Rank, RankDescription, Stage, Told, TpRank};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::instruction;
use crate::place::Place;
use crate::timing::{Timed, Timing};

/// How long Ctrl-C may go unnoticed while a session opens.
const SIGNALS_WAIT: Duration = Duration::from_millis(50);

/// Why training runs at default clocks, or without its plan.
#[pyclass(frozen, get_all, module = "pfo_gpu")]
pub(crate) struct Problem {
    /// The code of `enum pfo_code` in `pfo.h`.
    code: i32,
    /// What is wrong.
    message: String,
    /// What to do about it; empty if no remedy is known.
    remedy: String,
}

impl From<pfo::Problem> for Problem {
    fn from(problem: pfo::Problem) -> Self {
        let pfo::Problem { code, message, remedy, .. } = problem;
        Self { code: code.number(), message, remedy }
    }
}

#[pymethods]
impl Problem {
    #[new]
    fn new(code: i32, message: String, remedy: String) -> Self {
        Self { code, message, remedy }
    }

    fn __getnewargs__(&self) -> (i32, &str, &str) {
        (self.code, &self.message, &self.remedy)
    }

    fn __str__(&self) -> String {
        match &self.remedy[..] {
            "" => self.message.clone(),
            remedy => format!("{}; {remedy}", self.message),
        }
    }

    fn __repr__(&self) -> String {
        format!("<pfo_gpu.Problem {}: {}>", self.code, self.__str__())
    }
}

/// How many events of a session were sent, dropped or not timed.
#[pyclass(frozen, get_all, module = "pfo_gpu")]
pub(crate) struct Counters {
    /// Events that were written to the socket.
    sent: u64,
    /// Events that were dropped, because there was no connection or its socket was full.
    dropped: u64,
    /// Calls that counted at once, although the session times them on its GPU: the process had no CUDA
    /// context there, or the stream was another GPU's. With ``sync="stream"``, only calls made after the
    /// process had loaded CUDA; with ``sync="cpu"``, always 0.
    untimed: u64,
    /// Calls that were discarded, because a CUDA graph was being captured; 0 with ``sync="cpu"``.
    captured: u64,
    /// Instructions that began outside a step, or before the previous one had ended.
    misplaced: u64,
    /// How often the session regained a lost lease.
    reconnects: u64,
    /// Whether the session holds a lease and pfod reads its events, as far as it knows.
    connected: bool,
}

#[pymethods]
impl Counters {
    fn __repr__(&self) -> String {
        let Self { sent, dropped, untimed, captured, misplaced, reconnects, connected } = self;
        let connected = if *connected { "True" } else { "False" };
        format!(
            "Counters(sent={sent}, dropped={dropped}, untimed={untimed}, captured={captured}, \
             misplaced={misplaced}, reconnects={reconnects}, connected={connected})"
        )
    }
}

/// A session that is over until `_open` opens it.
#[pyclass(frozen, subclass, module = "pfo_gpu._native")]
pub(crate) struct Session {
    timed: RwLock<Option<Arc<Timed>>>,
    /// The counters of a session that is over, and the calls that a graph captured.
    last: Mutex<(pfo::Counters, u64)>,
    place: Place,
    /// Steps whose beginning could not be timed.
    untimed_steps: AtomicU64,
}

impl Session {
    /// The session while it is open. The lock is not held beyond this: a call may run Python code.
    fn open(&self) -> Option<Arc<Timed>> {
        self.timed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, session: Option<Timed>) {
        let session = session.map(Arc::new);
        let mut place = self.timed.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *place, session);
        drop(place);
        if let Some(before) = &before {
            let mut counters = before.session().counters();
            counters.connected = false;
            *self.last() = (counters, before.captured());
        }
        drop(before);
    }

    fn last(&self) -> MutexGuard<'_, (pfo::Counters, u64)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tell(
        &self,
        call: Call,
        at: Option<&Bound<'_, PyAny>>,
        py: Python<'_>,
    ) -> PyResult<()> {
        let Some(session) = self.open() else {
            return Ok(());
        };
        let at_ns = at.map(|at| instruction::time(at)).transpose()?.flatten();
        let told = session.tell(py, call, at_ns)?;
        if told == Told::Captured {
            if session.captured() == 1 {
                return instruction::report(py, "report_captured", ());
            }
            return Ok(());
        }
        // A first step may be what initializes CUDA, and that there is no lease has been reported.
        if told == Told::Untimed
            && call == Call::StepBegin
            && session.session().problem().is_none()
            && self.untimed_steps.fetch_add(1, Ordering::Relaxed) == 1
        {
            instruction::report(py, "report_untimed", (session.in_words(py),))?;
        }
        match self.place.take(call) {
            Some(misplaced) => instruction::report(py, "report_misplaced", (misplaced,)),
            None => Ok(()),
        }
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (*_arguments, **_named_arguments))]
    fn new(_arguments: &Bound<'_, PyTuple>, _named_arguments: Option<&Bound<'_, PyDict>>) -> Self {
        Self {
            timed: RwLock::new(None),
            last: Mutex::default(),
            place: Place::default(),
            untimed_steps: AtomicU64::new(0),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a description in one call, by keywords only")]
    #[pyo3(signature = (*, job, gpu, socket, rank, pp_rank, dp_rank, tp_rank, pp_degree, dp_degree,
                        tp_degree, num_microbatches, first_step, setup_timeout_s, plan, sync, cuda))]
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
        plan: Option<PathBuf>,
        sync: &str,
        cuda: Py<PyAny>,
    ) -> PyResult<()> {
        let timing = Timing::named(sync, cuda)?;
        let gpu = gpu.map(str::parse::<Gpu>).transpose().map_err(|error| invalid(&error))?;
        let setup_timeout = Duration::try_from_secs_f64(setup_timeout_s)
            .map_err(|error| invalid(&format!("setup_timeout_s {setup_timeout_s}: {error}")))?;
        let description = RankDescription {
            job,
            gpu,
            socket,
            devices: None,
            rank: Rank(rank),
            pp_rank: Stage::try_from(pp_rank)
                .map_err(|_| invalid(&DescriptionError::Stage(pp_rank)))?,
            dp_rank: DpRank(dp_rank),
            tp_rank: TpRank(tp_rank),
            pp_degree,
            dp_degree,
            tp_degree,
            num_microbatches,
            first_step,
            setup_timeout,
            plan,
        };
        let session = py
            .detach(|| pfo::Session::begin(description))
            .map_err(|error: DescriptionError| invalid(&error))?;
        let opened = Instant::now();
        loop {
            let patience = setup_timeout.saturating_sub(opened.elapsed());
            let settled = py.detach(|| session.is_settled_within(patience.min(SIGNALS_WAIT)));
            py.check_signals()?;
            if settled || patience.is_zero() {
                break;
            }
        }
        self.replace(Some(Timed::new(session, timing)));
        Ok(())
    }

    /// Whether the daemon has answered, or there is a reason why it has not; True if the session is over.
    fn _is_settled(&self) -> bool {
        self.open().is_none_or(|open| open.session().is_settled_within(Duration::ZERO))
    }

    /// Begins the next training step. Steps count up by one from ``first_step``. ``at_ns`` is as for
    /// :meth:`instruction_begin`.
    #[pyo3(signature = (*, at_ns=None))]
    fn step_begin(&self, py: Python<'_>, at_ns: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.tell(Call::StepBegin, at_ns, py)
    }

    /// Ends the step. Does nothing if none has begun. ``at_ns`` is as for :meth:`instruction_begin`.
    #[pyo3(signature = (*, at_ns=None))]
    fn step_end(&self, py: Python<'_>, at_ns: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.tell(Call::StepEnd, at_ns, py)
    }

    /// Begins an instruction of a microbatch.
    ///
    /// Microbatches count from 0 in each step. Without a number, it is the microbatch after the last one of
    /// the same instruction and chunk in this step; in chunks from 64 on, it is 0.
    ///
    /// ``at_ns`` is for a trainer that learns from its GPU when the instruction began: nanoseconds of
    /// ``time.monotonic_ns()``. The instruction is measured by this time, but its clock is set when the call
    /// is made. Without ``at_ns``, the call counts as ``sync`` says.
    ///
    /// Invalid arguments raise nothing: the instruction is sent as ``other``, and one warning names them.
    #[pyo3(
        signature = (name, microbatch=None, chunk=None, *, at_ns=None),
        text_signature = "($self, name, microbatch=None, chunk=0, *, at_ns=None)"
    )]
    fn instruction_begin(
        &self,
        name: &Bound<'_, PyAny>,
        microbatch: Option<&Bound<'_, PyAny>>,
        chunk: Option<&Bound<'_, PyAny>>,
        at_ns: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.tell(instruction::call(name, microbatch, chunk)?, at_ns, name.py())
    }

    /// Ends the instruction that began last. Does nothing if none has begun. ``at_ns`` is as for
    /// :meth:`instruction_begin`.
    #[pyo3(signature = (*, at_ns=None))]
    fn instruction_end(&self, py: Python<'_>, at_ns: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.tell(Call::InstructionEnd, at_ns, py)
    }

    /// Why there is no lease right now, or that pfod does not read this rank's events; else None, also once
    /// closed.
    #[getter]
    fn problem(&self) -> Option<Problem> {
        self.open()?.session().problem().map(Problem::from)
    }

    /// Why the job does not begin with the plan that ``plan`` or ``PFO_PLAN`` names; None if it does, if none
    /// is named, or once closed.
    #[getter]
    fn plan_problem(&self) -> Option<Problem> {
        self.open()?.session().plan_problem().map(Problem::from)
    }

    /// The UUID of the leased GPU; None if there is no lease right now.
    #[getter]
    fn gpu(&self) -> Option<String> {
        Some(self.open()?.session().lease()?.gpu_uuid.to_string())
    }

    /// The counters of the session so far, or until it was closed.
    #[getter]
    fn counters(&self) -> Counters {
        let now = self.open().map(|open| (open.session().counters(), open.captured()));
        let (counters, captured) = now.unwrap_or_else(|| *self.last());
        Counters {
            sent: counters.sent,
            dropped: counters.dropped,
            untimed: counters.untimed,
            captured,
            misplaced: counters.misplaced,
            reconnects: counters.reconnects,
            connected: counters.connected,
        }
    }

    /// When a call that is made now counts, and why: ``stream on cuda:3``, ``cpu: there is no lease``,
    /// ``closed``.
    #[getter]
    fn timing(&self, py: Python<'_>) -> String {
        self.open().map_or_else(|| "closed".to_owned(), |open| open.in_words(py))
    }

    /// Whether the session has been closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open().is_none()
    }

    /// Ends the session without waiting. pfod restores the GPU's clocks.
    ///
    /// With ``sync="stream"``, calls that the GPU has not reached yet are reported first, in the background.
    fn close(&self) {
        self.replace(None);
    }
}

fn invalid(error: &impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}
