//! What follows a framework: it reports the instructions of a step, and counts them. The calls of the training
//! loop pass through here without a frame of Python, which would cost more than the report.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};

use pfo::{Call, Instruction};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::instruction;
use crate::session::Session;
use crate::timing::forgive;

const KINDS: usize = Instruction::ALL.len();

/// Reports to a session what runs in a step, and counts it. What runs in none is an evaluation, or a mistake
/// that `_began_outside` hears of.
#[derive(Default)]
#[pyclass(frozen, subclass, module = "pfo_gpu._native")]
pub(crate) struct Reporter {
    session: RwLock<Option<Py<Session>>>,
    in_step: AtomicBool,
    in_instruction: AtomicBool,
    silent: AtomicBool,
    counts: [AtomicU32; KINDS],
}

impl Reporter {
    fn tell(&self, py: Python<'_>, call: Call) -> PyResult<()> {
        // The lock is not held beyond this: a call may run Python code.
        let session = self
            .session
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|s| s.clone_ref(py));
        session.map_or(Ok(()), |session| session.get().tell(call, None, py))
    }

    /// Begins an instruction of a step; returns whether one has begun.
    fn begin_call(slf: &Bound<'_, Self>, call: Call) -> PyResult<bool> {
        let reporter = slf.get();
        if reporter.silent.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Call::InstructionBegin { instruction, .. } = call else {
            return Ok(false);
        };
        if !reporter.in_step.load(Ordering::Relaxed) {
            slf.call_method1("_began_outside", (instruction.name(),))
                .map(drop)
                .or_else(|error| forgive(slf.py(), error))?;
            return Ok(false);
        }
        reporter.in_instruction.store(true, Ordering::Relaxed);
        if let Some(count) = reporter.counts.get(instruction as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        reporter.tell(slf.py(), call)?;
        Ok(true)
    }
}

#[pymethods]
impl Reporter {
    #[new]
    #[pyo3(signature = (*_arguments, **_named_arguments))]
    fn new(_arguments: &Bound<'_, PyTuple>, _named_arguments: Option<&Bound<'_, PyDict>>) -> Self {
        Self::default()
    }

    /// The session to which it reports.
    #[getter]
    fn session(&self, py: Python<'_>) -> PyResult<Py<Session>> {
        let session = self.session.read().unwrap_or_else(PoisonError::into_inner);
        session
            .as_ref()
            .map(|session| session.clone_ref(py))
            .ok_or_else(|| PyAttributeError::new_err("session"))
    }

    #[setter]
    fn set_session(&self, session: Py<Session>) {
        let mut place = self.session.write().unwrap_or_else(PoisonError::into_inner);
        let before = place.replace(session);
        drop(place);
        drop(before);
    }

    /// Whether a step goes on.
    #[getter]
    fn in_step(&self) -> bool {
        self.in_step.load(Ordering::Relaxed)
    }

    /// Whether an instruction goes on.
    #[getter]
    fn in_instruction(&self) -> bool {
        self.in_instruction.load(Ordering::Relaxed)
    }

    /// Whether an evaluation runs, of which nothing is reported.
    #[getter]
    fn silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Begins a step, and counts from zero.
    fn _step_begin(&self, py: Python<'_>) -> PyResult<()> {
        for count in &self.counts {
            count.store(0, Ordering::Relaxed);
        }
        self.in_instruction.store(false, Ordering::Relaxed);
        self.in_step.store(true, Ordering::Relaxed);
        self.tell(py, Call::StepBegin)
    }

    fn _step_end(&self, py: Python<'_>) -> PyResult<()> {
        self.in_instruction.store(false, Ordering::Relaxed);
        self.in_step.store(false, Ordering::Relaxed);
        self.tell(py, Call::StepEnd)
    }

    /// How many instructions of each name have begun in the last step.
    fn counts(&self) -> Vec<(&'static str, u32)> {
        let counted = Instruction::ALL.iter().zip(&self.counts);
        counted.map(|(kind, count)| (kind.name(), count.load(Ordering::Relaxed))).collect()
    }

    /// An instruction begins. Outside a step nothing is reported.
    #[pyo3(
        signature = (name, microbatch=None, chunk=None),
        text_signature = "($self, name, microbatch=None, chunk=0)"
    )]
    fn begin(
        slf: &Bound<'_, Self>,
        name: &Bound<'_, PyAny>,
        microbatch: Option<&Bound<'_, PyAny>>,
        chunk: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        Self::begin_call(slf, instruction::call(name, microbatch, chunk)?).map(drop)
    }

    /// The instruction that began last ends.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        if !self.in_instruction.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        self.tell(py, Call::InstructionEnd)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Nothing else holds the lock while the collector runs; if it did, a later run collects.
        self.session.try_read().map_or(Ok(()), |session| visit.call(&*session))
    }
}

/// Runs a function as an instruction. What runs inside another instruction is a part of that.
#[pyclass(frozen, module = "pfo_gpu._native")]
pub(crate) struct InstructionCall {
    reporter: Py<Reporter>,
    run: Py<PyAny>,
    name: Py<PyString>,
    /// The name of a call with `full_backward=False`.
    partial_name: Option<Py<PyString>>,
    chunk: Py<PyAny>,
    /// Whether the first argument is the microbatch; else microbatches are counted.
    has_microbatch: bool,
}

#[pymethods]
impl InstructionCall {
    #[new]
    #[pyo3(signature = (reporter, run, name, chunk, *, has_microbatch=false, partial_name=None))]
    fn new(
        reporter: Py<Reporter>,
        run: Py<PyAny>,
        name: Py<PyString>,
        chunk: Py<PyAny>,
        has_microbatch: bool,
        partial_name: Option<Py<PyString>>,
    ) -> Self {
        Self { reporter, run, name, partial_name, chunk, has_microbatch }
    }

    #[pyo3(signature = (*arguments, **named))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        arguments: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reporter = self.reporter.bind(py);
        let run = self.run.bind(py);
        if reporter.get().in_instruction.load(Ordering::Relaxed) {
            return run.call(arguments, named);
        }
        let microbatch = if self.has_microbatch { arguments.get_item(0).ok() } else { None };
        let name = match &self.partial_name {
            Some(partial) if !is_full_backward(py, arguments, named) => partial,
            _ => &self.name,
        };
        let call =
            instruction::call(name.bind(py), microbatch.as_ref(), Some(self.chunk.bind(py)))?;
        if !Reporter::begin_call(reporter, call)? {
            return run.call(arguments, named);
        }
        let returned = run.call(arguments, named);
        let ended = reporter.get().end(py);
        // The trainer's own error comes first.
        let returned = returned?;
        ended.map(|()| returned)
    }

    // A function holds its owner, which holds this in the function's place.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.reporter)?;
        visit.call(&self.run)
    }
}

/// Whether `backward_one_chunk(index, loss=None, full_backward=True, …)` computes all gradients.
fn is_full_backward(
    py: Python<'_>,
    arguments: &Bound<'_, PyTuple>,
    named: Option<&Bound<'_, PyDict>>,
) -> bool {
    let by_name =
        named.and_then(|named| named.get_item(pyo3::intern!(py, "full_backward")).ok().flatten());
    let given = by_name.or_else(|| arguments.get_item(2).ok());
    given.is_none_or(|given| given.is_truthy().unwrap_or(true))
}

/// Calls what reports a function, in the function's place. What is comfort is in its Python subclass.
#[pyclass(frozen, subclass, module = "pfo_gpu._native")]
pub(crate) struct Reported {
    tells: RwLock<Py<PyAny>>,
}

#[pymethods]
impl Reported {
    #[new]
    #[pyo3(signature = (_run, _reporter, tells))]
    fn new(_run: &Bound<'_, PyAny>, _reporter: &Bound<'_, PyAny>, tells: Py<PyAny>) -> Self {
        Self { tells: RwLock::new(tells) }
    }

    /// What runs and reports the function.
    #[getter]
    fn tells(&self, py: Python<'_>) -> Py<PyAny> {
        self.tells.read().unwrap_or_else(PoisonError::into_inner).clone_ref(py)
    }

    #[setter]
    fn set_tells(&self, tells: Py<PyAny>) {
        let mut place = self.tells.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *place, tells);
        drop(place);
        drop(before);
    }

    #[pyo3(signature = (*arguments, **named))]
    fn __call__(
        &self,
        py: Python<'_>,
        arguments: &Bound<'_, PyTuple>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        self.tells(py).call(py, arguments, named)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.tells.try_read().map_or(Ok(()), |tells| visit.call(&*tells))
    }
}
