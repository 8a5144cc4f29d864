//! Text from peers that others read in a table or a log.

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
pub(crate) fn check_line(what: &str, text: &str, most: usize) -> Result<(), String> {
    let is_line = |c: char| !c.is_control() && !BREAKS_LINES.contains(&c);
    match text.len() {
        length if !(1..=most).contains(&length) => {
            Err(format!("the {what} has {length} bytes, not 1 to {most}"))
        }
        _ if text.chars().all(is_line) => Ok(()),
        _ => Err(format!("the {what} {text:?} is not one line of text")),
    }
}
