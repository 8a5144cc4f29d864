//! The log: to the journal with its fields when systemd started the daemon, as text otherwise.

use std::io;

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::log_limit::Limit;

/// The kinds of journal entries that people and tools may rely on: the name of the event and the
/// `MESSAGE_ID`.
pub type Messages = &'static [(&'static str, &'static str)];

/// Starts the log. `PFO_LOG` sets the level; the default is `info`.
pub fn begin_log(identifier: &'static str, messages: Messages) {
    let wanted = std::env::var("PFO_LOG").ok().filter(|wanted| !wanted.is_empty());
    let filter = wanted.and_then(|wanted| wanted.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    // systemd sets JOURNAL_STREAM where standard error is the journal.
    let journal =
        std::env::var_os("JOURNAL_STREAM").and_then(|_| journal(identifier, messages).ok());
    let registry = tracing_subscriber::registry().with(filter).with(Limit);
    match journal {
        Some(journal) => registry.with(journal).init(),
        None => {
            let text = fmt::layer().with_target(false).with_writer(io::stderr);
            // Where the log cannot be written, a complaint about that would panic.
            let text = text.log_internal_errors(false);
            registry.with(text).init();
        }
    }
}

/// The journal layers, one for each kind of entry and one for all others, because `MESSAGE_ID` is
/// the same for all events of a layer.
fn journal<S>(identifier: &str, messages: Messages) -> io::Result<Vec<impl Layer<S> + use<S>>>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    let kinds = messages.iter().copied().map(Some).chain([None]);
    kinds
        .map(|kind| {
            let layer = tracing_journald::layer()?
                .with_field_prefix(Some("PFO".into()))
                .with_syslog_identifier(identifier.into())
                .with_custom_fields(kind.map(|(_, id)| ("MESSAGE_ID", id)));
            Ok(layer.with_filter(filter_fn(move |event| kind_of(event, messages) == kind)))
        })
        .collect()
}

fn kind_of(event: &Metadata<'_>, messages: Messages) -> Option<(&'static str, &'static str)> {
    messages.iter().copied().find(|(name, _)| *name == event.name())
}
