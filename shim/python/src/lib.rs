//! `pfo_gpu._native`: the shim's session, the planner and the daemons' messages as Python classes and
//! functions. What is comfort and not speed is in Python.

mod frames;
mod instruction;
mod place;
mod planner;
mod reporter;
mod session;
mod timing;

use pyo3::prelude::*;

/// The shim's session and the planner as Python classes.
#[pymodule(gil_used = false)]
mod _native {
    use std::time::Duration;

    use pfo_protocol::GpuListing;
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::frames::{NodeError, agent_request_frame, answer, payload_bytes, request_frame};
    #[pymodule_export]
    use crate::planner::error::PlanError;
    #[pymodule_export]
    use crate::planner::{Bound, Frontier, Pipeline, Plan, Profile};
    #[pymodule_export]
    use crate::reporter::{InstructionCall, Reported, Reporter};
    #[pymodule_export]
    use crate::session::{Counters, Problem, Session};

    /// The global rank that a launcher (``torchrun``, Open MPI, PMI, Slurm) gave this process; None
    /// without one.
    #[pyfunction]
    fn launched_rank() -> Option<u32> {
        pfo::launched_rank()
    }

    /// The UUIDs of this process's GPUs in the order in which CUDA counts them, given the UUID, PCI bus id and
    /// model of each GPU that the driver shows it. Raises ``ValueError`` if CUDA may count them in another
    /// order.
    #[pyfunction]
    fn cuda_gpus(driver_gpus: Vec<(String, String, String)>) -> PyResult<Vec<String>> {
        let refused = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let mut listed = Vec::new();
        for (uuid, pci_bus_id, model) in driver_gpus {
            let uuid = uuid.parse().map_err(|error| refused(&error))?;
            let pci_bus_id = pci_bus_id.parse().map_err(|error| refused(&error))?;
            listed.push(GpuListing { uuid, pci_bus_id, model });
        }
        let gpus = pfo::cuda_gpus(&listed).map_err(|problem| refused(&problem))?;
        Ok(gpus.iter().map(ToString::to_string).collect())
    }

    /// Waits, for at most ``patience_s`` seconds, until the GPU has reached every call of every session of
    /// this process.
    #[pyfunction]
    fn wait_for_gpu(py: Python<'_>, patience_s: f64) {
        py.detach(|| pfo::wait_for_gpu(Duration::from_secs_f64(patience_s)));
    }

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = pfo::VERSION;
}
