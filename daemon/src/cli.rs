//! The daemon's command line.

use std::path::PathBuf;

use clap::{Args, Parser};

use pfo_policy::Config;
use pfo_service::ConfigError;

/// Where the configuration is read from if the command line names no file.
const DEFAULT_CONFIG: &str = "/etc/pfo/pfod.toml";

/// Drives GPU clocks for unprivileged training jobs, one frequency for each instruction.
///
/// Exit codes: 0 stopped in order (or the check passed), 1 failed, 69 the driver or some clocks
/// could not be reached, 78 the configuration is wrong.
#[derive(Debug, Parser)]
#[command(version, name = "pfod")]
pub struct Arguments {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub source: ConfigSource,
    /// Check the configuration, and exit
    #[arg(long)]
    pub check_config: bool,
    /// Restore what the ledger says is locked, without serving clients, and exit
    #[arg(long, conflicts_with = "check_config")]
    pub restore_only: bool,
}

/// Where the configuration comes from, at the start and at each reload.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigSource {
    /// The configuration file; without it /etc/pfo/pfod.toml if that exists, else the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The NVML library, instead of the configured one
    #[arg(long, value_name = "LIBRARY")]
    nvml: Option<PathBuf>,
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
        Ok(self.with_library(config))
    }

    /// A configuration with the NVML library of the command line, if that names one.
    #[must_use]
    pub fn with_library(&self, mut config: Config) -> Config {
        if let Some(library) = &self.nvml {
            config.driver.library.clone_from(library);
        }
        config
    }
}
