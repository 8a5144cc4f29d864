//! The clocks from which lowtime chooses for an instruction.
//!
//! Times are whole units, rounded down. Energies are those beyond the P2P-blocking power over the
//! rounded times.

use pfo_vocabulary::Watts;

use super::parameters::{Filter, Lowtime};
use crate::profile::measurement::Measurement;

/// This few candidates are attributed to noise, and the filter is repeated with [`TOLERANCE`].
const TOO_FEW: usize = 3;

/// When the filter is repeated, a clock is out only if another one takes less than this share of
/// both its time and its energy: 5 % are noise.
const TOLERANCE: f64 = 0.95;

/// A clock that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) units: u64,
    pub(super) effective_j: f64,
    pub(super) measured: Measurement,
}

impl Lowtime {
    /// A table's candidates, from fast to slow, each of another number of units.
    pub(super) fn candidates(&self, table: &[Measurement], p2p_power: Watts) -> Vec<Candidate> {
        let options: Vec<Candidate> = table
            .iter()
            .map(|&measured| {
                let units = self.units(measured.time_s);
                let waiting_j = p2p_power.0 * units as f64 * self.unit_time.seconds();
                Candidate { units, effective_j: measured.energy_j - waiting_j, measured }
            })
            .collect();
        let found = self.efficient(&options, 1.0);
        if found.len() > TOO_FEW { found } else { self.efficient(&options, TOLERANCE) }
    }

    /// The whole units in a time: the floor of the exact quotient, which a division would round.
    pub(super) fn units(&self, time_s: f64) -> u64 {
        let unit_s = self.unit_time.seconds();
        ((time_s - time_s % unit_s) / unit_s).round() as u64
    }

    /// The options that no other beats by that share in both time and energy; of several with the
    /// same units the one of most energy, which rounding changed least.
    fn efficient(&self, options: &[Candidate], share: f64) -> Vec<Candidate> {
        let cost_j = |option: &Candidate| match self.filter {
            Filter::Raw => option.measured.energy_j,
            Filter::Effective => option.effective_j,
        };
        let is_beaten = |option: &&Candidate| {
            let (time_s, most_j) = (share * option.measured.time_s, share * cost_j(option));
            options.iter().any(|o| o.measured.time_s < time_s && cost_j(o) < most_j)
        };
        let mut found: Vec<Candidate> =
            options.iter().filter(|option| !is_beaten(option)).copied().collect();
        found.sort_by(|a, b| {
            let energy = b.effective_j.total_cmp(&a.effective_j);
            let time = b.measured.time_s.total_cmp(&a.measured.time_s);
            a.units.cmp(&b.units).then(energy).then(time)
        });
        found.dedup_by_key(|option| option.units);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfo_vocabulary::Mhz;

    fn table(rows: &[(f64, f64)]) -> Vec<Measurement> {
        let row = |(index, &(time_s, energy_j)): (u32, &(f64, f64))| Measurement {
            frequency: Mhz(1400 - 10 * index),
            time_s,
            energy_j,
        };
        (0_u32..).zip(rows).map(row).collect()
    }

    fn clocks(filter: Filter, rows: &[(f64, f64)]) -> Vec<u32> {
        let lowtime = Lowtime { filter, ..Lowtime::default() };
        let found = lowtime.candidates(&table(rows), Watts(100.0));
        found.iter().map(|candidate| candidate.measured.frequency.0).collect()
    }

    /// The lowest two clocks take more energy than the one before, but less than waiting does.
    const BEYOND_LEAST: [(f64, f64); 7] = [
        (0.050, 20.0),
        (0.052, 18.0),
        (0.054, 17.0),
        (0.056, 16.5),
        (0.058, 16.3),
        (0.060, 16.4),
        (0.062, 16.55),
    ];

    #[test]
    fn slow_clocks_that_still_save_are_lost_by_the_raw_filter_only() {
        assert_eq!(clocks(Filter::Raw, &BEYOND_LEAST), [1400, 1390, 1380, 1370, 1360]);
        assert_eq!(
            clocks(Filter::Effective, &BEYOND_LEAST),
            [1400, 1390, 1380, 1370, 1360, 1350, 1340]
        );
    }

    #[test]
    fn of_clocks_of_one_unit_the_dearest_stays() {
        let rows = [(0.0501, 20.0), (0.0521, 19.0), (0.0528, 18.0), (0.0541, 17.0), (0.0561, 16.0)];
        assert_eq!(clocks(Filter::Raw, &rows), [1400, 1390, 1370, 1360]);
    }

    #[test]
    fn where_noise_leaves_three_clocks_others_within_five_percent_are_let_in() {
        let rows = [(0.050, 20.0), (0.052, 20.5), (0.054, 21.0), (0.056, 16.0), (0.070, 24.0)];
        assert_eq!(clocks(Filter::Raw, &rows), [1400, 1390, 1380, 1370]);
    }

    #[test]
    fn units_are_rounded_down_from_the_exact_quotient() {
        let lowtime = Lowtime::default();
        // As binary fractions, 0.062 is a hair less than 62 times 0.001.
        assert_eq!((lowtime.units(0.062), lowtime.units(0.0625)), (61, 62));
        assert_eq!((lowtime.units(0.0621), lowtime.units(0.0004)), (62, 0));
    }
}
