//! Text from peers that others read in a table or a log.

use crate::session::{Refusal, RefusalCode};

/// Characters that begin another line, or change the direction of text: a line of a table or a log
/// could be forged with them.
const BREAKS_LINES: [char; 14] = [
    '\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{202a}', '\u{202b}', '\u{202c}',
    '\u{202d}', '\u{202e}', '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}',
];

/// Checks that a text is one line of 1 to `most` bytes.
///
/// # Errors
/// What is wrong, in words that call the text `what`.
pub fn check_line(what: &str, text: &str, most: usize) -> Result<(), String> {
    let is_line = |c: char| !c.is_control() && !BREAKS_LINES.contains(&c);
    match text.len() {
        length if !(1..=most).contains(&length) => {
            Err(format!("the {what} has {length} bytes, not 1 to {most}"))
        }
        _ if text.chars().all(is_line) => Ok(()),
        _ => Err(format!("the {what} {text:?} is not one line of text")),
    }
}

/// The longest label of a plan, in bytes.
const LONGEST_LABEL: usize = 64;

/// Checks the label of a plan, which status shows to others.
///
/// # Errors
/// If it is not one line, or too long.
pub fn check_label(label: &str) -> Result<(), Refusal> {
    check_line("label", label, LONGEST_LABEL)
        .map_err(|wrong| Refusal::new(RefusalCode::Malformed, wrong, "give the plan another label"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_one_short_line_of_text() {
        assert!(check_label(&"x".repeat(LONGEST_LABEL)).is_ok());
        for label in ["p.json", "späte Läufe (β)", "计划 3", "1410 MHz, -5 %"] {
            assert!(check_label(label).is_ok(), "{label}");
        }
        for label in ["", &"x".repeat(LONGEST_LABEL + 1), &"ß".repeat(LONGEST_LABEL / 2 + 1)] {
            let refusal = check_label(label).unwrap_err();
            assert_eq!(
                refusal.message,
                format!("the label has {} bytes, not 1 to 64", label.len())
            );
        }
    }

    #[test]
    fn a_label_that_could_forge_a_line_of_a_table_or_a_log_is_refused_and_not_repeated_as_it_is() {
        let controls = ('\0'..='\u{1f}').chain('\u{7f}'..='\u{9f}');
        let lines = ['\u{2028}', '\u{2029}'].into_iter();
        let directions = ['\u{61c}', '\u{200e}', '\u{200f}'].into_iter();
        let directions = directions.chain('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        for letter in controls.chain(lines).chain(directions) {
            let label = format!("plan{letter}user 0");
            let refusal = check_label(&label).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Malformed, "{label:?}");
            assert!(!refusal.message.contains(letter), "{refusal:?}");
        }
    }
}
