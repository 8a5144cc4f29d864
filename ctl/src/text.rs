//! What others wrote, made fit for a terminal. Labels, problems and refusals carry text of other
//! users; a control character in it could move the cursor or recolour an administrator's screen.

use std::borrow::Cow;

/// `text` with its control characters shown instead of obeyed.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_harmful(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Control characters, and those that reverse the direction of what follows.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_clear_the_screen_or_break_the_line() {
        assert_eq!(harmless("a\u{1b}[2Jb\nc"), r"a\u{1b}[2Jb\nc");
        assert_eq!(harmless("plan\u{202e}1"), r"plan\u{202e}1");
    }

    #[test]
    fn ordinary_text_stays_as_it_is() {
        assert!(matches!(harmless("größer, 1.02×"), Cow::Borrowed(_)));
    }
}
