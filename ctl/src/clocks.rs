//! `pfoctl clocks reset`: frees GPUs of locks that outlived their session.

use clap::Subcommand;
use pfo_protocol::{GpuName, Request, ResetOutcome, Response};

use crate::connection::Connection;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::socket::Sockets;
use crate::status::table::{Cell, Table, Tone};

/// What to do with clocks.
#[derive(Subcommand)]
pub(crate) enum Clocks {
    /// Restore the clocks that pfo left locked and no running rank holds
    Reset {
        /// Only this GPU, by UUID or PCI bus id [default: every GPU of the node]
        #[arg(long, value_name = "UUID|PCI")]
        gpu: Option<GpuName>,

        /// Also locks that pfo did not set
        #[arg(long)]
        all: bool,

        /// Print JSON: an array with the UUID of each GPU, the outcome and whether it is free of locks
        #[arg(long)]
        json: bool,
    },
}

impl Clocks {
    /// Resets and tells what became of each GPU.
    pub(crate) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let Self::Reset { gpu, all, json } = self;
        let mut connection = Connection::open(sockets)?;
        let outcomes = match connection.ask(Request::ClocksReset { gpu, all })? {
            Response::Reset(outcomes) => outcomes,
            other => return Err(connection.other_answer(&format!("{other:?}"))),
        };
        if json {
            output.json(&outcomes)?;
        } else {
            let look = output.look();
            output.text(&render(&outcomes, look))?;
        }
        match outcomes.iter().filter(|gpu| !gpu.restored).count() {
            0 => Ok(()),
            count => Err(Error::NotRestored { count, total: outcomes.len() }),
        }
    }
}

fn render(outcomes: &[ResetOutcome], look: Look) -> String {
    if outcomes.is_empty() {
        return "No GPU had clocks to restore.\n".to_owned();
    }
    let mut table = Table::new(look).left("GPU").left("Outcome");
    for gpu in outcomes {
        let tone = if gpu.restored { Tone::Plain } else { Tone::Bad };
        table.row([Cell::text(gpu.uuid.as_str()), Cell::text(&gpu.outcome).tone(tone)]);
    }
    table.render()
}
