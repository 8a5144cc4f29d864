//! The table of what lower clocks do to instructions, by model of GPU. Its sources are in the file.

use crate::profile::measurement::Measurement;
use pfo_vocabulary::Mhz;

/// The table.
const TABLE: &str = include_str!("curves.csv");

/// Which of a model's curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// That of the instructions that save least.
    Least,
    /// One between the two.
    Likely,
    /// That of the instructions that save most.
    Most,
}

/// Time and power by clock, all as shares of those at the highest clock, by falling clock.
#[derive(Debug)]
pub(super) struct Curve(Vec<[f64; 3]>);

impl Curve {
    /// The curve of a model, such as `NVIDIA A100-SXM4-40GB`, if the table has one.
    pub(super) fn of(gpu: &str, which: Which) -> Option<Self> {
        let named = match which {
            Which::Least => "least",
            Which::Likely => "likely",
            Which::Most => "most",
        };
        let words: Vec<&str> = gpu.split([' ', '-']).collect();
        let row = |line: &str| {
            let mut fields = line.split(',');
            let is_it = words.contains(&fields.next()?) && fields.next()? == named;
            let mut number = || fields.next()?.parse().ok();
            is_it.then(|| Some([number()?, number()?, number()?]))?
        };
        let rows: Vec<_> = TABLE.lines().filter_map(row).collect();
        (!rows.is_empty()).then_some(Self(rows))
    }

    /// What an instruction becomes at a clock; none where nothing is known.
    pub(super) fn at(&self, highest: Measurement, clock: Mhz) -> Option<Measurement> {
        let share = f64::from(clock.0) / f64::from(highest.frequency.0);
        let between = |pair: &[[f64; 3]]| {
            let &[[from, from_time, from_power], [to, to_time, to_power]] = pair else {
                return None;
            };
            let part = (from - share) / (from - to);
            let time = from_time + part * (to_time - from_time);
            let power = from_power + part * (to_power - from_power);
            (0.0..=1.0).contains(&part).then_some([time, power])
        };
        let [time, power] = self.0.windows(2).find_map(between)?;
        Some(Measurement {
            frequency: clock,
            time_s: highest.time_s * time,
            energy_j: highest.energy_j * time * power,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIGHEST: Measurement = Measurement { frequency: Mhz(1000), time_s: 2.0, energy_j: 800.0 };

    #[test]
    fn every_curve_of_the_table_is_whole_and_saves_more_than_the_one_before() {
        for gpu in ["NVIDIA A100-SXM4-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA A40"] {
            let curve = |which| Curve::of(gpu, which).unwrap();
            let [least, likely, most] = [Which::Least, Which::Likely, Which::Most].map(curve);
            for clock in (600..=1000).rev().step_by(10).map(Mhz) {
                let at = |curve: &Curve| curve.at(HIGHEST, clock).unwrap();
                let [least, likely, most] = [at(&least), at(&likely), at(&most)];
                assert!(most.time_s <= likely.time_s && likely.time_s <= least.time_s, "{clock}");
                assert!(most.energy_j <= likely.energy_j && likely.energy_j <= least.energy_j);
            }
        }
    }

    #[test]
    fn between_rows_is_a_line_and_below_the_last_one_nothing() {
        let curve = Curve::of("A100", Which::Likely).unwrap();
        let half_way = curve.at(HIGHEST, Mhz(975)).unwrap();
        assert!((half_way.time_s - 2.0 * 1.0025).abs() < 1e-9, "{half_way:?}");
        assert_eq!(curve.at(HIGHEST, Mhz(1000)), Some(HIGHEST));
        assert_eq!(curve.at(HIGHEST, Mhz(599)), None);
        assert!(Curve::of("NVIDIA H100 80GB HBM3", Which::Likely).is_none());
        assert!(Curve::of("NVIDIA A4000", Which::Likely).is_none(), "A40 is another model");
    }
}
