//! Waiting for something to come true: often enough to be quick, and no longer than [`LONG`].

use std::fmt::Debug;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than anything here takes. No test passes because of it: what does not come true fails.
pub const LONG: Duration = Duration::from_secs(150);

/// How often to look: what comes soon is seen soon, and who waits for long takes no processor from those who
/// are waited for.
const POLL: Duration = Duration::from_millis(3);
const LATER_POLL: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_millis(100);

/// Tries until there is a result, for at most [`LONG`].
///
/// # Errors
/// What was still wrong at the deadline.
pub fn until<T, E>(attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    until_within(LONG, attempt)
}

/// As [`until`], for what takes long of itself.
///
/// # Errors
/// What was still wrong at the deadline.
pub fn until_within<T, E>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let began = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if began.elapsed() >= limit => return Err(error),
            Err(_) if began.elapsed() < LATER => sleep(POLL),
            Err(_) => sleep(LATER_POLL),
        }
    }
}

/// As [`until`], but fails the test with what it waited for and the last reason why not.
pub fn until_ok<T>(what: &str, attempt: impl FnMut() -> Result<T, String>) -> T {
    until(attempt).unwrap_or_else(|last| panic!("never came true: {what}; last: {last}"))
}

/// Waits until a value is what it should be.
pub fn until_is<T: PartialEq + Debug>(what: &str, expected: &T, mut value: impl FnMut() -> T) {
    until_ok(what, || match value() {
        value if value == *expected => Ok(()),
        value => Err(format!("{value:?} instead of {expected:?}")),
    });
}
