//! Reading a TOML configuration file: an error names file, line and column.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why it could not be read.
        source: io::Error,
    },
    /// It is not TOML, has an unknown key, or an impossible value.
    #[error("{path}, line {}, column {}: {message}", .position.line, .position.column)]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The place in the file.
        position: Position,
        /// What is wrong there.
        message: String,
    },
}

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
}

impl Position {
    /// The place of a byte of the text.
    #[must_use]
    pub fn of(text: &str, byte: usize) -> Self {
        let before = &text[..text.floor_char_boundary(byte)];
        let last_line = before.rsplit('\n').next().unwrap_or(before);
        let counted_from_1 = |count: usize| count.saturating_add(1);
        let (line, column) = (before.matches('\n').count(), last_line.chars().count());
        Self { line: counted_from_1(line), column: counted_from_1(column) }
    }
}

impl ConfigError {
    /// The text of a configuration file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn text_of(path: &Path) -> Result<String, Self> {
        std::fs::read_to_string(path).map_err(|source| Self::Read { path: path.to_owned(), source })
    }

    /// The content of a configuration file; `path` is what errors name.
    ///
    /// # Errors
    /// If it is not TOML, has an unknown key or an impossible value.
    pub fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, Self> {
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            Self::wrong(text, path, at, error.message())
        })
    }

    /// An error at a byte of the text.
    #[must_use]
    pub fn wrong(text: &str, path: &Path, at: usize, message: &str) -> Self {
        let message = message.trim_end().replace('\n', "; ");
        Self::Wrong { path: path.to_owned(), position: Position::of(text, at), message }
    }
}
