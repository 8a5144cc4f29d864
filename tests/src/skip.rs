//! Saying what was not tested, past the test runner, which shows only the output of tests that fail.

use std::io::Write;

/// Says why something is left out.
pub fn say_skipped(reason: &str) {
    // The runner names each test's thread after it.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "skipped in {test}: {reason}");
}
