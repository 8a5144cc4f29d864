//! What the planner refuses, as an exception.

use pyo3::PyErr;
use pyo3::exceptions::PyValueError;

pyo3::create_exception!(
    pfo_gpu,
    PlanError,
    PyValueError,
    "The planner refuses a profile, plan, frontier, deadline or other argument; the message names it."
);

/// The exception that says what was refused, and why.
pub(crate) fn refused(error: impl Into<pfo_planner::PlanError>) -> PyErr {
    PlanError::new_err(error.into().to_string())
}
