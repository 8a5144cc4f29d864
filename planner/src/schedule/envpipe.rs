//! EnvPipe's schedule (Choi et al., USENIX ATC 2023), which its configuration calls "ours": 1F1B
//! with more forwards ahead of the first backward, as many as fit into its wait.
//!
//! Slow forwards may fill the time that the first gradient takes to come back: stage `s` of `N`
//! runs `r_s` more of them ahead than in 1F1B, where `r_s` is `N - s - 1` times the ratio of a
//! backward at the highest clock to a forward at the stage's cheapest clock. Memory and the number
//! of microbatches bound it, and no stage runs further ahead than the one that feeds it. Where
//! there are fewer microbatches than stages the original makes `r_s` negative and divides by zero;
//! here it is 0 then.

use pfo_vocabulary::{Instruction, Mhz, Stage};

use crate::error::PlanError;
use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::schedule::name::Schedule;
use crate::schedule::one_forward_one_backward::after_warm_up;
use crate::step::order::StageOrder;

/// `memory_limits` has the number of additional activations that each stage can keep: empty for no
/// limit, one number for all stages, or one for each.
///
/// # Errors
/// If there is another number of limits, or the profile lacks an instruction.
pub(super) fn orders(
    profile: &Profile,
    num_microbatches: u32,
    memory_limits: &[u32],
) -> Result<Vec<StageOrder>, PlanError> {
    let num_stages = profile.num_stages();
    let limits = match memory_limits {
        [] => vec![u32::MAX; usize::from(num_stages)],
        [one] => vec![*one; usize::from(num_stages)],
        each if each.len() == usize::from(num_stages) => each.to_vec(),
        other => {
            return Err(PlanError::BadArgument {
                name: "the number of memory limits",
                value: other.len().to_string(),
                expected: "one for all stages, or one for each",
            });
        }
    };
    let ratios: Vec<f64> =
        (0..num_stages).map(|s| ratio(profile, Stage(s))).collect::<Result<_, _>>()?;
    let additional = additional_forwards(&ratios, &limits, num_microbatches);
    let order = |(stage, additional)| {
        after_warm_up(u32::from(num_stages - stage) + additional, num_microbatches)
    };
    Ok((0..num_stages).zip(additional).map(order).collect())
}

/// A backward's time at its highest clock over a forward's at the clock of least energy.
fn ratio(profile: &Profile, stage: Stage) -> Result<f64, PlanError> {
    let missing = |instruction| PlanError::UnmeasuredInstruction {
        stage,
        instruction,
        schedule: Schedule::EnvPipe,
    };
    let forward = cheapest_clock(profile, stage)
        .and_then(|clock| profile.at(stage, Instruction::Forward, clock))
        .ok_or_else(|| missing(Instruction::Forward))?;
    let backward = profile.table(stage, Instruction::Backward).last();
    Ok(backward.ok_or_else(|| missing(Instruction::Backward))?.time_s / forward.time_s)
}

/// The bottom of EnvPipe's energy valley: the clock at which a stage's forward and backward
/// together take the least energy; the highest of several. EnvPipe measures whole steps, waits
/// included, which a profile of instructions does not have.
pub(crate) fn cheapest_clock(profile: &Profile, stage: Stage) -> Option<Mhz> {
    let both_j = |forward: &Measurement| {
        let backward = profile.at(stage, Instruction::Backward, forward.frequency)?;
        Some((forward.frequency, forward.energy_j + backward.energy_j))
    };
    let forwards = profile.table(stage, Instruction::Forward);
    let of_both = forwards.iter().rev().filter_map(both_j);
    // If no clock was measured for both, that of the forward alone.
    of_both.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(clock, _)| clock).or_else(|| {
        let least = forwards.iter().rev().min_by(|a, b| a.energy_j.total_cmp(&b.energy_j));
        least.map(|row| row.frequency)
    })
}

/// The number of forwards that each stage runs ahead of its first backward beyond those of 1F1B.
fn additional_forwards(ratios: &[f64], limits: &[u32], num_microbatches: u32) -> Vec<u32> {
    let num_stages = ratios.len() as u32;
    let mut additional: Vec<u32> = (0..num_stages)
        .zip(ratios.iter().zip(limits))
        .map(|(stage, (ratio, &limit))| {
            let later = num_stages - stage - 1;
            // A huge ratio saturates, and is bounded by the microbatches anyway.
            let fit = (ratio * f64::from(later)) as u32;
            fit.min(limit).min(num_microbatches.saturating_sub(later + 1))
        })
        .collect();
    for next in 1..additional.len() {
        let feeding = additional[next - 1];
        let has_forwards_left = feeding + num_stages - (next as u32 - 1) != num_microbatches;
        if feeding < additional[next] && has_forwards_left {
            additional[next] = feeding;
        }
    }
    additional
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::written::written;
    use crate::test_profiles::profile;

    fn additional(ratio: f64, limit: u32, num_microbatches: u32) -> Vec<u32> {
        additional_forwards(&[ratio; 4], &[limit; 4], num_microbatches)
    }

    #[test]
    fn the_vectors_of_the_reference_hold() {
        const NO_LIMIT: u32 = u32::MAX;
        assert_eq!(additional(0.9, NO_LIMIT, 8), [2, 1, 0, 0]);
        assert_eq!(additional(1.0, NO_LIMIT, 8), [3, 2, 1, 0]);
        assert_eq!(additional(40.0 / 26.0, NO_LIMIT, 8), [4, 3, 1, 0]);
        assert_eq!(additional(2.0, NO_LIMIT, 8), [4, 4, 2, 0]);
        assert_eq!(additional(2.5, NO_LIMIT, 8), [4, 5, 2, 0]);
        assert_eq!(additional(1.538, 0, 8), [0, 0, 0, 0]);
        assert_eq!(additional(1.538, 1, 8), [1, 1, 1, 0]);
        assert_eq!(additional(1.538, 2, 8), [2, 2, 1, 0]);
        assert_eq!(additional(2.0, NO_LIMIT, 4), [0, 1, 2, 0]);
    }

    #[test]
    fn fewer_microbatches_than_stages_leave_nothing_to_add() {
        assert_eq!(additional(2.0, u32::MAX, 2), [0, 0, 0, 0]);
    }

    /// Four stages whose forward takes 26 ms at its cheapest and whose backward takes 40 ms.
    fn four() -> Profile {
        let tables: [&[(f64, f64)]; 2] =
            [&[(0.020, 9.0), (0.026, 5.0)], &[(0.040, 15.0), (0.052, 11.0)]];
        profile(&[tables; 4])
    }

    #[test]
    fn four_stages_with_eight_microbatches_run_the_order_of_the_reference() {
        let orders = orders(&four(), 8, &[]).unwrap();
        let written: Vec<String> = orders.iter().map(|order| written(order)).collect();
        assert_eq!(
            written,
            [
                "F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7",
                "F0 F1 F2 F3 F4 F5 B0 F6 B1 F7 B2 B3 B4 B5 B6 B7",
                "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
                "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
            ]
        );
    }

    #[test]
    fn limits_may_differ_from_stage_to_stage_but_must_be_as_many() {
        let orders_with = |limits: &[u32]| orders(&four(), 8, limits);
        let warm_up = |order: &StageOrder| {
            order.iter().position(|unit| unit.instruction == Instruction::Backward)
        };
        let limited = orders_with(&[4, 2, 0, 0]).unwrap();
        let warm_ups: Vec<_> = limited.iter().filter_map(warm_up).collect();
        assert_eq!(warm_ups, [8, 5, 2, 1]);
        let message = orders_with(&[1, 2]).unwrap_err().to_string();
        assert!(message.contains("memory limits is 2"), "{message}");
    }
}
