//! The configuration in force and the accounts behind its names. Replaced as a whole, never
//! changed.

use pfo_service::Accounts;

use crate::authority::Authority;
use crate::config::Config;

/// A configuration and what follows from it on this node.
#[derive(Debug)]
pub struct Settings {
    /// The configuration.
    pub config: Config,
    /// The authority that follows from it.
    pub authority: Authority,
}

impl Settings {
    /// The settings of a checked configuration on this node, with the accounts as they are now.
    #[must_use]
    pub fn new(config: Config, accounts: &impl Accounts) -> Self {
        let authority = Authority::new(&config, &node_name(), accounts);
        Self { config, authority }
    }
}

/// The host name.
fn node_name() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
