//! `pfoctl clocks`: frees GPUs of locks that outlived their session.

use clap::Subcommand;
use pfo_protocol::{Request, ResetOutcome, Response};

use crate::arguments::{GpuArgument, resolve_option};
use crate::daemons::Daemons;
use crate::error::Error;
use crate::outcome::BadOutcome;
use crate::output::{Look, Output};
use crate::status::table::{Cell, Table, Tone};

/// What to do about clocks.
#[derive(Subcommand)]
pub(crate) enum Clocks {
    /// Restore clocks that pfo left locked, except on GPUs that a running rank leases
    Reset {
        /// Only this GPU, by index, UUID or PCI bus id [default: every GPU of the node]
        #[arg(long, value_name = "GPU")]
        gpu: Option<GpuArgument>,

        /// Also reset locks that pfo did not set
        #[arg(long)]
        all: bool,

        /// Print JSON: an array with the UUID of each GPU, the outcome and whether it is unlocked
        #[arg(long)]
        json: bool,
    },
    /// Acknowledge that the ledger was damaged, and that clocks may be locked that pfo does not know
    ///
    /// `pfoctl status`, `pfoctl doctor` and each start of pfod report the damage until then. First run
    /// `pfoctl clocks reset --all`. For administrators.
    Acknowledge,
}

impl Clocks {
    /// Resets and reports the outcome for each GPU, or acknowledges.
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut pfod = daemons.pfod()?;
        let Self::Reset { gpu, all, json } = self else {
            return match pfod.ask(Request::LedgerAcknowledge)? {
                Response::Done => {
                    output.text("pfod no longer reports that the ledger was damaged.\n")
                }
                other => Err(pfod.unexpected(&other).into()),
            };
        };
        let gpu = resolve_option(gpu.as_ref(), &mut pfod)?;
        let outcomes = match pfod.ask(Request::ClocksReset { gpu, all })? {
            Response::Reset(outcomes) => outcomes,
            other => return Err(pfod.unexpected(&other).into()),
        };
        if json {
            output.json(&outcomes)?;
        } else {
            let look = output.look();
            output.text(&render(&outcomes, look))?;
        }
        match outcomes.iter().filter(|gpu| !gpu.restored).count() {
            0 => Ok(()),
            count => Err(BadOutcome::NotRestored { count, total: outcomes.len() }.into()),
        }
    }
}

fn render(outcomes: &[ResetOutcome], look: Look) -> String {
    if outcomes.is_empty() {
        return "No GPU has a lock to reset.\n".to_owned();
    }
    let mut table = Table::new(look).left("GPU").left("Outcome");
    for gpu in outcomes {
        let tone = if gpu.restored { Tone::Plain } else { Tone::Bad };
        table.row([Cell::text(gpu.uuid.as_str()), Cell::text(&gpu.outcome).tone(tone)]);
    }
    table.render()
}
