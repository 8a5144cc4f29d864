//! An instruction by its name, as Python hands it over.

use pfo::{Call, Instruction};
use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

use crate::timing::forgive;

/// The names as the interpreter keeps them: those in a program's source are the same objects, so
/// that most calls compare pointers only.
static NAMES: PyOnceLock<[Py<PyString>; Instruction::ALL.len()]> = PyOnceLock::new();

/// An instruction as Python describes it. What is no instruction, no microbatch or no chunk makes it an
/// `other` and is logged once: a mistake must not end a training.
///
/// # Errors
/// Only if the user interrupts.
pub(crate) fn call(
    name: &Bound<'_, PyAny>,
    microbatch: Option<&Bound<'_, PyAny>>,
    chunk: Option<&Bound<'_, PyAny>>,
) -> PyResult<Call> {
    let read = || -> PyResult<Call> {
        let microbatch = microbatch.map(PyAnyMethods::extract).transpose()?;
        let chunk = chunk.map_or(Ok(0), PyAnyMethods::extract)?;
        Ok(Call::InstructionBegin { instruction: named(name.cast()?)?, chunk, microbatch })
    };
    read().or_else(|error| {
        let py = name.py();
        forgive(py, error)?;
        report(py, "report_unknown", (name, microbatch, chunk))?;
        let instruction = Instruction::Other;
        Ok(Call::InstructionBegin { instruction, chunk: 0, microbatch: None })
    })
}

/// A time of `CLOCK_MONOTONIC` in nanoseconds, as Python hands it over. What is none is logged once.
///
/// # Errors
/// Only if the user interrupts.
pub(crate) fn time(at_ns: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    at_ns.extract().map(Some).or_else(|error| {
        forgive(at_ns.py(), error)?;
        report(at_ns.py(), "report_no_time", (at_ns,)).map(|()| None)
    })
}

/// Has Python log something.
///
/// # Errors
/// Only if the user interrupts.
pub(crate) fn report<'py>(
    py: Python<'py>,
    function: &str,
    arguments: impl PyCallArgs<'py>,
) -> PyResult<()> {
    let logged = py
        .import("pfo_gpu.instruction")
        .and_then(|module| module.call_method1(function, arguments));
    logged.map(drop).or_else(|error| forgive(py, error))
}

fn named(name: &Bound<'_, PyString>) -> PyResult<Instruction> {
    let py = name.py();
    let names = NAMES.get_or_init(py, || {
        Instruction::ALL.map(|instruction| PyString::intern(py, instruction.name()).unbind())
    });
    if let Some(number) = names.iter().position(|known| known.is(name)) {
        return Ok(Instruction::ALL[number]);
    }
    name.to_cow()?.parse().map_err(|_| PyValueError::new_err("no instruction"))
}
