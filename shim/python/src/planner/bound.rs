//! The lower bound of every plan.

use pfo_planner::LowerBound;
use pyo3::prelude::*;

/// The energy that every plan of a pipeline takes at least.
#[pyclass(frozen, module = "pfo_gpu.planner")]
pub(crate) struct Bound(pub(crate) LowerBound);

#[pymethods]
impl Bound {
    /// The joules of a step of this iteration time (s), waiting included, that every plan takes at least.
    fn energy_j(&self, time_s: f64) -> f64 {
        self.0.energy_j(time_s)
    }

    /// The shortest possible iteration time.
    #[getter]
    fn fastest_s(&self) -> f64 {
        self.0.fastest_s()
    }

    /// The iteration time of least energy.
    #[getter]
    fn cheapest_s(&self) -> f64 {
        self.0.cheapest_s()
    }

    /// The iteration time beyond which more time saves nothing, even where the pipeline waits anyway.
    #[getter]
    fn slowest_s(&self) -> f64 {
        self.0.slowest_s()
    }
}
