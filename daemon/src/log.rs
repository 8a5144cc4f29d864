//! Where the daemon's log goes: to the journal with its fields when systemd started it, to people
//! as text otherwise.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

/// Begins to log. `PFO_LOG` sets the level, `info` without it.
pub fn begin() {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var("PFO_LOG")
        .from_env_lossy();
    // systemd sets JOURNAL_STREAM where standard error is the journal.
    let journal = std::env::var_os("JOURNAL_STREAM").and_then(|_| tracing_journald::layer().ok());
    let registry = tracing_subscriber::registry().with(filter);
    match journal {
        Some(journal) => {
            let journal = journal.with_field_prefix(Some("PFO".into()));
            registry.with(journal.with_syslog_identifier("pfod".into())).init();
        }
        None => {
            let text = fmt::layer().with_target(false).with_ansi(std::io::stderr().is_terminal());
            registry.with(text.with_writer(std::io::stderr)).init();
        }
    }
}
