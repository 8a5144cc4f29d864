//! Where answers go: text for people or JSON for scripts, to standard output and nothing else.
//!
//! Nothing here may panic when the reader goes away (`pfoctl status | head`), so `println!` is not
//! for this crate.

mod error;

use std::io::{IsTerminal, StdoutLock, Write};

use serde::Serialize;

pub(crate) use self::error::OutputError;
use crate::error::Error;
use crate::text::harmless;

/// How a table may look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// Whether to colour.
    pub(crate) colour: bool,
    /// Columns that a line may take; none where lines are never wrapped (a pipe, a file).
    pub(crate) width: Option<u16>,
}

/// Standard output.
pub(crate) struct Output {
    stdout: StdoutLock<'static>,
    terminal: bool,
}

impl Output {
    /// Standard output of this process.
    pub(crate) fn stdout() -> Self {
        let stdout = std::io::stdout().lock();
        let terminal = stdout.is_terminal();
        Self { stdout, terminal }
    }

    /// How tables may look now; a terminal may have been resized since the last time.
    pub(crate) fn look(&self) -> Look {
        if !self.terminal {
            return Look::default();
        }
        Look {
            colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                && std::env::var_os("TERM").is_none_or(|value| value != "dumb"),
            width: comfy_table::Table::new().width(),
        }
    }

    /// Writes text that ends in a newline.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Error> {
        self.bytes(text.as_bytes())
    }

    /// Prints a file that is no text.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stdout.write_all(bytes)?;
        Ok(self.stdout.flush()?)
    }

    /// Writes one JSON value, indented.
    pub(crate) fn json<T: Serialize>(&mut self, value: &T) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(value).map_err(OutputError::Json)?;
        self.text(&(text + "\n"))
    }

    /// Writes one JSON value on one line, for a stream of them.
    pub(crate) fn json_line<T: Serialize>(&mut self, value: &T) -> Result<(), Error> {
        let text = serde_json::to_string(value).map_err(OutputError::Json)?;
        self.text(&(text + "\n"))
    }

    /// Writes the next of several screens: over the last one on a terminal, after it elsewhere.
    pub(crate) fn refresh(&mut self, text: &str) -> Result<(), Error> {
        if self.terminal {
            // Clear the screen and begin at its top left corner.
            self.text(&format!("\x1b[2J\x1b[H{text}"))
        } else {
            self.text(&format!("{text}\n"))
        }
    }

    /// Reports an error that may pass: in place of the last screen on a terminal, so that an old
    /// one is not taken for the present, and on standard error elsewhere.
    pub(crate) fn trouble(&mut self, error: &Error) -> Result<(), Error> {
        let message = error.to_string();
        let line = format!("pfoctl: {}\n", harmless(&message));
        if self.terminal {
            return self.refresh(&line);
        }
        // A reader that is gone is no error: the next answer matters more.
        let _ = std::io::stderr().write_all(line.as_bytes());
        Ok(())
    }
}
