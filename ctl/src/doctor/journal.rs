//! What both daemons lately warned of, from the journal.

use jiff::tz::TimeZone;

use super::finding::Finding;
use crate::journal::{JournalError, PERIOD, Warning};

const CHECK: &str = "journal";

/// A finding for each warning, the newest first.
pub(crate) fn check(warnings: Result<Vec<Warning>, JournalError>, zone: &TimeZone) -> Vec<Finding> {
    match warnings {
        Err(error) => vec![Finding::unknown(CHECK, error.to_string(), error.remedy())],
        Ok(warnings) if warnings.is_empty() => {
            vec![Finding::ok(CHECK, format!("neither daemon has warned of anything {PERIOD}"))]
        }
        Ok(warnings) => warnings.iter().map(|warning| finding(warning, zone)).collect(),
    }
}

fn finding(warning: &Warning, zone: &TimeZone) -> Finding {
    let Warning { count, daemon, message, .. } = warning;
    let times = if *count > 1 { format!(", the last of {count} times") } else { String::new() };
    let said = format!("{daemon}, {}{times}: {message}", warning.time(zone));
    Finding::warning(CHECK, said, format!("`journalctl --catalog --unit={daemon}` explains it"))
}
