//! `pfo._native`: the shim's session and the planner as Python classes. What is comfort and not speed is in Python.

mod instruction;
mod planner;
mod session;
mod timing;

use pyo3::prelude::*;

/// The shim's session and the planner as Python classes.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::planner::error::PlanError;
    #[pymodule_export]
    use crate::planner::{Bound, Frontier, Pipeline, Plan, Profile};
    #[pymodule_export]
    use crate::session::{Counters, Problem, Session};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = pfo::VERSION;
}
