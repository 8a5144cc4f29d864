//! Saying what was not tested, past the test runner, which shows only the output of tests that fail.

use std::io::Write;

/// Says why something is left out.
pub fn say(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}
