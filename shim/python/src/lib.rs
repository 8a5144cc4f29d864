//! `pfo._native`: the shim's session as a Python class. What is comfort and not speed is in Python.

mod instruction;
mod session;
mod timing;

use pyo3::pymodule;

/// The shim's session as a Python class.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::session::{Counters, Problem, Session};
}
