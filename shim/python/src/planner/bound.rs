//! The lower bound of every plan.

use pfo_planner::LowerBound;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::planner::Frontier;

/// The energy that every plan of a pipeline takes at least.
#[pyclass(frozen, module = "pfo_gpu.planner")]
pub(crate) struct Bound {
    pub(crate) bound: LowerBound,
    /// Whose bound it is, from which a copy in another process is made.
    pub(crate) frontier: Py<Frontier>,
}

#[pymethods]
impl Bound {
    /// The joules of a step of this iteration time (s), waiting included, that every plan takes at least.
    fn energy_j(&self, time_s: f64) -> f64 {
        self.bound.energy_j(time_s)
    }

    /// The shortest possible iteration time.
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

    /// The iteration time of least energy.
    #[getter]
    fn cheapest_s(&self) -> f64 {
        self.bound.cheapest_s()
    }

    /// The iteration time beyond which more time saves nothing, even where the pipeline waits anyway.
    #[getter]
    fn slowest_s(&self) -> f64 {
        self.bound.slowest_s()
    }
}
