//! Steady regimes, in which all operations of a kind run at the same clock.
//!
//! In the middle of a step all stages work at one pace, and every microbatch waits for the same.
//! There each stage can pick the clocks of least energy for that pace by itself. Where the pipeline
//! fills and drains, such a plan is poor.

use std::collections::BTreeMap;

use crate::choices::pareto::{Cost, falling, lower_hull};
use crate::choices::{Assignment, Choices, Packed};
use crate::progress::Progress;
use crate::step::network::Network;

/// A clock for each kind of operation of a stage.
struct Mix {
    /// Of all work of the stage.
    time_s: f64,
    effective_j: f64,
    choices: Vec<u32>,
}

/// The regimes of least energy for their pace that no mixture of two others beats, fastest first.
pub(crate) fn steady(network: &Network, choices: &Choices, progress: &Progress<'_>) -> Vec<Packed> {
    let stages = network.stages.iter();
    let mixes: Vec<Vec<Mix>> =
        stages.map(|operations| worthwhile(operations, choices, progress)).collect();
    let paces = lower_hull(falling(paces(&mixes), |&pace| pace), |&pace| pace);
    let regime = |(pace_s, _): Cost| {
        progress.go_on();
        let mut regime: Assignment =
            (0..network.len()).map(|operation| choices.fastest(operation)).collect();
        for (operations, mixes) in network.stages.iter().zip(&mixes) {
            let in_time = mixes.partition_point(|mix| mix.time_s <= pace_s);
            let Some(mix) = mixes[..in_time].last() else { continue };
            for &operation in operations {
                let (first, end) = choices.of(operation as usize);
                let own = mix.choices.iter().find(|choice| (first..end).contains(choice));
                regime[operation as usize] = own.copied().unwrap_or(first);
            }
        }
        choices.packed(&regime)
    };
    paces.into_iter().map(regime).collect()
}

/// The cost of all stages together at every pace that all can keep: seconds of the slowest, and
/// effective joules.
fn paces(mixes: &[Vec<Mix>]) -> Vec<Cost> {
    let mut changes: Vec<Cost> = Vec::new();
    for mixes in mixes {
        let mut before_j = 0.0;
        for mix in mixes {
            changes.push((mix.time_s, mix.effective_j - before_j));
            before_j = mix.effective_j;
        }
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let at_fastest_s = mixes.iter().filter_map(|mixes| Some(mixes.first()?.time_s));
    let first_s = at_fastest_s.fold(0.0, f64::max);
    let mut effective_j = 0.0;
    let paces = changes.into_iter().map(|(pace_s, change_j)| {
        effective_j += change_j;
        (pace_s, effective_j)
    });
    paces.filter(|&(pace_s, _)| pace_s >= first_s).collect()
}

/// The mixes of a stage, fastest first, that take less energy than every faster one.
fn worthwhile(operations: &[u32], choices: &Choices, progress: &Progress<'_>) -> Vec<Mix> {
    let mut kinds = BTreeMap::new();
    for &operation in operations {
        *kinds.entry(choices.of(operation as usize)).or_insert(0.0) += 1.0;
    }
    let mut mixes = vec![Mix { time_s: 0.0, effective_j: 0.0, choices: Vec::new() }];
    for ((first, end), count) in kinds {
        progress.go_on();
        let with_each = mixes.iter().flat_map(|mix| {
            (first..end).map(move |index| {
                let choice = choices.get(index);
                let time_s = mix.time_s + count * choice.time_s;
                (time_s, mix.effective_j + count * choice.effective_j, mix, index)
            })
        });
        let kept = falling(with_each, |&(time_s, effective_j, ..)| (time_s, effective_j));
        let kept = kept.into_iter().map(|(time_s, effective_j, mix, index)| {
            let choices = mix.choices.iter().copied().chain([index]).collect();
            Mix { time_s, effective_j, choices }
        });
        mixes = kept.collect();
    }
    mixes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choices::tradeoff::Tradeoffs;
    use crate::pipeline::Pipeline;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::unequal;
    use pfo_vocabulary::Watts;

    /// What a stage's share of a regime takes: seconds and effective joules.
    fn of_stage(operations: &[u32], regime: &[u32], choices: &Choices) -> (f64, f64) {
        let run = operations.iter().map(|&operation| choices.get(regime[operation as usize]));
        run.fold((0.0, 0.0), |(time_s, effective_j), choice| {
            (time_s + choice.time_s, effective_j + choice.effective_j)
        })
    }

    #[test]
    fn each_stage_takes_the_least_energy_possible_at_the_pace_of_the_slowest() {
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::new(&unequal(), schedule, 6).unwrap();
        let (network, choices) =
            (pipeline.network(), Choices::new(&Tradeoffs::new(&pipeline, &Watts(80.0).into())));
        let regimes = steady(network, &choices, &Progress::new(&|_| {}));
        assert!(regimes.len() > 1);
        for regime in regimes.iter().map(|regime| choices.all_unpacked(regime)) {
            let stages = network.stages.iter();
            let taken: Vec<_> = stages.map(|ops| of_stage(ops, &regime, &choices)).collect();
            let pace_s = taken.iter().map(|&(time_s, _)| time_s).fold(0.0, f64::max);
            for (operations, (_, effective_j)) in network.stages.iter().zip(taken) {
                let kinds = [operations[0], operations[operations.len() - 1]];
                let [forward, backward] = kinds.map(|operation| choices.of(operation as usize));
                for f in forward.0..forward.1 {
                    for b in backward.0..backward.1 {
                        let pair = [choices.get(f), choices.get(b)];
                        let time_s: f64 = pair.iter().map(|choice| 6.0 * choice.time_s).sum();
                        let pair_j: f64 = pair.iter().map(|choice| 6.0 * choice.effective_j).sum();
                        assert!(time_s > pace_s + 1e-9 || pair_j > effective_j - 1e-9);
                    }
                }
            }
        }
    }

    #[test]
    fn operations_of_one_kind_have_one_clock() {
        let pipeline = Pipeline::new(&unequal(), Schedule::GPipe, 5).unwrap();
        let choices = Choices::new(&Tradeoffs::new(&pipeline, &Watts(80.0).into()));
        for regime in steady(pipeline.network(), &choices, &Progress::new(&|_| {})) {
            let regime = choices.all_unpacked(&regime);
            for (operation, &choice) in regime.iter().enumerate() {
                let (first, end) = choices.of(operation);
                assert!((first..end).contains(&choice));
                let alike = (0..regime.len()).filter(|&other| choices.of(other) == (first, end));
                assert!(alike.into_iter().all(|other| regime[other] == choice));
            }
        }
    }
}
