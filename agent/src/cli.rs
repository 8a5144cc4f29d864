//! The agent's command line.

use std::path::{Path, PathBuf};

use clap::{Args, Parser};
use pfo_service::ConfigError;

use crate::config::Config;

/// Where the configuration is looked for if the command line names none.
const DEFAULT_CONFIG: &str = "/etc/pfo/agent.toml";

/// Measures and tunes jobs for pfo, and stores their profiles and savings.
///
/// The agent runs as an ordinary system user. It sends requests to pfod in the name of its users, and pfod
/// decides.
///
/// Exit codes: 0 stopped in order, or the check passed; 1 failed; 78 the configuration is wrong.
#[derive(Debug, Parser)]
#[command(version, name = "pfo-agent")]
pub struct Arguments {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub source: ConfigSource,
    /// Check the configuration and exit
    #[arg(long)]
    pub check_config: bool,
}

/// Where the configuration comes from, at the start and at each reload.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigSource {
    /// The configuration file [default: /etc/pfo/agent.toml if it exists, else the default values]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigSource {
    /// The configuration as it is now.
    ///
    /// # Errors
    /// If the file is missing where one was named, or is wrong.
    pub fn read(&self) -> Result<Config, ConfigError> {
        let default = PathBuf::from(DEFAULT_CONFIG);
        match &self.config {
            Some(path) => Config::read(path),
            None if default.exists() => Config::read(&default),
            None => Ok(Config::default()),
        }
    }

    /// What was read without an error, in a line.
    #[must_use]
    pub fn found(&self) -> String {
        let default = Path::new(DEFAULT_CONFIG);
        match self.config.as_deref().or_else(|| default.exists().then_some(default)) {
            Some(file) => format!("{}: no error", file.display()),
            None => "there is no configuration file, and the defaults hold".to_owned(),
        }
    }
}
