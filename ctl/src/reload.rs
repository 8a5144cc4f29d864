//! `pfoctl reload`: has `pfod` read its configuration again, and reports the effects.

use clap::Args;
use pfo_protocol::{ConfigStatus, Reloaded, Request, Response};

use crate::daemons::Daemons;
use crate::error::Error;
use crate::outcome::BadOutcome;
use crate::output::Output;
use crate::text::harmless;

/// Have pfod read its configuration again; sessions continue
///
/// A file with an error changes nothing; the exit code is then 1.
#[derive(Args)]
pub(crate) struct Reload {
    /// Print JSON: what is in force, the sessions that ended and the plans that were suspended
    #[arg(long)]
    json: bool,
}

impl Reload {
    /// Asks and prints.
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut pfod = daemons.pfod()?;
        let reloaded = match pfod.ask(Request::Reload)? {
            Response::Reloaded(reloaded) => reloaded,
            other => return Err(pfod.unexpected(&other).into()),
        };
        if self.json {
            output.json(&reloaded)?;
        } else {
            output.text(&effects(&reloaded))?;
        }
        reloaded.config.refused.map_or(Ok(()), |why| Err(BadOutcome::ConfigRefused(why).into()))
    }
}

fn effects(reloaded: &Reloaded) -> String {
    let Reloaded { config, ended, suspended } = reloaded;
    let ConfigStatus { file, refused, restart_needed_for, unknown_names, outdated: _ } = config;
    if refused.is_some() {
        return String::new();
    }
    let mut lines = vec![match file {
        Some(file) => format!("{file} is in force"),
        None => "there is no configuration file; the defaults are in force".to_owned(),
    }];
    lines.extend(restart_needed_for.iter().map(|key| format!("requires a restart of pfod: {key}")));
    lines.extend(unknown_names.iter().map(|name| format!("this node has no {name}")));
    lines.extend(ended.iter().map(|session| format!("session ended: {session}")));
    lines.extend(suspended.iter().map(|plan| format!("plan suspended: {plan}")));
    lines.iter().map(|line| format!("{}\n", harmless(line))).collect()
}
