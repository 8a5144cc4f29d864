//! The part of a log that belongs into a failed test's message.

const LINES: usize = 40;

/// The last lines of a log.
#[must_use]
pub fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
