//! `pfo._native`: the shim's session as a Python class. What is comfort and not speed is in Python.

mod instruction;
mod session;
mod timing;

use pyo3::prelude::*;

/// The shim's session as a Python class.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::session::{Counters, Problem, Session};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = pfo::VERSION;
}
