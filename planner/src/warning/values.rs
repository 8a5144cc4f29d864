//! Findings about measured values that contradict each other.

use crate::noise::{EXPLAINED, NOISY, Outlier, Smoothed, curve, level, outliers};
use crate::profile::Profile;
use crate::profile::Table;
use crate::profile::left_out::LeftOut;
use crate::profile::measurement::Measurement;
use crate::profile::median::median;
use crate::profile::quantity::Quantity;
use crate::warning::finding::{Finding, Warning};

/// The share by which a row may be off a curve of the right shape without a finding. Power limits
/// make times of published tables rise by up to 1.6 % with the clock.
const ORDINARY: f64 = 0.02;

/// An instruction of a pipeline takes milliseconds to some seconds. With times in ms and energies in mJ, its
/// power looks right: only its time gives the mistake away.
const LONG_S: f64 = 20.0;

/// No single GPU draws as much: GB300 has a limit of 1,400 W. A row that adds up several may.
const POWERFUL_W: f64 = 2000.0;

fn power_w(row: &Measurement) -> f64 {
    Quantity::Power.of(row)
}

impl Warning {
    pub(super) fn left_out(left_out: &LeftOut) -> Self {
        let LeftOut { stage, instruction, line, measured, median, repeats } = *left_out;
        let finding = Finding::LeftOut {
            line,
            frequency_mhz: measured.frequency,
            time_s: measured.time_s,
            energy_j: measured.energy_j,
            median_time_s: median.time_s,
            median_energy_j: median.energy_j,
            repeats,
        };
        Self { stage, instruction, finding }
    }
}

pub(super) fn warnings(measured: &Profile, smoothed: &[Smoothed]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for table @ Table { stage, instruction, rows, .. } in measured.tables() {
        let shortest_s = rows.iter().map(|row| row.time_s).fold(f64::INFINITY, f64::min);
        if shortest_s > LONG_S {
            let finding = Finding::Long { shortest_s };
            warnings.push(Warning { stage, instruction, finding });
        }
        let by_power = |a: &&Measurement, b: &&Measurement| power_w(a).total_cmp(&power_w(b));
        if let Some(row) = rows.iter().max_by(by_power).filter(|row| power_w(row) > POWERFUL_W) {
            let finding = Finding::Powerful { power_w: power_w(row), energy_j: row.energy_j };
            warnings.push(Warning { stage, instruction, finding });
        }
        for quantity in Quantity::BOTH {
            let is_here = |smoothed: &&Smoothed| {
                (smoothed.stage, smoothed.instruction, smoothed.quantity)
                    == (stage, instruction, quantity)
            };
            let findings = findings(table, quantity, smoothed.iter().find(is_here));
            let warning = |finding| Warning { stage, instruction, finding };
            warnings.extend(findings.into_iter().map(warning));
        }
    }
    warnings
}

fn findings(table: Table, quantity: Quantity, smoothed: Option<&Smoothed>) -> Vec<Finding> {
    let rows = table.rows;
    let outliers = outliers(rows, quantity);
    let finding = |outlier: &Outlier| Finding::Outlier {
        frequency_mhz: rows[outlier.index].frequency,
        quantity,
        measured: quantity.of(&rows[outlier.index]),
        expected: outlier.expected,
    };
    let mut findings: Vec<Finding> = outliers.iter().map(finding).collect();

    let level = level(table, quantity);
    let explained = |index: usize| level.as_ref().map_or(0.0, |level| EXPLAINED * level[index]);
    let curve = curve(table, quantity);
    let off = |index: usize| (curve[index] / quantity.of(&rows[index]) - 1.0).abs();
    let is_odd = |&index: &usize| {
        off(index) > ORDINARY.max(explained(index))
            && outliers.iter().all(|outlier| outlier.index != index)
    };
    let odd: Vec<usize> = (0..rows.len()).filter(is_odd).collect();
    if !odd.is_empty() {
        findings.push(Finding::NotMonotone {
            quantity,
            frequencies_mhz: odd.iter().map(|&index| rows[index].frequency).collect(),
            most: odd.iter().map(|&index| off(index)).fold(0.0, f64::max),
        });
    }

    let is_off = (0..rows.len()).any(|index| off(index) >= NOISY);
    let scatter = level.map(median);
    if let Some(&Smoothed { most, .. }) = smoothed {
        findings.push(Finding::Smoothed { quantity, most, scatter });
    } else if let Some(scatter) = scatter.filter(|&scatter| is_off && scatter >= NOISY) {
        findings.push(Finding::Noisy { quantity, scatter });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::warning::summary::summarised;

    /// The lines about a profile whose times and energies are this many times those of seconds and J.
    fn lines(scale: f64) -> Vec<String> {
        let mut csv = String::from("stage,instruction,frequency,time,energy\n");
        for (instruction, at_highest_s) in [("forward", 0.05), ("backward", 0.1)] {
            for mhz in [900.0, 1000.0, 1100.0, 1200.0, 1300.0, 1400.0] {
                let time_s = at_highest_s * 1400.0 / mhz * scale;
                csv += &format!("0,{instruction},{mhz},{time_s},{}\n", 200.0 * time_s);
            }
        }
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        summarised(&warnings(&profile, &[]))
    }

    #[test]
    fn watts_in_the_column_of_joules_are_asked_about() {
        let csv = |energy: f64| {
            format!("stage,instruction,frequency,time,energy\n0,forward,1400,0.05,{energy}\n")
        };
        let lines = |energy| {
            let profile = Profile::from_csv(csv(energy).as_bytes()).unwrap();
            summarised(&warnings(&profile, &[]))
        };
        assert_eq!(lines(20.0), [""; 0]);
        let [line] = &lines(360.0)[..] else { panic!("{:?}", lines(360.0)) };
        assert!(line.contains("draws 7200 W") && line.contains("if 360 are watts"), "{line}");
        assert!(line.contains("power instead of energy"), "{line}");
    }

    #[test]
    fn times_and_energies_in_thousandths_are_asked_about_and_those_in_units_are_not() {
        assert_eq!(lines(1.0), [""; 0]);
        assert_eq!(lines(100.0), [""; 0]);
        let [forward, backward] = &lines(1e3)[..] else { panic!("{:?}", lines(1e3)) };
        assert!(forward.starts_with("stage 0, forward: takes 50 s and more; if these are ms"));
        assert!(backward.contains("takes 100 s"), "{backward}");
    }
}
