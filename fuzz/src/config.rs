//! A configuration file: right, or refused with a place that it has.
use std::path::Path;

use pfod::config::{Config, ConfigError};

/// The target.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Config::parse(text, Path::new("pfod.toml")) {
        Ok(_) | Err(ConfigError::Read { .. }) => {}
        Err(ConfigError::Wrong { line, column, .. }) => {
            let found = text.split('\n').nth(line - 1).expect("the line is in the file");
            assert!(column <= found.chars().count() + 1);
        }
    }
}
