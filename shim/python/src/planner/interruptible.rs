//! Work of the planner that other threads of the interpreter do not wait for, and that Ctrl-C ends.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How often signals are looked at, and progress is reported.
const EVERY: Duration = Duration::from_millis(50);

/// Works without the interpreter's lock. The work reports its progress (0 to 1) from any of its
/// threads; it is ended from within that report where a signal arrived or `progress` raised.
///
/// # Errors
/// What the handler of a signal or `progress` raised.
pub(crate) fn interruptible<R: Send>(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&(dyn Fn(f64) + Sync)) -> R + Send,
) -> PyResult<R> {
    let caller = thread::current().id();
    let looked = Mutex::new(Instant::now());
    let is_over = AtomicBool::new(false);
    let raised = Mutex::new(None);
    let report = |done: f64| {
        // Only the thread that Python called in knows its signals.
        if thread::current().id() == caller
            && is_due(&looked)
            && let Err(error) = Python::attach(|py| attend(py, progress, done))
        {
            *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            is_over.store(true, Ordering::Release);
        }
        if is_over.load(Ordering::Acquire) {
            resume_unwind(Box::new("interrupted"));
        }
    };
    let worked = py.detach(|| catch_unwind(AssertUnwindSafe(|| work(&report))));
    match (worked, raised.into_inner().unwrap_or_else(PoisonError::into_inner)) {
        (_, Some(error)) => Err(error),
        (Ok(result), None) => Ok(result),
        (Err(panic), None) => resume_unwind(panic),
    }
}

fn is_due(looked: &Mutex<Instant>) -> bool {
    let mut looked = looked.lock().unwrap_or_else(PoisonError::into_inner);
    let is_due = looked.elapsed() >= EVERY;
    if is_due {
        *looked = Instant::now();
    }
    is_due
}

fn attend(py: Python<'_>, progress: Option<&Py<PyAny>>, done: f64) -> PyResult<()> {
    py.check_signals()?;
    progress.map_or(Ok(()), |progress| progress.call1(py, (done,)).map(drop))
}
