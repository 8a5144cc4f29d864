//! `pfoctl plan optimize`: makes the frontier of a profile.

use clap::Args;
use pfo_planner::{Frontier, Options, Point, Spread, Watts};

use super::measured::{Measured, TreatmentArguments};
use super::pipeline::PipelineArguments;
use super::{Failure, file};
use crate::connection::Connection;
use crate::error::Error;
use crate::output::Output;
use crate::p2p::known::{self, Known};
use crate::progress::Progress;
use crate::socket::Sockets;
use crate::status::quantity::{joules, seconds};
use crate::text::harmless;

/// Make plans from a measured profile, from the fastest to the one of least energy
#[derive(Args)]
pub(crate) struct Optimize {
    /// Time and energy of each instruction: CSV with the columns stage, instruction, frequency
    /// (MHz), time (s), energy (J); - reads standard input. A line may be the mean of several
    /// measurements: count says of how many, `time_sd` and `energy_sd` how much they scattered.
    /// Lines that differ in other columns only, such as window, are repeats
    #[arg(value_name = "PROFILE.csv")]
    profile: String,

    #[command(flatten)]
    treatment: TreatmentArguments,

    #[command(flatten)]
    pipeline: PipelineArguments,

    /// What a GPU draws while it only waits for its neighbour stage, in watts [default: what
    /// the daemon knows of the --gpu model, or of the only model that it knows it of]
    #[arg(long, value_name = "WATTS", allow_negative_numbers = true)]
    p2p_power: Option<f64>,

    /// The most plans to make
    #[arg(long, value_name = "N", default_value_t = Options::default().plans)]
    plans: usize,

    /// The GPU model that was profiled, to be written into plans
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,

    /// The file to write; `plan show` and `plan export` read it
    #[arg(short, long, value_name = "FRONTIER")]
    output: String,
}

impl Optimize {
    pub(super) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let (p2p_power, origin) = match self.p2p_power {
            Some(watts) => (Watts(watts), None),
            None => {
                let known = known_power(sockets, self.gpu.as_deref())?;
                (Watts(known.power_w), Some(known.origin))
            }
        };
        let progress = Progress::new("planning");
        let Measured { profile, .. } = self.treatment.read(&self.profile)?;
        let pipeline = self.pipeline.of(&profile)?;
        let options = Options { plans: self.plans, spread: Spread::Useful };
        let mut frontier =
            Frontier::optimize(&pipeline, p2p_power, options, &|done| progress.show(done))
                .map_err(Failure::BadRequest)?;
        frontier.gpu = self.gpu;
        file::write(&self.output, &frontier.to_bytes().map_err(Failure::BadRequest)?)?;
        drop(progress);
        if let Some(origin) = origin {
            output.text(&format!("P2P-blocking power: {}\n", harmless(&origin)))?;
        }
        output.text(&format!("{}\n", harmless(&summary(&self.output, &frontier))))
    }
}

/// What the daemon knows, if there is one that knows it of one model.
fn known_power(sockets: &Sockets, model: Option<&str>) -> Result<Known, Failure> {
    let unknown = |why| Failure::UnknownPower { why };
    match Connection::open(sockets).and_then(|mut daemon| known::of(&mut daemon, model)) {
        Ok(Some(known)) => Ok(known),
        Ok(None) => Err(unknown(match model {
            Some(model) => format!("the daemon knows none of one model called {model}"),
            None => "the daemon knows none, or that of several models".to_owned(),
        })),
        Err(error) => Err(unknown(error.to_string())),
    }
}

/// One line about a frontier: how many plans, and the ends.
pub(super) fn summary(name: &str, frontier: &Frontier) -> String {
    let written = |point: Option<Point>| {
        point.map_or_else(String::new, |point| {
            format!("{} {}", seconds(point.iteration_time_s), joules(point.iteration_energy_j))
        })
    };
    let points = frontier.points();
    format!(
        "{name}: {} plans, from {} (fastest) to {} (least energy)",
        points.len(),
        written(frontier.points().next()),
        written(points.last()),
    )
}
