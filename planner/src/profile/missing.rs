//! What to make of a clock that some ranks of a stage did not measure, because a trial left them out or
//! replicas ran different clocks: the mean of the others would take a clock that only the fast ranks
//! measured for a fast clock. How much faster a rank is shows at the clocks that all of them measured. Where
//! these are fewer than two, nothing is made of it: `pfo-agent` has all replicas measure one clock, and
//! divides what each measures later by its level itself.

use std::collections::{BTreeMap, BTreeSet};

use pfo_vocabulary::Mhz;

use crate::profile::combine::{Lines, Measurer};
use crate::profile::repeats::Repeated;

/// Rounds of the fit. Ranks that share clocks with few others need many.
const ROUNDS: usize = 200;

/// Clocks that all ranks have to have measured.
const SHARED: usize = 2;

/// How much is to be made of the means of a clock, in time and in energy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    pub(crate) time: f64,
    pub(crate) energy: f64,
}

/// The scales of the clocks that some ranks did not measure.
pub(crate) fn scales(table: &Lines) -> BTreeMap<Mhz, Scale> {
    let all: BTreeSet<&Measurer> = table.values().flat_map(BTreeMap::keys).collect();
    let shared = table.values().filter(|measurers| measurers.len() == all.len()).count();
    if shared == table.len() || shared < SHARED {
        return BTreeMap::new();
    }
    let place: BTreeMap<&Measurer, usize> = all.iter().copied().zip(0..).collect();
    let cells = |of: &dyn Fn(Repeated) -> f64| {
        let clock = |measurers: &BTreeMap<Measurer, _>| -> Vec<(usize, f64)> {
            let cell = |(who, lines): (&Measurer, &Vec<_>)| {
                (place[who], of(Repeated::of(lines)).max(f64::MIN_POSITIVE).ln())
            };
            measurers.iter().map(cell).collect()
        };
        table.values().map(clock).collect::<Vec<_>>()
    };
    let (times, energies) = (cells(&|all| all.time.mean), cells(&|all| all.energy.mean));
    let scaled = [times, energies].map(|cells| scaled(&cells, all.len()));
    let [times, energies] = scaled;
    let scale = times.into_iter().zip(energies).map(|(time, energy)| Scale { time, energy });
    table.keys().copied().zip(scale).collect()
}

/// For each clock: the mean over all ranks by what that of its own ranks is, where the logarithm of each
/// value is that of its clock plus that of its rank.
fn scaled(clocks: &[Vec<(usize, f64)>], ranks: usize) -> Vec<f64> {
    let mut of_rank = vec![0.0; ranks];
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    for _ in 0..ROUNDS {
        let mut left = vec![Vec::new(); ranks];
        for clock in clocks {
            let own: Vec<_> = clock.iter().map(|&(rank, value)| value - of_rank[rank]).collect();
            let of_clock = mean(&own);
            clock.iter().for_each(|&(rank, value)| left[rank].push(value - of_clock));
        }
        of_rank = left.iter().map(|left| mean(left)).collect();
    }
    let factors: Vec<f64> = of_rank.iter().map(|of| of.exp()).collect();
    let of_all = mean(&factors);
    let of_clock = |clock: &Vec<(usize, f64)>| {
        if clock.len() == ranks {
            return 1.0;
        }
        of_all / mean(&clock.iter().map(|&(rank, _)| factors[rank]).collect::<Vec<_>>())
    };
    clocks.iter().map(of_clock).collect()
}

#[cfg(test)]
mod tests {
    use crate::profile::Profile;
    use crate::{Instruction, Mhz, Stage};

    /// Two ranks, of which the second one takes 1.4 times as long, and four clocks.
    fn profile(lacks: &[(u32, u32)]) -> Profile {
        let mut csv = "dp_rank,stage,instruction,frequency,time,energy\n".to_owned();
        for (rank, slower) in [(0, 1.0), (1, 1.4)] {
            for (mhz, time_s) in [(1410, 0.10), (1200, 0.11), (1005, 0.13), (900, 0.15)] {
                if !lacks.contains(&(rank, mhz)) {
                    let (time_s, energy_j) = (time_s * slower, 300.0 * time_s * slower);
                    csv += &format!("{rank},0,forward,{mhz},{time_s},{energy_j}\n");
                }
            }
        }
        Profile::from_csv(csv.as_bytes()).unwrap()
    }

    fn times(profile: &Profile) -> Vec<f64> {
        let table = profile.table(Stage(0), Instruction::Forward);
        table.iter().map(|row| (row.time_s * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn a_clock_that_only_the_fast_rank_measured_is_no_faster_for_that() {
        let whole = profile(&[]);
        for lacks in [vec![(1, 1005)], vec![(0, 1200)], vec![(1, 1005), (0, 1410)]] {
            let profile = profile(&lacks);
            assert_eq!(times(&profile), times(&whole), "{lacks:?}");
            let at = |profile: &Profile| {
                profile.at(Stage(0), Instruction::Forward, Mhz(1005)).unwrap().energy_j
            };
            assert!((at(&profile) / at(&whole) - 1.0).abs() < 1e-6, "{lacks:?}");
        }
    }

    #[test]
    fn ranks_that_share_one_clock_stay_as_they_were_measured() {
        let lacks = [(0, 1410), (0, 1200), (1, 1005)];
        assert_eq!(times(&profile(&lacks)), [0.18, 0.13, 0.154, 0.14]);
    }
}
