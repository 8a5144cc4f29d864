//! What both daemons lately warned of about a job, from the journal.

use jiff::tz::TimeZone;

use super::html::{element, table};
use super::page::Section;
use crate::journal::{JournalError, PERIOD, Warning};

/// Rows of the table.
const MOST: usize = 20;

pub(super) fn title() -> String {
    format!("Warnings of pfod and pfo-agent {PERIOD}")
}

/// A row for each warning, the newest first.
pub(super) fn section(warnings: Result<&[Warning], &JournalError>, zone: &TimeZone) -> Section {
    let warnings = warnings.map_err(|why| format!("{why}; {}", why.remedy()))?;
    if warnings.is_empty() {
        return Ok(String::new());
    }
    let rows = warnings.iter().take(MOST).map(|warning| {
        let Warning { count, daemon, message, .. } = warning;
        [warning.time(zone), count.to_string(), daemon.clone(), message.clone()].map(Some)
    });
    let text = table(["Last at", "Times", "By", "Warning"], rows);
    Ok(match warnings.len().saturating_sub(MOST) {
        0 => text,
        more => text + &element("p", &format!("{more} other warnings are older.")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::warned;

    fn shown(warnings: Result<&[Warning], &JournalError>) -> String {
        section(warnings, &TimeZone::UTC).unwrap_or_else(|why| why)
    }

    #[test]
    fn a_warning_is_shown_with_its_last_time_and_obeyed_in_nothing() {
        let shown = shown(Ok(&warned(&["<b>\u{1b}[2J", "late", "late"])));
        let row = |cells: [&str; 4]| {
            let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>\n")).collect();
            format!("<tr>{cells}</tr>")
        };
        let rows = [
            row(["Nov 28 13:10:05", "1", "pfod", r"&lt;b&gt;\u{1b}[2J"]),
            row(["Nov 28 13:10:04", "2", "pfod", "late"]),
        ];
        assert!(shown.contains(&rows.join("\n")), "{shown}");
    }

    #[test]
    fn of_many_warnings_the_newest_are_shown_and_the_rest_is_counted() {
        let messages: Vec<_> = (0..25).map(|number| format!("warning {number}.")).collect();
        let messages: Vec<_> = messages.iter().map(String::as_str).collect();
        let shown = shown(Ok(&warned(&messages)));
        assert_eq!(shown.matches("<tr>").count(), 1 + MOST, "{shown}");
        assert!(shown.contains("5 other warnings are older."), "{shown}");
    }

    #[test]
    fn why_no_warnings_are_known_is_said() {
        let shown = shown(Err(&JournalError::NotAllowed { user: "alice".into() }));
        for said in ["user alice may not read the journal; ", "systemd-journal alice"] {
            assert!(shown.contains(said), "{said}: {shown}");
        }
    }
}
