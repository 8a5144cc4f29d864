//! The configuration of `pfo-agent`: right, or refused with a place that it has.
use pfo_agent::Config;

use crate::config::check;
use crate::temporary;

/// The target.
pub fn agent_config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    check(text, Config::read(&temporary::file("agent.toml", bytes)).err().as_ref());
}
