//! `pfoctl drain`, `undrain` and `driver release`: keep pfo from GPUs while somebody works on them.

use clap::{Args, Subcommand};
use pfo_protocol::{Request, Response};

use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::Output;

/// End every lease on this node, and grant none until `pfoctl undrain` or the next boot
///
/// Training continues at default clocks, and returns to its plans by itself when the drain ends. The
/// drain survives a restart of pfod. For administrators.
#[derive(Args)]
pub(crate) struct Drain {
    #[command(flatten)]
    reason: Reason,
}

/// Why the node is drained.
#[derive(Args)]
struct Reason {
    /// The reason that `pfoctl status` and trainers see
    #[arg(long, value_name = "TEXT", default_value = "maintenance")]
    reason: String,
}

/// Have pfod release the NVIDIA driver
#[derive(Subcommand)]
pub(crate) enum Driver {
    /// Drain this node and release the driver, until `pfoctl undrain` or the next boot
    ///
    /// pfod then uses no GPU, so it blocks neither `nvidia-smi --gpu-reset` nor a change of MIG nor an
    /// upgrade of the driver. The command fails while a clock is still locked or a call of the driver
    /// does not return. For administrators.
    Release(Drain),
}

impl Drain {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        self.drain(false, daemons, output)
    }

    fn drain(
        self,
        release_driver: bool,
        daemons: &Daemons,
        output: &mut Output,
    ) -> Result<(), Error> {
        let mut pfod = daemons.pfod()?;
        let request = Request::Drain { reason: self.reason.reason, release_driver };
        let ended = match pfod.ask(request)? {
            Response::Drained(1) => "1 lease ends".to_owned(),
            Response::Drained(ended) => format!("{ended} leases end"),
            other => return Err(pfod.unexpected(&other).into()),
        };
        let and = if release_driver { ", and pfod has released the driver" } else { "" };
        output.text(&format!("This node is drained: {ended}{and}.\n"))
    }
}

/// Has `pfod` grant leases again.
pub(crate) fn undrain(daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
    let mut pfod = daemons.pfod()?;
    match pfod.ask(Request::Undrain)? {
        Response::Done => output.text("GPUs of this node can be leased again.\n"),
        other => Err(pfod.unexpected(&other).into()),
    }
}

impl Driver {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let Self::Release(drain) = self;
        drain.drain(true, daemons, output)
    }
}
