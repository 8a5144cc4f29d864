//! `pfoctl plan export`: writes one plan of a frontier.

use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use pfo_planner::{Deadline, Frontier, LowerBound, Plan, PowerByClock};

use crate::error::Error;
use crate::failure::Failure;
use crate::output::Output;
use crate::planning::file;
use crate::planning::format::Format;
use crate::planning::frontier_file::load;
use crate::progress::Progress;
use crate::status::quantity::joules;

/// Write the plan of least energy within a deadline
#[derive(Args)]
pub(crate) struct Export {
    /// The frontier, as `plan optimize` writes it
    #[arg(value_name = "FRONTIER")]
    frontier: String,

    /// Longest iteration time: seconds (3.1), a factor of the fastest (1.02x), fastest or
    /// min-energy
    #[arg(long, value_name = "D")]
    deadline: Deadline,

    /// Spend this many seconds on improving the plan, on all cores
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "10")]
    polish: Option<Seconds>,

    /// P2P-blocking power by clock, in MHz and W: long waits get the clock at which a waiting GPU
    /// draws least, and the next clock is asked for before they end. pfod does not set these clocks
    /// yet: it runs the plan without them
    #[arg(long, value_name = "MHZ:WATTS,…")]
    wait_power: Option<PowerByClock>,

    /// Format of the plan
    #[arg(long, value_enum, default_value_t = Format::Pfo)]
    format: Format,

    /// The file to write; - is standard output
    #[arg(short, long, value_name = "PLAN.json", default_value = "-")]
    output: String,
}

impl Export {
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let frontier = load(&self.frontier)?;
        let place = frontier.pick(self.deadline)?;
        let plan = match self.polish {
            Some(Seconds(patience)) => polished(&frontier, place, self.deadline, patience)?,
            None => frontier.plan(place)?,
        };
        let plan = match &self.wait_power {
            Some(power) => plan.with_waits(frontier.pipeline().profile(), power)?,
            None => plan,
        };
        let text = self.format.write(&plan)?;
        if self.output == "-" {
            return output.text(&text);
        }
        Ok(file::write(&self.output, text.as_bytes())?)
    }
}

/// A time to spend.
#[derive(Clone, Copy, Debug)]
struct Seconds(Duration);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = text.trim().trim_end_matches('s').trim().parse().ok();
        let seconds = seconds.filter(|seconds| (0.0..=86_400.0).contains(seconds));
        let patience = seconds.map(|seconds| Self(Duration::from_secs_f64(seconds)));
        patience.ok_or_else(|| "give seconds from 0 to 86400, such as 10".to_owned())
    }
}

/// Improves a plan for this long, and reports the improvement.
fn polished(
    frontier: &Frontier,
    place: usize,
    deadline: Deadline,
    patience: Duration,
) -> Result<Plan, Failure> {
    let progress = Progress::new("polishing");
    let began = Instant::now();
    let mut first_j = None;
    let goes_on = |energy_j: f64| {
        first_j.get_or_insert(energy_j);
        progress.show(began.elapsed().as_secs_f64() / patience.as_secs_f64());
        began.elapsed() < patience
    };
    let plan = frontier.polished(place, deadline, goes_on)?;
    if let (Some(first_j), Some(predicted)) = (first_j, plan.predicted) {
        let energy_j = predicted.iteration_energy_j;
        let bound = LowerBound::new(frontier.pipeline(), frontier.p2p_power());
        let least_j = bound.energy_j(predicted.iteration_time_s);
        progress.tell(&format!(
            "polished from {} to {}, {} above the lower bound",
            joules(first_j),
            joules(energy_j),
            percent_finely(energy_j / least_j - 1.0),
        ));
    }
    Ok(plan)
}

/// Differences are small here.
fn percent_finely(share: f64) -> String {
    format!("{:.3} %", 100.0 * share)
}
