//! The lower bound of every plan.

use pfo_planner::{LowerBound, PlanError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::planner::Frontier;
use crate::planner::error::refused;

/// The least energy of a step that any plan of a pipeline can reach, by iteration time.
#[pyclass(frozen, module = "pfo_gpu.planner")]
pub(crate) struct Bound {
    pub(crate) bound: LowerBound,
    /// Whose bound it is, from which a copy in another process is made.
    pub(crate) frontier: Py<Frontier>,
}

#[pymethods]
impl Bound {
    /// The least energy of a step of this iteration time, in joules, waiting included.
    ///
    /// ``time_s`` is a number of seconds, or text as :meth:`Frontier.at` takes it. A time that is shorter
    /// than :attr:`fastest_s` or invalid raises :class:`PlanError`.
    fn energy_j(&self, time_s: &pyo3::Bound<'_, PyAny>) -> PyResult<f64> {
        let deadline_s = match time_s.extract::<String>() {
            Ok(deadline) => self.frontier.get().seconds(&deadline)?,
            Err(_) => time_s.extract()?,
        };
        let fastest_s = self.bound.fastest_s();
        if !deadline_s.is_finite() {
            let expected = "a number of seconds";
            let (name, value) = ("the iteration time", deadline_s.to_string());
            return Err(refused(PlanError::BadArgument { name, value, expected }));
        }
        // What a plan's replay sums up in another order may be less by the last digits.
        if deadline_s < fastest_s * (1.0 - 1e-9) {
            return Err(refused(PlanError::DeadlineTooEarly { deadline_s, fastest_s }));
        }
        Ok(self.bound.energy_j(deadline_s.max(fastest_s)))
    }

    /// As :meth:`energy_j`.
    fn __call__(&self, time_s: &pyo3::Bound<'_, PyAny>) -> PyResult<f64> {
        self.energy_j(time_s)
    }

    fn __repr__(&self) -> String {
        let (fastest_s, cheapest_s) = (self.bound.fastest_s(), self.bound.cheapest_s());
        format!(
            "<pfo_gpu.Bound: at least {:.6} J in {fastest_s:.6} s, {:.6} J in {cheapest_s:.6} s>",
            self.bound.energy_j(fastest_s),
            self.bound.energy_j(cheapest_s)
        )
    }

    /// The shortest possible iteration time, in seconds.
    #[getter]
    fn fastest_s(&self) -> f64 {
        self.bound.fastest_s()
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(pyo3::Bound<'py, PyAny>, (pyo3::Bound<'py, PyBytes>,))> {
        let again = py.import("pfo_gpu.planner.frontier")?.getattr("_bound_of")?;
        Ok((again, (self.frontier.get().to_bytes(py)?,)))
    }

    /// The iteration time of least energy, in seconds.
    #[getter]
    fn cheapest_s(&self) -> f64 {
        self.bound.cheapest_s()
    }

    /// The iteration time, in seconds, beyond which more time saves nothing, even if the pipeline waits
    /// for a straggler anyway.
    #[getter]
    fn slowest_s(&self) -> f64 {
        self.bound.slowest_s()
    }
}
