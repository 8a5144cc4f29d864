//! `pfoctl plan compare`: the plans of other systems for a profile, and what our plans take at the
//! same iteration time.

use clap::Args;
use pfo_planner::{
    ClockPer, Deadline, Due, End, Frontier, Options, Outcome, PerStage, Plan, PlanError, Policy,
    PowerByClock, Spread, Watts,
};
use serde::Serialize;

use crate::arguments::{Slowdown, number};
use crate::error::Error;
use crate::failure::Failure;
use crate::output::{Look, Output};
use crate::planning::measured::{Measured, TreatmentArguments};
use crate::planning::pipeline::PipelineArguments;
use crate::planning::policy_options::PolicyArguments;
use crate::progress::Progress;
use crate::status::quantity::{change, joules, percent, seconds};
use crate::status::table::{Cell, Table, Tone};
use crate::text::harmless;
use pfo_experiment::Cost;

/// Compare plans with the highest clocks, EnvPipe, Zeus and lowtime, all replayed over one profile
#[derive(Args)]
pub(crate) struct Compare {
    /// Time and energy of each instruction, as `plan optimize` takes it
    #[arg(value_name = "PROFILE.csv")]
    profile: String,

    #[command(flatten)]
    treatment: TreatmentArguments,

    #[command(flatten)]
    pipeline: PipelineArguments,

    /// P2P-blocking power: what a GPU draws while it only waits for its neighbour stage; where stages
    /// run on different models, one for each stage
    #[arg(
        long,
        value_name = "WATTS,…",
        allow_negative_numbers = true,
        value_parser = number::watts_of_stages
    )]
    p2p_power: PerStage<Watts>,

    /// P2P-blocking power by clock, in MHz and W: long waits of pfo's plans get the clock at which a
    /// waiting GPU draws least
    #[arg(long, value_name = "MHZ:WATTS,…")]
    wait_power: Option<PerStage<PowerByClock>>,

    /// Show the best plans whose step takes at most this much longer than at the highest clocks
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "0%,1%,5%,10%")]
    slowdown: Vec<Slowdown>,

    /// Number of plans of pfo's frontier, from which pfoctl makes the plans that it shows
    #[arg(long, value_name = "N", default_value_t = Options::default().plans)]
    plans: usize,

    /// Print JSON: an array with each row of the table
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print CSV: policy, time (s), energy (J), saving, slowdown, energy of pfo at that time (J)
    #[arg(long)]
    csv: bool,

    #[command(flatten)]
    policies: PolicyArguments,
}

/// One way to run a step.
#[derive(Debug, Serialize)]
struct Row {
    policy: String,
    #[serde(flatten)]
    cost: Cost,
    /// As a share of the energy at the highest clocks.
    saving: f64,
    /// As a share of the time at the highest clocks.
    slowdown: f64,
    /// What our plan for the same iteration time takes; none if the row is ours.
    ours_at_that_time_j: Option<f64>,
    /// Steps or trials until the policy settles.
    rounds: Option<u32>,
    /// Whether it reached what it looks for.
    has_settled: bool,
}

impl Compare {
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let rows = self.rows()?;
        if self.json {
            return output.json(&rows);
        }
        if self.csv {
            return output.text(&csv(&rows));
        }
        let look = output.look();
        output.text(&render(&rows, look))
    }

    fn rows(&self) -> Result<Vec<Row>, Failure> {
        // How much of the work the other policies are, for a large pipeline.
        const OTHERS: f64 = 0.3;
        let Measured { profile, .. } = self.treatment.read(&self.profile)?;
        let pipeline = self.pipeline.of(&profile)?;
        let p2p_power = &self.p2p_power;
        let progress = Progress::new("comparing");
        let options = Options { plans: self.plans, spread: Spread::Useful };
        let show = |done| progress.show(OTHERS + (1.0 - OTHERS) * done);
        let policies = Policy::tuned(&self.policies.tuning());
        let mut tried = Vec::with_capacity(policies.len());
        for (index, policy) in policies.iter().enumerate() {
            let before = index as f64;
            let show = |done| progress.show(OTHERS * (before + done) / policies.len() as f64);
            show(0.0);
            match policy.outcome(&pipeline, p2p_power, &show) {
                Ok(outcome) => tried.push(Tried::new(policy, &outcome)),
                // Only lowtime refuses; the others have a result.
                Err(refusal @ PlanError::NoFit { .. }) => {
                    let line = format!("pfoctl: {policy} is left out: {refusal}");
                    progress.tell(&harmless(&line));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let power = self.wait_power.clone().unwrap_or_else(|| p2p_power.into());
        let per = ClockPer::Instruction;
        let frontier = Frontier::for_waiting(per, &pipeline, &power, options, &show)?;
        drop(progress);

        // The first of all policies.
        let comparison = Comparison { all_max: tried[0].costs[0], frontier: &frontier };
        let mut rows = Vec::new();
        for tried in &tried {
            let mut row = comparison.theirs(tried.policy.clone(), tried.costs[tried.chosen])?;
            row.rounds = Some(tried.rounds).filter(|&rounds| rounds > 0);
            row.has_settled = tried.has_settled;
            rows.push(row);
            if tried.costs.len() < 2 {
                continue;
            }
            for &slowdown in &self.slowdown {
                if let Some(cost) = comparison.best_within(&tried.costs, slowdown) {
                    rows.push(comparison.theirs(named(&tried.policy, slowdown), cost)?);
                }
            }
        }
        rows.push(comparison.ours("pfo, fastest".to_owned(), Deadline::Fastest)?);
        for &slowdown in &self.slowdown {
            let deadline = Deadline::Seconds(comparison.limit_s(slowdown));
            rows.push(comparison.ours(named("pfo", slowdown), deadline)?);
        }
        rows.push(comparison.ours("pfo, min-energy".to_owned(), Deadline::MinEnergy)?);
        Ok(rows)
    }
}

/// The outcome of a policy, without its plans, which would take much memory.
struct Tried {
    policy: String,
    costs: Vec<Cost>,
    chosen: usize,
    rounds: u32,
    has_settled: bool,
}

impl Tried {
    fn new(policy: &Policy, outcome: &Outcome) -> Self {
        Self {
            policy: policy.to_string(),
            costs: outcome.plans.iter().map(predicted).collect(),
            chosen: outcome.chosen,
            rounds: outcome.rounds,
            has_settled: outcome.end == End::Settled,
        }
    }
}

/// What every row is compared with.
struct Comparison<'a> {
    all_max: Cost,
    frontier: &'a Frontier,
}

impl Comparison<'_> {
    fn limit_s(&self, slowdown: Slowdown) -> f64 {
        // A hair more, so that the time at the highest clocks itself is within 0 %.
        self.all_max.iteration_time_s * (1.0 + slowdown.0) * (1.0 + 1e-12)
    }

    fn best_within(&self, costs: &[Cost], slowdown: Slowdown) -> Option<Cost> {
        let limit_s = self.limit_s(slowdown);
        let in_time = costs.iter().filter(|cost| cost.iteration_time_s <= limit_s);
        in_time.min_by(|a, b| a.iteration_energy_j.total_cmp(&b.iteration_energy_j)).copied()
    }

    fn theirs(&self, policy: String, cost: Cost) -> Result<Row, Failure> {
        let mut row = self.row(policy, cost);
        let deadline = Deadline::Seconds(row.cost.iteration_time_s * (1.0 + 1e-12));
        row.ours_at_that_time_j = match self.frontier.plan_for(self.due(deadline)) {
            Ok(plan) => Some(predicted(&plan).iteration_energy_j),
            Err(PlanError::DeadlineTooEarly { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(row)
    }

    fn ours(&self, policy: String, deadline: Deadline) -> Result<Row, Failure> {
        let plan = self.frontier.plan_for(self.due(deadline))?;
        Ok(self.row(policy, predicted(&plan)))
    }

    /// Nothing waits until then.
    fn due(&self, deadline: Deadline) -> Due {
        Due::AtMost(self.frontier.seconds(deadline))
    }

    fn row(&self, policy: String, cost: Cost) -> Row {
        Row {
            policy,
            cost,
            saving: cost.saving_on(&self.all_max),
            slowdown: cost.slowdown_on(&self.all_max),
            ours_at_that_time_j: None,
            rounds: None,
            has_settled: true,
        }
    }
}

/// A plan's replay; every plan that is compared has one.
fn predicted(plan: &Plan) -> Cost {
    plan.predicted.map_or(
        Cost { iteration_time_s: f64::NAN, iteration_energy_j: f64::NAN },
        |predicted| Cost {
            iteration_time_s: predicted.iteration_time_s,
            iteration_energy_j: predicted.iteration_energy_j,
        },
    )
}

fn named(policy: &str, Slowdown(slowdown): Slowdown) -> String {
    format!("{policy}, up to +{} %", (slowdown * 1e4).round() / 100.0)
}

fn render(rows: &[Row], look: Look) -> String {
    let mut table = Table::new(look)
        .left("Policy")
        .right("Iteration")
        .right("Energy")
        .right("Saving")
        .right("Slower")
        .right("Rounds")
        .right("pfo then")
        .right("takes");
    let mut has_stuck = false;
    for row in rows {
        let ours_j = row.ours_at_that_time_j;
        has_stuck |= !row.has_settled;
        table.row([
            Cell::text(&row.policy),
            Cell::text(seconds(row.cost.iteration_time_s)),
            Cell::text(joules(row.cost.iteration_energy_j)),
            Cell::text(percent(row.saving)),
            Cell::text(change(row.slowdown)),
            match row.rounds {
                Some(rounds) if row.has_settled => Cell::number(rounds),
                Some(rounds) => Cell::text(format!("{rounds}*")).tone(Tone::Notable),
                None => Cell::empty(),
            },
            Cell::option(ours_j.map(joules)),
            Cell::option(ours_j.map(|ours_j| change(ours_j / row.cost.iteration_energy_j - 1.0))),
        ]);
    }
    let mut text = table.render();
    text += "\nSaving and slowdown are relative to every instruction at the highest clock. The \
             last columns\nshow a plan of pfo that takes no longer. All plans are replayed over the \
             profile.\n";
    if has_stuck {
        text += "* stuck: no clock is left to raise, but the critical path is not the envelope\n";
    }
    text
}

fn csv(rows: &[Row]) -> String {
    let mut text = String::from("policy,time,energy,saving,slowdown,ours_at_that_time\n");
    for row in rows {
        let ours = row.ours_at_that_time_j.map_or_else(String::new, |ours_j| ours_j.to_string());
        text += &format!(
            "\"{}\",{},{},{},{},{ours}\n",
            row.policy,
            row.cost.iteration_time_s,
            row.cost.iteration_energy_j,
            row.saving,
            row.slowdown
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_got_stuck_is_marked_and_the_mark_explained() {
        let cost = |time, energy| Cost { iteration_time_s: time, iteration_energy_j: energy };
        let row = Row {
            policy: "envpipe".to_owned(),
            cost: cost(3.0, 5000.0),
            saving: 0.1,
            slowdown: 0.01,
            ours_at_that_time_j: Some(4500.0),
            rounds: Some(38),
            has_settled: false,
        };
        insta::assert_snapshot!(render(&[row], Look::default()));
    }
}
