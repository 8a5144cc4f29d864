//! What was measured, as the control plane of Perseus' artifact dumps it: for the n-th window
//! `n.prof.json`, what every rank took in each step, and `n.sched.json`, the clocks that it had.
//!
//! A clock of 0 is default clocks. The artifact has a clock for each transfer, too; we set none there.
//! Its breakdowns by instruction are as empty as the energies are in what was published with it.

use pfo_protocol::{TrialRank, TrialResult};
use serde::Serialize;

use super::contenders::Contender;
use crate::plan::Failure;

#[derive(Serialize)]
struct RankProfile {
    rank: u32,
    /// Seconds of each step.
    iter_time: Vec<f64>,
    /// Joules of each step.
    iter_energy: Vec<f64>,
    time_breakdown: Breakdown,
    energy_breakdown: Breakdown,
}

/// For each step no instruction.
#[derive(Serialize)]
struct Breakdown {
    forward: Vec<[f64; 0]>,
    backward: Vec<[f64; 0]>,
}

#[derive(Serialize)]
struct RankSchedule {
    rank: u32,
    power_states: Vec<u32>,
}

/// The files of these windows, at default clocks where there is no plan.
pub(super) fn files(
    windows: &[(Option<&Contender>, TrialResult)],
) -> impl Iterator<Item = Result<(String, String), Failure>> {
    windows.iter().enumerate().flat_map(|(number, (contender, trial))| {
        let profile = json(&profiles(trial));
        let schedule = json(&schedules(*contender, trial));
        [
            Ok((format!("{number}.prof.json"), profile)),
            Ok((format!("{number}.sched.json"), schedule)),
        ]
    })
}

fn json<T: Serialize>(ranks: &[T]) -> String {
    // Numbers, names and lists of them always have a form.
    serde_json::to_string(ranks).unwrap_or_default()
}

fn profiles(trial: &TrialResult) -> Vec<RankProfile> {
    let all_j: f64 = trial.ranks.iter().filter_map(|rank| rank.energy_j).sum();
    let breakdown = || Breakdown {
        forward: vec![[]; trial.steps.len()],
        backward: vec![[]; trial.steps.len()],
    };
    let profile = |rank: &TrialRank| {
        let share = rank.energy_j.unwrap_or(0.0) / all_j;
        RankProfile {
            rank: rank.rank,
            iter_time: trial.steps.iter().map(|step| step.time_s).collect(),
            iter_energy: trial
                .steps
                .iter()
                .map(|step| share * step.energy_j.unwrap_or(0.0))
                .collect(),
            time_breakdown: breakdown(),
            energy_breakdown: breakdown(),
        }
    };
    trial.ranks.iter().map(profile).collect()
}

fn schedules(contender: Option<&Contender>, trial: &TrialResult) -> Vec<RankSchedule> {
    let clocks = |stage: u32| match contender {
        None => vec![0],
        Some(contender) => {
            contender.plan.stages.get(stage as usize).map_or_else(Vec::new, |stage| {
                stage.instructions.iter().map(|planned| planned.frequency_mhz.0).collect()
            })
        }
    };
    let schedule =
        |rank: &TrialRank| RankSchedule { rank: rank.rank, power_states: clocks(rank.stage) };
    trial.ranks.iter().map(schedule).collect()
}
