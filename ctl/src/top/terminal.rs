//! The terminal: taken over, drawn to, and given back as it was, however this process ends.

use std::env;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal};
use std::os::fd::AsFd;
use std::panic;
use std::process;
use std::sync::mpsc::SyncSender;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use ratatui::{Frame, Terminal};

use super::error::TopError;
use super::keys::Key;
use super::message::Message;

/// To the alternate screen, without a cursor.
const TAKE: &[u8] = b"\x1b[?1049h\x1b[?25l";

/// Back from it.
const GIVE_BACK: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// What Rust exits with after a panic.
const PANICKED: i32 = 101;

/// A terminal that is given back when this is dropped.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<File>>>,
}

impl Screen {
    /// Whether there is a terminal to read keys from and to draw on.
    pub(super) fn is_possible() -> Result<(), TopError> {
        if !io::stdout().is_terminal() {
            return Err(TopError::NoTerminal("standard output"));
        }
        if !io::stdin().is_terminal() {
            return Err(TopError::NoTerminal("standard input"));
        }
        match env::var_os("TERM") {
            Some(kind) if kind == "dumb" => Err(TopError::NoTerminal("TERM=dumb")),
            _ => Ok(()),
        }
    }

    /// Takes over the terminal.
    pub(super) fn take() -> io::Result<Self> {
        // Not through the lock of standard output, which a thread that panics may not get.
        let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let terminal = Terminal::new(CrosstermBackend::new(BufWriter::new(output)))?;
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            give_back();
            before(panicked);
            // Of whichever thread: half a view would be worse than none.
            process::exit(PANICKED);
        }));
        enable_raw_mode()?;
        let screen = Self { terminal };
        write(TAKE)?;
        Ok(screen)
    }

    /// Draws what has changed.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// A terminal that is gone needs nothing back.
fn give_back() {
    let _ = write(GIVE_BACK);
    let _ = disable_raw_mode();
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match nix::unistd::write(io::stdout(), rest) {
            Ok(written) => rest = &rest[written..],
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Passes on keys and new sizes, until nobody wants any or the terminal is gone.
pub(super) fn listen(messages: &SyncSender<Message>) {
    loop {
        let message = match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => match named(key) {
                Some(key) => Message::Key(key),
                None => continue,
            },
            Ok(Event::Resize(..)) => Message::Resized,
            Ok(_) => continue,
            Err(error) => Message::Deaf(error),
        };
        let is_deaf = matches!(message, Message::Deaf(_));
        if messages.send(message).is_err() || is_deaf {
            return;
        }
    }
}

fn named(key: KeyEvent) -> Option<Key> {
    let modified = KeyModifiers::CONTROL | KeyModifiers::ALT;
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(_) if key.modifiers.intersects(modified) => return None,
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_c_is_an_interrupt_and_other_chords_are_nothing() {
        let chord = |c, modifiers| named(KeyEvent::new(KeyCode::Char(c), modifiers));
        assert_eq!(chord('c', KeyModifiers::CONTROL), Some(Key::Interrupt));
        assert_eq!(chord('q', KeyModifiers::CONTROL), None);
        assert_eq!(chord('S', KeyModifiers::SHIFT), Some(Key::Char('S')));
    }
}
