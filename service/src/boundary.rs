//! What a panic ends. Inside a boundary it ends the work of one user, and nothing else; anywhere
//! else it ends the process, and the next one starts from disk.
//!
//! A boundary says whose work it is, for the journal. What unwinding may leave half changed is
//! shared through [`lock`], which ends the process too.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;
use std::{fmt, future, process, thread};

use pfo_protocol::{Holder, Refusal, RefusalCode};
use pfo_vocabulary::{GpuUuid, JobName, Pid, Uid};
use tokio::task::spawn_blocking;

use crate::peer::Door;

/// The name of the journal entry about a panic.
const PANIC: &str = "panic";

thread_local! {
    /// Whose work the thread does, while it is in a boundary.
    static WHOSE: RefCell<Option<Whose>> = const { RefCell::new(None) };
}

/// Whose work runs in a boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    /// The user.
    pub uid: Uid,
    /// The user's process, if it is one's.
    pub pid: Option<Pid>,
    /// The job, if it is the work of one.
    pub job: Option<JobName>,
    /// The GPU, if it is the work of a rank.
    pub gpu: Option<GpuUuid>,
    /// The socket, if it is the work of a connection.
    pub door: Option<Door>,
}

impl Whose {
    /// The work of a process, for no job in particular.
    #[must_use]
    pub fn of(uid: Uid, pid: Pid) -> Self {
        Self { uid, pid: Some(pid), job: None, gpu: None, door: None }
    }

    /// The work of a rank.
    #[must_use]
    pub fn of_rank(holder: &Holder, gpu: &GpuUuid) -> Self {
        let Holder { job, uid, pid, .. } = holder;
        Self { job: Some(job.clone()), gpu: Some(gpu.clone()), ..Self::of(*uid, *pid) }
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}", self.uid)?;
        self.pid.map_or(Ok(()), |pid| write!(f, ", process {pid}"))?;
        self.job.as_ref().map_or(Ok(()), |job| write!(f, ", job {job}"))?;
        self.gpu.as_ref().map_or(Ok(()), |gpu| write!(f, ", GPU {gpu}"))
    }
}

/// The work in a boundary panicked. The journal says where and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an internal error, which is in the journal")]
pub struct Panicked;

impl From<Panicked> for Refusal {
    fn from(panicked: Panicked) -> Self {
        Self::new(RefusalCode::Internal, panicked.to_string(), "please report the entry")
    }
}

/// Writes every panic to the journal, and ends the process if it is in no boundary.
pub fn report_panics() {
    set_hook(Box::new(|panic| match WHOSE.try_with(|whose| whose.borrow().clone()) {
        Ok(Some(whose)) => report(panic, &whose),
        _ => {
            tracing::error!(name: PANIC, "{}; the process ends", in_words(panic));
            process::abort();
        }
    }));
}

fn report(panic: &PanicHookInfo<'_>, whose: &Whose) {
    let Whose { uid, pid, job, gpu, .. } = whose;
    tracing::error!(
        name: PANIC,
        uid = uid.0, pid = pid.map(|pid| pid.0), job = job.as_ref().map(display),
        gpu_uuid = gpu.as_ref().map(display),
        "{}; what it did for {whose} ends", in_words(panic)
    );
}

/// On one line, whatever the message contains.
fn in_words(panic: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let (name, why) = (thread.name().unwrap_or("?"), panic.payload_as_str().unwrap_or("?"));
    let place = panic.location().map_or_else(|| "?".into(), ToString::to_string);
    format!("thread {name:?} panicked at {place}: {why:?}")
}

/// Does work in a boundary.
///
/// # Errors
/// If it panics.
pub fn catch<T>(whose: &Whose, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let outer = WHOSE.take();
    let door = whose.door.or_else(|| outer.as_ref()?.door);
    WHOSE.set(Some(Whose { door, ..whose.clone() }));
    let caught = catch_unwind(AssertUnwindSafe(work));
    WHOSE.set(outer);
    caught.map_err(|_| Panicked)
}

/// Does work of the runtime in a boundary.
///
/// # Errors
/// If it panics.
pub async fn catch_in<T>(whose: &Whose, work: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut work = pin!(work);
    future::poll_fn(|context| match catch(whose, || work.as_mut().poll(context)) {
        Ok(polled) => polled.map(Ok),
        Err(panicked) => Poll::Ready(Err(panicked)),
    })
    .await
}

/// Whether this is the work of a connection to the socket for administration.
pub(crate) fn is_administration() -> bool {
    WHOSE.with_borrow(|whose| whose.as_ref().and_then(|whose| whose.door)) == Some(Door::Admin)
}

/// Makes work run in the boundary that the caller is in, if any, on whatever thread it runs.
fn in_same<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> Result<T, Panicked> {
    let whose = WHOSE.with_borrow(Clone::clone);
    move || match whose {
        Some(whose) => catch(&whose, work),
        None => Ok(work()),
    }
}

/// Does work that may block on another thread than that of the runtime, in the same boundary.
///
/// # Errors
/// If it panics in a boundary.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Panicked> {
    // Work is cancelled only when the process ends.
    spawn_blocking(in_same(work)).await.unwrap_or(Err(Panicked))
}

/// Panics at a job of this name, which tests of panics give to theirs. Never in a release.
pub fn panic_in_tests(job: &JobName, name: &str) {
    assert!(!cfg!(debug_assertions) || job.as_str() != name, "a test asks for it");
}

/// Locks what threads share. Ends the process if a panic may have left it half changed.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(|_| {
        tracing::error!("a panic came in the middle of a change of shared state; the process ends");
        process::abort()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};
    use std::sync::Arc;

    use super::*;

    fn whose() -> Whose {
        let (job, gpu) = (Some("j".parse().unwrap()), Some("GPU-1".parse().unwrap()));
        Whose { job, gpu, ..Whose::of(Uid(7), Pid(8)) }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Runs this test once more in a process of its own, in which `work` runs with the daemons'
    /// hook. `None` in that process.
    fn in_own_process(test: &str, work: impl FnOnce()) -> Option<Output> {
        if std::env::var_os("PFO_IN_OWN_PROCESS").is_some() {
            tracing_subscriber::fmt().with_writer(std::io::stderr).init();
            report_panics();
            work();
            return None;
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", &format!("boundary::tests::{test}")]);
        Some(command.env("PFO_IN_OWN_PROCESS", "1").output().unwrap())
    }

    fn assert_aborted(output: &Output, said: &str) {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{errors}");
        assert!(errors.contains(said), "{errors}");
    }

    #[test]
    fn a_panic_in_a_boundary_is_caught_wherever_its_work_runs() {
        assert_eq!(catch(&whose(), || 7), Ok(7));
        assert_eq!(catch(&whose(), || panic!("here")), Err::<(), _>(Panicked));
        block_on(async {
            let later = async {
                tokio::task::yield_now().await;
                panic!("later")
            };
            assert_eq!(catch_in(&whose(), later).await, Err::<(), _>(Panicked));
            let elsewhere = async { blocking(|| panic!("elsewhere")).await };
            assert_eq!(catch_in(&whose(), elsewhere).await, Ok(Err::<(), _>(Panicked)));
        });
    }

    #[test]
    fn work_is_in_its_boundary_only_while_it_runs() {
        let now = || WHOSE.with_borrow(Clone::clone);
        let inner = Whose::of(Uid(1), Pid(2));
        let seen = catch(&whose(), || [catch(&inner, now), Ok(now())]).unwrap();
        assert_eq!(seen, [Ok(Some(inner)), Ok(Some(whose()))]);
        let _ = catch(&whose(), || panic!());
        assert_eq!(now(), None);
        block_on(async {
            let whose = whose();
            let mut work = Box::pin(catch_in(&whose, tokio::task::yield_now()));
            assert!(
                future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_pending()))
                    .await
            );
            assert_eq!(now(), None, "it waits");
        });
    }

    #[test]
    fn a_caught_panic_is_one_line_that_says_whose_it_was() {
        let panics = || {
            let caught = catch(&whose(), || panic!("forged\nline"));
            assert_eq!(caught, Err::<(), _>(Panicked));
        };
        let test = "a_caught_panic_is_one_line_that_says_whose_it_was";
        let Some(output) = in_own_process(test, panics) else { return };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let entry = errors.lines().find(|line| line.contains("panicked at")).unwrap();
        for part in ["boundary.rs", r"forged\nline", "uid=7", "pid=8", "GPU-1", "user 7, process 8"]
        {
            assert!(entry.contains(part), "{part}: {entry}");
        }
    }

    #[test]
    fn a_panic_in_no_boundary_ends_the_process_before_it_unwinds() {
        struct Unwound;
        impl Drop for Unwound {
            fn drop(&mut self) {
                eprintln!("unwound");
            }
        }
        let panics = || {
            let thread = thread::spawn(|| {
                let _unwound = Unwound;
                panic!("alone");
            });
            let _ = thread.join();
        };
        let test = "a_panic_in_no_boundary_ends_the_process_before_it_unwinds";
        let Some(output) = in_own_process(test, panics) else { return };
        assert_aborted(&output, "the process ends");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("unwound"));
    }

    #[test]
    fn what_a_panic_left_half_changed_ends_the_process() {
        let panics = || {
            let shared = Arc::new(Mutex::new(1));
            let half = catch(&whose(), || {
                let _locked = lock(&shared);
                panic!("in the middle")
            });
            assert_eq!(half, Err::<(), _>(Panicked));
            drop(lock(&shared));
        };
        let test = "what_a_panic_left_half_changed_ends_the_process";
        let Some(output) = in_own_process(test, panics) else { return };
        assert_aborted(&output, "in the middle of a change");
    }
}
