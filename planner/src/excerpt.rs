//! Foreign text in messages: short, and without characters that a terminal interprets.

/// The start of a text, escaped.
pub(crate) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 48;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", text[..end].escape_debug()),
        None => text.escape_debug().to_string(),
    }
}

/// A parser's message without its middle, where it may repeat the input.
pub(crate) fn shortened(message: &str) -> String {
    const LONGEST: usize = 240;
    if message.chars().count() <= LONGEST {
        return message.to_owned();
    }
    let head: String = message.chars().take(LONGEST / 2).collect();
    let tail: Vec<char> = message.chars().rev().take(LONGEST / 2).collect();
    format!("{head} … {}", tail.into_iter().rev().collect::<String>())
}
