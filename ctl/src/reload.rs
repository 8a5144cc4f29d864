//! `pfoctl reload`: has the daemon read its configuration again, and tells what came of it.

use clap::Args;
use pfo_protocol::{ConfigStatus, Reloaded, Request, Response};

use crate::connection::Connection;
use crate::error::Error;
use crate::output::Output;
use crate::socket::Sockets;
use crate::text::harmless;

/// Have the daemon read its configuration again. Sessions go on
///
/// A file that is wrong changes nothing; the exit code is then 1.
#[derive(Args)]
pub(crate) struct Reload {
    /// Print JSON: what is in force, and which sessions and plans it ended
    #[arg(long)]
    json: bool,
}

impl Reload {
    /// Asks and tells.
    pub(crate) fn run(&self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let mut connection = Connection::open(sockets)?;
        let reloaded = match connection.ask(Request::Reload)? {
            Response::Reloaded(reloaded) => reloaded,
            other => return Err(connection.other_answer(&format!("{other:?}"))),
        };
        if self.json {
            output.json(&reloaded)?;
        } else {
            output.text(&told(&reloaded))?;
        }
        reloaded.config.refused.map_or(Ok(()), |why| Err(Error::ConfigRefused(why)))
    }
}

fn told(reloaded: &Reloaded) -> String {
    let Reloaded { config, ended, suspended } = reloaded;
    let ConfigStatus { file, refused, restart_needed_for, unknown_names } = config;
    if refused.is_some() {
        return String::new();
    }
    let mut lines = vec![match file {
        Some(file) => format!("{file} is in force"),
        None => "there is no configuration file; the defaults are in force".to_owned(),
    }];
    lines.extend(restart_needed_for.iter().map(|key| format!("takes a restart: {key}")));
    lines.extend(unknown_names.iter().map(|name| format!("there is no {name}")));
    lines.extend(ended.iter().map(|session| format!("session ended: {session}")));
    lines.extend(suspended.iter().map(|plan| format!("plan suspended: {plan}")));
    lines.iter().map(|line| format!("{}\n", harmless(line))).collect()
}
