//! Warnings for people: one line for all tables with the same finding.

use std::collections::BTreeSet;
use std::mem::{Discriminant, discriminant};

use pfo_vocabulary::Stage;

use crate::profile::quantity::Quantity;
use crate::warning::finding::{Finding, Warning};

/// One line for each kind of finding and instruction: its stages, and the worst finding.
pub fn summarised(warnings: &[Warning]) -> Vec<String> {
    let key = |warning: &Warning| (warning.instruction, kind(&warning.finding));
    let mut groups: Vec<Vec<&Warning>> = Vec::new();
    for warning in warnings {
        match groups.iter_mut().find(|group| key(group[0]) == key(warning)) {
            Some(group) => group.push(warning),
            None => groups.push(vec![warning]),
        }
    }
    groups.iter().filter_map(|group| line(group)).collect()
}

fn line(group: &[&Warning]) -> Option<String> {
    let by_size = |a: &&&Warning, b: &&&Warning| size(&a.finding).total_cmp(&size(&b.finding));
    // The first of several equal ones.
    let worst = group.iter().rev().max_by(by_size)?;
    let stages = stages(group.iter().map(|warning| warning.stage).collect());
    let differ = group.iter().any(|warning| warning.finding != worst.finding);
    let of = if differ { format!(" (the worst of {})", group.len()) } else { String::new() };
    Some(format!("{stages}, {}: {}{of}", worst.instruction, worst.finding))
}

/// Findings of one kind share a line.
fn kind(finding: &Finding) -> (Discriminant<Finding>, Option<Quantity>) {
    let quantity = match finding {
        Finding::Outlier { quantity, .. }
        | Finding::NotMonotone { quantity, .. }
        | Finding::Noisy { quantity, .. }
        | Finding::Smoothed { quantity, .. } => Some(*quantity),
        _ => None,
    };
    (discriminant(finding), quantity)
}

/// How bad a finding is, compared with others of its kind.
fn size(finding: &Finding) -> f64 {
    let off = |value: f64, expected: f64| (value / expected).ln().abs();
    match finding {
        Finding::LeftOut { time_s, energy_j, median_time_s, median_energy_j, .. } => {
            off(*time_s, *median_time_s).max(off(*energy_j, *median_energy_j))
        }
        Finding::Unheld { useful_mhz, .. } => -f64::from(useful_mhz.0),
        Finding::FewFrequencies { found } => -(*found as f64),
        Finding::ManyFrequencies { found, .. } => *found as f64,
        Finding::Powerful { power_w, .. } => *power_w,
        Finding::Gap { from_mhz, to_mhz } => f64::from(to_mhz.0 - from_mhz.0),
        Finding::NarrowRange { from_mhz, to_mhz, .. } => -f64::from(to_mhz.0 - from_mhz.0),
        Finding::Outlier { measured, expected, .. } => off(*measured, *expected),
        Finding::NotMonotone { most, .. } | Finding::Smoothed { most, .. } => *most,
        Finding::Noisy { scatter, .. } => *scatter,
        Finding::Long { shortest_s } => *shortest_s,
    }
}

/// Such as `stages 0-2, 5`.
fn stages(stages: BTreeSet<Stage>) -> String {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for Stage(stage) in stages {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == stage => *last = stage,
            _ => runs.push((stage, stage)),
        }
    }
    let several = runs.len() > 1 || runs.iter().any(|(first, last)| first != last);
    let runs =
        runs.iter().map(
            |(first, last)| {
                if first == last { first.to_string() } else { format!("{first}-{last}") }
            },
        );
    let runs: Vec<String> = runs.collect();
    format!("stage{} {}", if several { "s" } else { "" }, runs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfo_vocabulary::{Instruction, Mhz};

    fn noisy(stage: u16, quantity: Quantity, scatter: f64) -> Warning {
        let finding = Finding::Noisy { quantity, scatter };
        Warning { stage: Stage(stage), instruction: Instruction::Forward, finding }
    }

    fn gap(stage: u16, instruction: Instruction, to: u32) -> Warning {
        let finding = Finding::Gap { from_mhz: Mhz(900), to_mhz: Mhz(to) };
        Warning { stage: Stage(stage), instruction, finding }
    }

    #[test]
    fn what_stages_have_in_common_is_one_line_with_the_worst_of_it() {
        let warnings = [
            noisy(0, Quantity::Time, 0.02),
            noisy(1, Quantity::Time, 0.05),
            noisy(2, Quantity::Time, 0.01),
            noisy(4, Quantity::Time, 0.01),
            noisy(4, Quantity::Power, 0.03),
        ];
        assert_eq!(
            summarised(&warnings),
            [
                "stages 0-2, 4, forward: time scatters by 5.0 % (the worst of 4)",
                "stage 4, forward: power scatters by 3.0 %",
            ]
        );
    }

    #[test]
    fn equal_findings_have_no_worst_and_instructions_are_told_apart() {
        let (forward, backward) = (Instruction::Forward, Instruction::Backward);
        let warnings = [gap(3, forward, 960), gap(4, forward, 960), gap(3, backward, 990)];
        assert_eq!(
            summarised(&warnings),
            [
                "stages 3-4, forward: nothing was measured between 900 MHz and 960 MHz",
                "stage 3, backward: nothing was measured between 900 MHz and 990 MHz",
            ]
        );
        assert!(summarised(&[]).is_empty());
    }
}
