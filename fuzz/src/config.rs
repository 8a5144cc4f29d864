//! The configuration of `pfod`: right, or refused with a place that it has.
use std::path::Path;

use pfo_service::ConfigError;
use pfod::Config;

/// The target.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    check(text, Config::parse(text, Path::new("pfod.toml")).err().as_ref());
}

/// Requires that an error names a place of the text.
pub(crate) fn check(text: &str, error: Option<&ConfigError>) {
    if let Some(ConfigError::Wrong { position, .. }) = error {
        let found = text.split('\n').nth(position.line - 1).expect("the line is in the file");
        assert!(position.column <= found.chars().count() + 1);
    }
}
