//! The configuration file: every key, its default and its check.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pfo_protocol::{ADMIN_SOCKET, TRAINER_SOCKET};
use serde::Deserialize;

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML, has an unknown key, or a value of the wrong type. Names line and column.
    #[error("{path}: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What and where.
        source: Box<toml::de::Error>,
    },
    /// A value is out of its range.
    #[error("{path}: {key} is {value}, but {rule}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The value found.
        value: String,
        /// What is allowed.
        rule: &'static str,
    },
}

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where clients connect when systemd hands over no sockets.
    pub sockets: Sockets,
    /// Who may do what.
    pub groups: Groups,
    /// What one user or session may take.
    pub limits: Limits,
    /// How clocks are driven.
    pub clocks: Clocks,
    /// The driver.
    pub driver: DriverConfig,
    /// Files that the daemon writes.
    pub paths: Paths,
}

/// `[sockets]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sockets {
    /// For trainers and status.
    pub trainers: PathBuf,
    /// For administration.
    pub admin: PathBuf,
}

/// `[groups]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Groups {
    /// Members may train with pfo.
    pub trainers: String,
    /// Members may do everything.
    pub administrators: String,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Sessions that one user may have open at once.
    pub sessions_per_user: u32,
    /// Connections that may be open at once. Those of sessions do not count.
    pub connections: u32,
    /// Seconds of silence after which a session ends.
    pub idle_limit_s: u64,
}

/// `[clocks]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Clocks {
    /// The lowest SM clock that a plan may ask for, in MHz.
    pub min_mhz: u32,
    /// The highest SM clock that a plan may ask for, in MHz.
    pub max_mhz: u32,
    /// Whether the memory clock is locked to its highest while a GPU is leased.
    pub lock_memory_clock: bool,
    /// Milliseconds from an accepted set call to the new clock; only for the off-plan figures.
    pub settle_ms: u64,
    /// Steps in a row that may mismatch before the plan is suspended.
    pub suspend_after_mismatches: u32,
}

/// `[driver]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DriverConfig {
    /// The NVML library, as the dynamic linker finds it, or a path.
    pub library: PathBuf,
}

/// `[paths]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Paths {
    /// What is locked now.
    pub ledger: PathBuf,
}

impl Default for Sockets {
    fn default() -> Self {
        Self { trainers: TRAINER_SOCKET.into(), admin: ADMIN_SOCKET.into() }
    }
}

impl Default for Groups {
    fn default() -> Self {
        Self { trainers: "pfo".into(), administrators: "pfo-admin".into() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { sessions_per_user: 64, connections: 1024, idle_limit_s: 60 }
    }
}

impl Limits {
    /// The idle limit as a duration.
    #[must_use]
    pub fn idle_limit(&self) -> Duration {
        Duration::from_secs(self.idle_limit_s)
    }
}

impl Default for Clocks {
    fn default() -> Self {
        Self {
            min_mhz: 0,
            max_mhz: 10_000,
            lock_memory_clock: true,
            settle_ms: 15,
            suspend_after_mismatches: 3,
        }
    }
}

impl Default for DriverConfig {
    fn default() -> Self {
        Self { library: "libnvidia-ml.so.1".into() }
    }
}

impl Default for Paths {
    fn default() -> Self {
        Self { ledger: "/run/pfo/ledger.json".into() }
    }
}

impl Config {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// If it cannot be read, is not TOML, has an unknown key or a value out of range.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|source| ConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        config.check().map_err(|(key, value, rule)| ConfigError::Value {
            path: path.to_owned(),
            key,
            value,
            rule,
        })?;
        Ok(config)
    }

    fn check(&self) -> Result<(), (&'static str, String, &'static str)> {
        let Self { limits, clocks, .. } = self;
        if !(1..=86_400).contains(&limits.idle_limit_s) {
            let rule = "a session may be silent for 1 to 86400 seconds";
            return Err(("limits.idle_limit_s", limits.idle_limit_s.to_string(), rule));
        }
        if limits.connections == 0 {
            return Err(("limits.connections", "0".into(), "at least one connection is needed"));
        }
        if clocks.min_mhz > clocks.max_mhz {
            let rule = "it must not be above clocks.max_mhz";
            return Err(("clocks.min_mhz", clocks.min_mhz.to_string(), rule));
        }
        if clocks.suspend_after_mismatches == 0 {
            let rule = "a plan can only be suspended after at least 1 mismatched step";
            return Err(("clocks.suspend_after_mismatches", "0".into(), rule));
        }
        if clocks.settle_ms > 10_000 {
            let rule = "no GPU takes more than 10000 ms";
            return Err(("clocks.settle_ms", clocks.settle_ms.to_string(), rule));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("pfod.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_shipped_file_states_exactly_the_defaults() {
        let shipped = include_str!("../pfod.toml");
        assert_eq!(parse(shipped).unwrap(), Config::default());
        let uncommented: String = shipped
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line))
            .fold(String::new(), |text, line| text + line + "\n");
        assert_eq!(parse(&uncommented).unwrap(), Config::default());
        let keys =
            uncommented.lines().filter(|line| line.contains(" = ") && !line.starts_with('#'));
        assert_eq!(keys.count(), 14, "a key is missing from the shipped file or not tested here");
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let error = parse("[limits]\nidle_limit = 3\n").unwrap_err();
        assert!(error.contains("line 2") && error.contains("idle_limit"), "{error}");
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_key_value_and_rule() {
        let error = parse("[clocks]\nmin_mhz = 900\nmax_mhz = 800\n").unwrap_err();
        assert_eq!(
            error,
            "pfod.toml: clocks.min_mhz is 900, but it must not be above clocks.max_mhz"
        );
        assert!(parse("[limits]\nidle_limit_s = 0\n").is_err());
        assert!(parse("[clocks]\nsuspend_after_mismatches = 0\n").is_err());
    }
}
