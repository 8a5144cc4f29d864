//! `pfoctl p2p`: P2P-blocking power, what GPUs draw while they only wait for a neighbour stage.

mod error;
pub(crate) mod known;
pub(crate) mod measure;
mod powers;

use std::collections::BTreeSet;

use clap::{ArgGroup, Args, Subcommand};
use pfo_planner::Watts;
use pfo_protocol::{AgentRequest, AgentResponse, P2pPower, P2pTarget};

pub(crate) use self::error::P2pError;
use self::measure::Measure;
pub(crate) use self::powers::by_clock;
use crate::arguments::{GpuArgument, number};
use crate::daemons::{Agent, Connection, Daemons};
use crate::error::Error;
use crate::output::Output;
use crate::text::harmless;

/// What to do about P2P-blocking power.
#[derive(Subcommand)]
pub(crate) enum P2p {
    Measure(Measure),
    Show(Show),
    Set(Set),
}

/// Show every known P2P-blocking power and its origin
#[derive(Args)]
pub(crate) struct Show {
    /// Print JSON: an array with every figure as pfo-agent gave it
    #[arg(long)]
    json: bool,
}

/// Set the P2P-blocking power of a GPU or of a model; it takes precedence over measured ones
#[derive(Args)]
#[command(group(ArgGroup::new("target").required(true).args(["gpu", "model"])))]
#[command(group(ArgGroup::new("power").required(true).args(["watts", "forget"])))]
pub(crate) struct Set {
    /// The power, in watts
    #[arg(value_name = "WATTS", allow_negative_numbers = true, value_parser = number::watts)]
    watts: Option<Watts>,

    /// Set it for this GPU of the node, by index, UUID or PCI bus id
    #[arg(long, value_name = "GPU")]
    gpu: Option<GpuArgument>,

    /// Set it for every GPU of this model, as `pfoctl gpus` shows it
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Set the power even for a model that is neither on this node nor known to pfo-agent
    #[arg(long, requires = "model", conflicts_with = "forget")]
    force: bool,

    /// Remove the power that was set
    #[arg(long)]
    forget: bool,
}

impl P2p {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        match self {
            Self::Measure(measure) => measure.run(daemons, output),
            Self::Show(show) => {
                let powers = all(&mut daemons.agent()?)?;
                powers::print(&powers, show.json, output)
            }
            Self::Set(set) => set.run(daemons, output),
        }
    }
}

impl Set {
    fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let target = match self.gpu {
            Some(gpu) => P2pTarget::Gpu(gpu.uuid(&mut daemons.pfod()?)?),
            None => {
                // One of the two is required.
                let model = self.model.unwrap_or_default();
                if !self.force && !self.forget {
                    hold_known(daemons, &model)?;
                }
                P2pTarget::Model(model)
            }
        };
        let power_w = self.watts.map(|Watts(watts)| watts);
        let set = ask(&mut daemons.agent()?, AgentRequest::P2pSet { target, power_w })?;
        if set.is_empty() {
            return output.text("The power that was set is removed.\n");
        }
        powers::print(&set, false, output)
    }
}

/// A power of a model that is spelt wrong would never be used. A node without GPUs, or without pfod, makes
/// plans for others.
fn hold_known(daemons: &Daemons, model: &str) -> Result<(), Error> {
    let gpus = daemons.pfod().ok().and_then(|mut pfod| pfod.gpus().ok()).unwrap_or_default();
    if gpus.is_empty() {
        return Ok(());
    }
    let powers = all(&mut daemons.agent()?)?;
    let known = gpus.into_iter().map(|gpu| gpu.model);
    let known: BTreeSet<_> = known.chain(powers.into_iter().map(|power| power.model)).collect();
    if known.contains(model) {
        return Ok(());
    }
    let known = known.iter().map(|known| harmless(known).into_owned()).collect();
    Err(P2pError::UnknownModel { model: model.to_owned(), known }.into())
}

/// Every power that plans of the caller are made with.
pub(crate) fn all(agent: &mut Connection<Agent>) -> Result<Vec<P2pPower>, Error> {
    ask(agent, AgentRequest::P2pPowers)
}

/// Asks for something that is answered with powers.
fn ask(agent: &mut Connection<Agent>, request: AgentRequest) -> Result<Vec<P2pPower>, Error> {
    match agent.ask(request)? {
        AgentResponse::P2pPowers(powers) => Ok(powers),
        other => Err(agent.unexpected(&other).into()),
    }
}
