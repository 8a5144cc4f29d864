//! The daemon's command line.

use std::path::PathBuf;
use std::{env, fs};

use clap::{Args, Parser};

use pfo_policy::{Config, Mode};
use pfo_service::{ConfigError, replace};

/// Where the configuration is read from if the command line names no file.
const DEFAULT_CONFIG: &str = "/etc/pfo/pfod.toml";

/// The directory of what outlives the daemon, unless systemd names another one.
const RUNTIME_DIRECTORY: &str = "/run/pfo";

/// Drives GPU clocks for unprivileged training jobs, one frequency for each instruction.
///
/// Exit codes: 0 stopped in order, or the check passed; 1 failed; 69 some clocks may still be locked;
/// 78 the configuration is wrong.
#[derive(Debug, Parser)]
#[command(version, name = "pfod")]
pub struct Arguments {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub source: ConfigSource,
    /// Check the configuration, and exit
    #[arg(long)]
    pub check_config: bool,
    /// Restore the clocks and power limits in the ledger, without serving clients, and exit
    #[arg(long, conflicts_with_all = ["check_config", "observe"])]
    pub restore_only: bool,
}

/// Where the configuration comes from, at the start and at each reload.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigSource {
    /// The configuration file [default: /etc/pfo/pfod.toml if it exists, else the default values]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The NVML library, instead of the configured one
    #[arg(long, value_name = "LIBRARY")]
    nvml: Option<PathBuf>,
    /// Only read GPUs: pfod sets, resets and restores no clock and no power limit, and follows plans as if
    /// it had set their clocks
    #[arg(long)]
    observe: bool,
}

impl ConfigSource {
    /// The configuration as it is now.
    ///
    /// # Errors
    /// If the file is missing where one was named, or is wrong.
    pub fn read(&self) -> Result<Config, ConfigError> {
        let default = PathBuf::from(DEFAULT_CONFIG);
        let config = match &self.config {
            Some(path) => Config::read(path)?,
            None if default.exists() => Config::read(&default)?,
            None => Config::default(),
        };
        Ok(self.with_driver(config))
    }

    /// The configuration for a restore: as it is now or, if that is wrong, as it was when the last
    /// daemon started. Its ledger is the last daemon's.
    #[must_use]
    pub fn for_restore(&self) -> Config {
        let kept = self.kept().and_then(|path| Config::read(&path).ok());
        let ledger = kept.as_ref().map(|kept| kept.paths.ledger.clone());
        let mut config = self.read().unwrap_or_else(|error| {
            eprintln!("pfod: {error}; restoring with the configuration before, or the defaults");
            self.with_driver(kept.unwrap_or_default())
        });
        config.paths.ledger = ledger.unwrap_or(config.paths.ledger);
        config
    }

    /// Keeps a copy of the file that is in force, for [`for_restore`](Self::for_restore).
    pub(crate) fn keep(&self, config: &Config) {
        let Some(kept) = self.kept() else { return };
        let text = config.file.as_ref().and_then(|file| fs::read(file).ok()).unwrap_or_default();
        let written = match fs::read(&kept) {
            Ok(before) if before == text => Ok(()),
            _ => replace(&kept, &text),
        };
        if let Err(error) = written {
            tracing::warn!(
                "cannot keep a copy of the configuration in {}: {error}",
                kept.display()
            );
        }
    }

    /// Where the copy is. A daemon that nobody manages keeps none of a file that it was given.
    fn kept(&self) -> Option<PathBuf> {
        let directory = env::var_os("RUNTIME_DIRECTORY").map(PathBuf::from);
        let is_default = self.config.is_none();
        let directory = directory.or_else(|| is_default.then(|| RUNTIME_DIRECTORY.into()))?;
        Some(directory.join("pfod.toml"))
    }

    /// A configuration with what the command line says of the driver.
    #[must_use]
    fn with_driver(&self, mut config: Config) -> Config {
        if let Some(library) = &self.nvml {
            config.driver.library.clone_from(library);
        }
        config.driver.mode = if self.observe { Mode::Observe } else { config.driver.mode };
        config
    }
}
