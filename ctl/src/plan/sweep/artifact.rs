//! What was measured, as the control plane of Perseus' artifact dumps it: for the n-th window
//! `n.prof.json`, what every rank took in each step, and `n.sched.json`, the clocks that it had.
//!
//! A clock of 0 is default clocks. The artifact has a clock for each transfer as well; pfo sets
//! none there. Its breakdowns have a list of each kind of instruction for every step. The energies,
//! which are empty in the published artifact, are what the energy counter rose by during each.

use std::collections::BTreeMap;

use pfo_protocol::{InstructionSample, Mhz, Rank, SamplePage, Stage, TrialRank, TrialResult};
use serde::Serialize;

use super::contenders::Contender;
use crate::failure::Failure;

#[derive(Serialize)]
struct RankProfile {
    rank: Rank,
    /// Seconds of each step.
    iter_time: Vec<f64>,
    /// Joules of each step.
    iter_energy: Vec<f64>,
    time_breakdown: Breakdown,
    energy_breakdown: Breakdown,
}

/// By kind of instruction, for each step what every one of them took.
type Breakdown = BTreeMap<&'static str, Vec<Vec<f64>>>;

#[derive(Serialize)]
struct RankSchedule {
    rank: Rank,
    power_states: Vec<Mhz>,
}

/// Some steps of every rank.
pub(super) struct Dump {
    profiles: Vec<RankProfile>,
    schedules: Vec<RankSchedule>,
}

impl Dump {
    /// What was measured of a plan, or of default clocks.
    pub(super) fn of(
        contender: Option<&Contender>,
        trial: &TrialResult,
        pages: &[SamplePage],
    ) -> Self {
        Self { profiles: profiles(trial, pages), schedules: schedules(contender, trial) }
    }
}

/// The files of these windows.
pub(super) fn files(windows: &[Dump]) -> impl Iterator<Item = Result<(String, String), Failure>> {
    windows.iter().enumerate().flat_map(|(number, window)| {
        [
            Ok((format!("{number}.prof.json"), json(&window.profiles))),
            Ok((format!("{number}.sched.json"), json(&window.schedules))),
        ]
    })
}

fn json<T: Serialize>(ranks: &[T]) -> String {
    // Numbers, names and lists of them always have a form.
    serde_json::to_string(ranks).unwrap_or_default()
}

fn profiles(trial: &TrialResult, pages: &[SamplePage]) -> Vec<RankProfile> {
    let all_j: f64 = trial.ranks.iter().filter_map(|rank| rank.energy_j).sum();
    let profile = |rank: &TrialRank| {
        let share = rank.energy_j.unwrap_or(0.0) / all_j;
        let of_rank = || {
            let own = pages.iter().filter(|page| page.rank == rank.rank);
            own.flat_map(|page| &page.samples)
        };
        let time_s = |sample: &InstructionSample| {
            Some(sample.ended_ns.saturating_sub(sample.began_ns) as f64 / 1e9)
        };
        RankProfile {
            rank: rank.rank,
            iter_time: trial.steps.iter().map(|step| step.time_s).collect(),
            iter_energy: trial
                .steps
                .iter()
                .map(|step| share * step.energy_j.unwrap_or(0.0))
                .collect(),
            time_breakdown: breakdown(trial, of_rank(), time_s),
            energy_breakdown: breakdown(trial, of_rank(), |sample| sample.counter_j),
        }
    };
    trial.ranks.iter().map(profile).collect()
}

/// A step has no figure unless all of them are known: the place in a list says which instruction it
/// is.
fn breakdown<'a>(
    trial: &TrialResult,
    samples: impl Iterator<Item = &'a InstructionSample>,
    figure: impl Fn(&InstructionSample) -> Option<f64>,
) -> Breakdown {
    let mut lists: BTreeMap<_, Vec<Option<Vec<f64>>>> = BTreeMap::new();
    let of_no_step = vec![Some(Vec::new()); trial.steps.len()];
    for kind in ["forward", "backward"] {
        lists.insert(kind, of_no_step.clone());
    }
    for sample in samples {
        let of_kind =
            lists.entry(sample.unit.instruction.name()).or_insert_with(|| of_no_step.clone());
        let step = sample.step.saturating_sub(trial.first_step) as usize;
        if let Some(list) = of_kind.get_mut(step) {
            *list = list.take().zip(figure(sample)).map(|(mut list, figure)| {
                list.push(figure);
                list
            });
        }
    }
    let known = |list: Option<Vec<f64>>| list.unwrap_or_default();
    let known = |lists: Vec<_>| lists.into_iter().map(known).collect();
    lists.into_iter().map(|(kind, lists)| (kind, known(lists))).collect()
}

fn schedules(contender: Option<&Contender>, trial: &TrialResult) -> Vec<RankSchedule> {
    let clocks = |stage: Stage| match contender {
        None => vec![Mhz(0)],
        Some(contender) => {
            contender.plan.stages.get(stage.index()).map_or_else(Vec::new, |stage| {
                stage.instructions.iter().map(|planned| planned.frequency_mhz).collect()
            })
        }
    };
    let schedule =
        |rank: &TrialRank| RankSchedule { rank: rank.rank, power_states: clocks(rank.stage) };
    trial.ranks.iter().map(schedule).collect()
}
