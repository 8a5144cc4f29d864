//! The configuration in force and who is behind its names. Replaced as a whole, never changed.

use crate::accounts::Accounts;
use crate::authorize::Authority;
use crate::config::Config;

/// What an administrator has settled.
#[derive(Debug)]
pub struct Settings {
    /// The configuration.
    pub config: Config,
    /// Who may do what.
    pub authority: Authority,
}

impl Settings {
    /// The settings of a checked configuration on this node, as its accounts are now.
    #[must_use]
    pub fn new(config: Config, accounts: &impl Accounts) -> Self {
        let authority = Authority::new(&config, &node_name(), accounts);
        Self { config, authority }
    }
}

/// What the kernel calls this node.
fn node_name() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
