//! What is in force now: the configuration, and who is behind its names.

use std::sync::{Arc, PoisonError, RwLock};

use pfo_protocol::ConfigStatus;
use pfo_service::{Accounts, NodeAccounts};

use crate::authority::Authority;
use crate::cli::ConfigSource;
use crate::config::{Config, Watch};
use crate::watch::{Limit, Limits};

/// The configuration and what follows from it.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) authority: Authority,
}

/// The settings in force.
#[derive(Debug)]
pub(crate) struct InForce {
    source: ConfigSource,
    now: RwLock<Arc<Settings>>,
}

impl Settings {
    fn new(config: Config, accounts: &impl Accounts) -> Self {
        let authority = Authority::new(&config.groups, accounts);
        Self { config, authority }
    }

    /// That this node has every group that the configuration names.
    fn check_names(&self) -> Result<(), String> {
        let unknown = self.authority.unknown_names().first();
        let why = |name| format!("the configuration names what this node does not know: {name}");
        unknown.map_or(Ok(()), |name| Err(why(name)))
    }

    fn report(&self) {
        let file = self.config.file.as_ref().map(|file| file.display().to_string());
        tracing::info!("{} is in force", file.as_deref().unwrap_or("the default configuration"));
        for name in self.authority.unknown_names() {
            tracing::warn!(
                "this node has no {name}: what the configuration grants to it has no effect"
            );
        }
    }

    /// How far is too far.
    pub(crate) fn limits(&self) -> Limits {
        let Watch { drift_percent, slow_percent, steps } = self.config.watch;
        let limit = |percent: u32| Limit { share: f64::from(percent) / 100.0, steps: steps.get() };
        Limits { slow: limit(slow_percent.get()), drift: limit(drift_percent.get()) }
    }
}

/// That this node has every group that a configuration names.
///
/// # Errors
/// In words, if it has not.
pub fn check_names(config: &Config) -> Result<(), String> {
    Settings::new(config.clone(), &NodeAccounts).check_names()
}

impl InForce {
    pub(crate) fn new(source: ConfigSource, config: Config) -> Self {
        let settings = Settings::new(config, &NodeAccounts);
        settings.report();
        Self { source, now: RwLock::new(Arc::new(settings)) }
    }

    pub(crate) fn now(&self) -> Arc<Settings> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the configuration again. One that is wrong changes nothing; returns why then.
    pub(crate) fn reload(&self) -> Option<String> {
        let read = self.read().and_then(|(config, keys)| {
            let settings = Settings::new(config, &NodeAccounts);
            settings.check_names().map(|()| (settings, keys))
        });
        match read {
            Ok((settings, keys)) => {
                for key in keys {
                    tracing::warn!(
                        "{key} has changed in agent.toml, which requires a restart of pfo-agent"
                    );
                }
                settings.report();
                *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
                None
            }
            Err(why) => {
                tracing::error!("{why}; the former configuration stays in force");
                Some(why)
            }
        }
    }

    /// How the file as it is now differs from what is in force. Reads the file.
    pub(crate) fn status(&self) -> ConfigStatus {
        let now = self.now();
        let unknown = now.authority.unknown_names().iter();
        let status = ConfigStatus {
            file: now.config.file.as_ref().map(|file| file.display().to_string()),
            unknown_names: unknown.map(ToString::to_string).collect(),
            ..ConfigStatus::default()
        };
        match self.read() {
            Ok((config, keys)) => {
                let outdated = config != now.config;
                ConfigStatus {
                    // Names that were unknown at the start are told apart: the rest is in force.
                    refused: outdated.then(|| check_names(&config).err()).flatten(),
                    restart_needed_for: keys.into_iter().map(str::to_owned).collect(),
                    outdated,
                    ..status
                }
            }
            Err(why) => ConfigStatus { refused: Some(why), ..status },
        }
    }

    /// What the file leads to now, and the keys whose new values take a restart.
    fn read(&self) -> Result<(Config, Vec<&'static str>), String> {
        let mut config = self.source.read().map_err(|error| error.to_string())?;
        let keys = config.keep_unchangeable(&self.now().config);
        Ok((config, keys))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Arguments;

    /// Groups that every node has.
    const GROUPS: &str = "[groups]\ntrainers = \"root\"\nadministrators = \"root\"\n";

    fn with_groups(more: &str) -> String {
        GROUPS.to_owned() + more
    }

    /// What is said of a file that has been written since it was read.
    fn said_of(written: &str) -> ConfigStatus {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("agent.toml");
        std::fs::write(&file, GROUPS).unwrap();
        let arguments = ["pfo-agent", "--config", file.to_str().unwrap()];
        let source = Arguments::parse_from(arguments).source;
        let in_force = InForce::new(source.clone(), source.read().unwrap());
        std::fs::write(&file, written).unwrap();
        let said = in_force.status();
        assert_eq!(said.file.as_deref(), file.to_str());
        ConfigStatus { file: None, ..said }
    }

    #[test]
    fn a_file_that_says_the_same_is_in_force() {
        assert_eq!(said_of(&with_groups("# A remark\n")), ConfigStatus::default());
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_with_the_place() {
        let refused = said_of(&with_groups("[watch]\nstepz = 3\n")).refused.unwrap();
        assert!(refused.contains("agent.toml, line 5"), "{refused}");
    }

    #[test]
    fn a_file_that_grants_to_an_unknown_group_is_refused() {
        let refused = said_of("[groups]\ntrainers = \"nosuch\"\n").refused.unwrap();
        assert!(refused.contains("nosuch"), "{refused}");
    }

    #[test]
    fn a_file_that_was_written_and_not_read_is_newer() {
        let newer = ConfigStatus { outdated: true, ..ConfigStatus::default() };
        assert_eq!(said_of(&with_groups("[watch]\nsteps = 3\n")), newer);
    }

    #[test]
    fn a_key_that_takes_a_restart_is_named() {
        let keys = vec!["paths.state".to_owned()];
        let restart = ConfigStatus { restart_needed_for: keys, ..ConfigStatus::default() };
        assert_eq!(said_of(&with_groups("[paths]\nstate = \"/elsewhere\"\n")), restart);
    }
}
