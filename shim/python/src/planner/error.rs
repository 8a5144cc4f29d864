//! What the planner refuses, as an exception.

use pyo3::PyErr;
use pyo3::exceptions::PyValueError;

pyo3::create_exception!(
    pfo_gpu,
    PlanError,
    PyValueError,
    "A profile, a plan, a frontier or a deadline that the planner refuses."
);

/// The exception that says what was refused, and why.
pub(crate) fn refused(error: impl Into<pfo_planner::PlanError>) -> PyErr {
    PlanError::new_err(error.into().to_string())
}
