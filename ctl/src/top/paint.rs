//! The few colours there are. Nothing is said by a colour alone.

use ratatui::style::{Color, Modifier, Style};

use crate::status::table::Tone;

/// What a tone looks like.
pub(super) fn style(tone: Tone, colour: bool) -> Style {
    let plain = Style::new();
    match (tone, colour) {
        (Tone::Good, true) => plain.fg(Color::Green),
        (Tone::Notable, true) => plain.fg(Color::Yellow),
        (Tone::Bad, true) => plain.fg(Color::Red),
        (Tone::Bad, false) => plain.add_modifier(Modifier::BOLD),
        (Tone::Plain | Tone::Good | Tone::Notable, _) => plain,
    }
}
