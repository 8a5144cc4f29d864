//! `pfoctl drain`, `undrain` and `driver release`: keep pfo from GPUs while somebody works on them.

use clap::{Args, Subcommand};
use pfo_protocol::{Request, Response};

use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::Output;

/// End every lease on this node, and grant none until `pfoctl undrain` or the next boot
///
/// Training continues at default clocks, and returns to its plans afterwards by itself. A restart of
/// pfod changes nothing. For administrators.
#[derive(Args)]
pub(crate) struct Drain {
    #[command(flatten)]
    reason: Reason,
}

/// Why the node is drained.
#[derive(Args)]
struct Reason {
    /// What `pfoctl status` and trainers are told
    #[arg(long, value_name = "TEXT", default_value = "maintenance")]
    reason: String,
}

/// Keep pfod from the NVIDIA driver
#[derive(Subcommand)]
pub(crate) enum Driver {
    /// Drain this node and release the driver, until `pfoctl undrain` or the next boot
    ///
    /// pfod then has no GPU in use: `nvidia-smi --gpu-reset`, a change of MIG or another version of
    /// the driver does not find it in the way. It fails while a clock is still locked or a call of
    /// the driver does not return. For administrators.
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
