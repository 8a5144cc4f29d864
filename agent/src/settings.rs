//! What is in force now: the configuration, and who is behind its names.

use std::sync::{Arc, PoisonError, RwLock};

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
        match self.read() {
            Ok(settings) => {
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

    fn read(&self) -> Result<Settings, String> {
        let mut config = self.source.read().map_err(|error| error.to_string())?;
        for key in config.keep_unchangeable(&self.now().config) {
            tracing::warn!(
                "{key} has changed in agent.toml, which requires a restart of pfo-agent"
            );
        }
        let settings = Settings::new(config, &NodeAccounts);
        settings.check_names()?;
        Ok(settings)
    }
}
