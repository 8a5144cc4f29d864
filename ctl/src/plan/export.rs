//! `pfoctl plan export`: writes one plan of a frontier.

use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use pfo_planner::{
    Confidence, Due, Frontier, PerStage, Plan, PowerByClock, Scatter, WrittenDeadline,
};

use crate::error::Error;
use crate::failure::Failure;
use crate::output::Output;
use crate::planning::format::Format;
use crate::planning::frontier_file::load;
use crate::planning::rest::RestArguments;
use crate::planning::written;
use crate::progress::Progress;
use crate::status::quantity::{joules, percent_finely};

/// Write the plan of least energy for a deadline
///
/// pfoctl makes the plan for that time from the plans of the frontier. A stage that is done earlier waits
/// until then, at the P2P-blocking power. `plan optimize --deadline`, which makes a plan for this time
/// alone, finds one that takes up to 0.3 % less now and then.
#[derive(Args)]
pub(crate) struct Export {
    /// The frontier, as `plan optimize` writes it
    #[arg(value_name = "FRONTIER")]
    frontier: String,

    /// Longest iteration time: a time (3.1s, 310ms), a factor of the fastest (1.02x), fastest or
    /// min-energy
    #[arg(long, value_name = "D")]
    deadline: WrittenDeadline,

    /// Spend this many seconds on improving the plan, on all cores
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "10")]
    polish: Option<Seconds>,

    /// Share of the steps that keep the deadline, such as 95%, although instructions scatter and drift: the
    /// plan is made for a shorter time. Without this option, about half of the steps are slightly late
    #[arg(long, value_name = "PERCENT", conflicts_with_all = ["polish", "wait_power"])]
    confidence: Option<Confidence>,

    /// P2P-blocking power by clock, in MHz and W: long waits get the clock at which a waiting GPU draws
    /// least, and pfod requests the next clock before they end. Write semicolons between stages to give each
    /// stage its own powers [default: those of the frontier]
    #[arg(long, value_name = "MHZ:WATTS,…")]
    wait_power: Option<PerStage<PowerByClock>>,

    #[command(flatten)]
    rest: RestArguments,

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
        let due = Due::Waiting(frontier.seconds(frontier.deadline(&self.deadline)?));
        let plan = match (self.polish, self.confidence) {
            (Some(Seconds(patience)), _) => polished(&frontier, due, patience)?,
            (None, Some(confidence)) => {
                let scatter = Scatter::of(frontier.pipeline().profile());
                frontier.plan_with_confidence(due, confidence, scatter)?
            }
            (None, None) => frontier.plan_for(due)?,
        };
        let plan = match &self.wait_power {
            Some(power) => plan.with_waits(frontier.pipeline().profile(), power)?,
            None => plan,
        };
        written::write(&self.output, &plan, &frontier, (self.format, &self.rest), output)
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
fn polished(frontier: &Frontier, due: Due, patience: Duration) -> Result<Plan, Failure> {
    frontier.check_polishable()?;
    let progress = Progress::new("polishing");
    let began = Instant::now();
    let goes_on = |_: f64| {
        progress.show(began.elapsed().as_secs_f64() / patience.as_secs_f64());
        began.elapsed() < patience
    };
    let first = frontier.plan_for(due)?;
    let energy_j = |plan: &Plan| frontier.energy_until_j(plan, due.seconds());
    let first_j = energy_j(&first);
    let plan = frontier.polished(first, due, goes_on)?;
    let (polished_j, least_j) = (energy_j(&plan), frontier.bound().energy_j(due.seconds()));
    progress.tell(&format!(
        "polished from {} to {}, {} above the lower bound",
        joules(first_j),
        joules(polished_j),
        percent_finely(polished_j / least_j - 1.0),
    ));
    Ok(plan)
}
