//! `pfoctl p2p`: what GPUs draw while they only wait for a neighbour stage, measured, shown and set.

mod blocking_receive;
pub(crate) mod known;
mod measure;
mod powers;

use clap::{ArgGroup, Args, Subcommand};
use pfo_protocol::{P2pPower, P2pTarget, Request, Response};

use crate::connection::Connection;
use crate::error::Error;
use crate::output::Output;
use crate::socket::Sockets;
use measure::Measure;

/// What to do about P2P-blocking power.
#[derive(Subcommand)]
pub(crate) enum P2p {
    Measure(Measure),
    Show(Show),
    Set(Set),
}

/// Show every P2P-blocking power that is known, and where it comes from
#[derive(Args)]
pub(crate) struct Show {
    /// Print JSON: an array with every figure as the daemon gave it
    #[arg(long)]
    json: bool,
}

/// Set the P2P-blocking power of a GPU or of a model; it counts before what is measured
#[derive(Args)]
#[command(group(ArgGroup::new("target").required(true).args(["gpu", "model"])))]
#[command(group(ArgGroup::new("power").required(true).args(["watts", "forget"])))]
pub(crate) struct Set {
    /// The power, in watts
    #[arg(value_name = "WATTS", allow_negative_numbers = true)]
    watts: Option<f64>,

    /// Of this GPU of the node, by UUID
    #[arg(long, value_name = "UUID")]
    gpu: Option<pfo_protocol::GpuUuid>,

    /// Of every GPU of this model, as `pfoctl gpus` shows it
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Forget what was set
    #[arg(long)]
    forget: bool,
}

impl P2p {
    /// Does what the arguments ask for.
    pub(crate) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        match self {
            Self::Measure(measure) => measure.run(sockets, output),
            Self::Show(show) => {
                let powers = ask(&mut Connection::open(sockets)?, Request::P2pPowers)?;
                powers::print(&powers, show.json, output)
            }
            Self::Set(set) => set.run(sockets, output),
        }
    }
}

impl Set {
    fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        // One of the two is required.
        let model = self.model.unwrap_or_default();
        let target = self.gpu.map_or(P2pTarget::Model(model), P2pTarget::Gpu);
        let request = Request::P2pSet { target, power_w: self.watts };
        let set = ask(&mut Connection::open(sockets)?, request)?;
        if set.is_empty() {
            return output.text("What was set is forgotten.\n");
        }
        powers::print(&set, false, output)
    }
}

/// Asks something whose answer are powers.
fn ask(connection: &mut Connection, request: Request) -> Result<Vec<P2pPower>, Error> {
    match connection.ask(request)? {
        Response::P2pPowers(powers) => Ok(powers),
        other => Err(connection.other_answer(&format!("{other:?}"))),
    }
}
