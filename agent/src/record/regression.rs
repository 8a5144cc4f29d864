//! What each kind of time draws, from how much of each there was between readings of the energy
//! counter.
//!
//! A counter that is refreshed every 20 ms or 100 ms does not show the energy of an instruction of
//! 5 ms. To divide what lies between two readings by time would give each instruction some of its
//! neighbour's power. Over many readings, however, the instructions lie differently each time, and
//! least squares find the power that each must have drawn. Pure.

use pfo_experiment::students_reach;

use crate::ledger::NORMAL_REACH;

/// The most kinds of time. Memory grows with their square.
pub(crate) const MOST_KINDS: usize = 512;

/// The largest factor by which a power may amplify the noise of the readings. Beyond it the power
/// is unknown.
const WORST_INFLATION: f64 = 1e6;

/// Keeps indistinguishable kinds solvable; far below any inflation that is accepted.
const RIDGE: f64 = 1e-9;

/// Moves of the counter that are kept until they are looked at together.
const MOST_FRESH: usize = 2048;

/// How often to look for moves that fit nothing, each time without those found before.
const ROUNDS: usize = 3;

/// A move fits nothing if it is this many times as far off as the median one.
const FAR_OFF: f64 = 7.0;

/// Where nearly all fit, being off by this share of the mean move is nothing.
pub(crate) const SLIGHT: f64 = 0.001;

/// At most one in this many moves may be left out. If more are far off, the powers are wrong, not
/// the moves.
const FEW: usize = 10;

/// This many more moves than kinds tell what is unexplained within a seventh (1 / √(2 · 24), the
/// standard error of a standard deviation).
const LEAST_FREEDOM: u64 = 24;

/// From here on Student's interval is that of a known variance, within a hundredth.
const MUCH_FREEDOM: f64 = 200.0;

/// A power and how far to trust it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Power {
    pub(crate) power_w: f64,
    /// Its standard error; that of few values is larger by as much as Student's interval is.
    pub(crate) error_w: f64,
}

/// What the counter moved by between two readings, and the seconds of each kind between them.
#[derive(Clone, Debug)]
struct Move {
    seconds: Vec<(usize, f64)>,
    energy_j: f64,
}

/// All moves of a counter so far.
///
/// A few of them fit nothing: a thread was held up between an event and its time stamp. Those far
/// off what the others show are left out, if they are few.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regression {
    sums: Sums,
    /// What is not in the sums yet.
    fresh: Vec<Move>,
    strays: u64,
}

/// What all moves together show.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Solution {
    /// The power of every kind; none where the moves do not determine it.
    pub(crate) powers: Vec<Option<Power>>,
    /// How many moves determined it.
    pub(crate) moves: u64,
    /// How many were left out.
    pub(crate) strays: u64,
    /// The standard deviation of what the powers leave unexplained of a move, in joules; none of so
    /// few moves that it tells nothing.
    pub(crate) unexplained_j: Option<f64>,
}

impl Regression {
    /// Adds what the counter moved by between two readings, and the seconds of each kind between
    /// them.
    pub(crate) fn add(&mut self, seconds: Vec<(usize, f64)>, energy_j: f64) {
        self.fresh.push(Move { seconds, energy_j });
        if self.fresh.len() >= MOST_FRESH {
            self.take_in_fresh();
        }
    }

    /// Solves for the powers.
    pub(crate) fn solve(mut self) -> Solution {
        self.take_in_fresh();
        let (powers, unexplained_j) = self.sums.solve();
        let Self { sums: Sums { moves, .. }, strays, .. } = self;
        let least = LEAST_FREEDOM.saturating_add(powers.len() as u64);
        let unexplained_j = unexplained_j.filter(|_| moves.saturating_add(strays) >= least);
        Solution { powers, moves, strays, unexplained_j }
    }

    fn take_in_fresh(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        let with = |strays: &[bool]| {
            let mut sums = self.sums.clone();
            let fitting = fresh.iter().zip(strays).filter(|(_, stray)| !**stray);
            fitting.for_each(|(change, _)| sums.add(&change.seconds, change.energy_j));
            sums
        };
        let mut strays = vec![false; fresh.len()];
        for _ in 0..ROUNDS {
            strays = find_strays(&fresh, &with(&strays).solve().0);
        }
        self.sums = with(&strays);
        let count = strays.iter().filter(|stray| **stray).count() as u64;
        self.strays = self.strays.saturating_add(count);
    }
}

/// Marks the moves that are far off what these powers make of them; none if they are many.
fn find_strays(moves: &[Move], powers: &[Option<Power>]) -> Vec<bool> {
    let off_j = |change: &Move| {
        let power = |kind: usize| powers.get(kind).copied().flatten();
        let explained = |&(kind, s): &(usize, f64)| Some(power(kind)?.power_w * s);
        let explained_j: Option<f64> = change.seconds.iter().map(explained).sum();
        explained_j.map_or(0.0, |explained_j| (change.energy_j - explained_j).abs())
    };
    let off_j: Vec<_> = moves.iter().map(off_j).collect();
    let mean_j = moves.iter().map(|change| change.energy_j).sum::<f64>() / moves.len() as f64;
    let mut sorted = off_j.clone();
    sorted.sort_by(f64::total_cmp);
    let usual_j = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
    let limit_j = FAR_OFF * usual_j.max(SLIGHT * mean_j);
    let strays: Vec<_> = off_j.iter().map(|off_j| *off_j > limit_j).collect();
    let count = strays.iter().filter(|stray| **stray).count();
    if count > moves.len() / FEW { vec![false; moves.len()] } else { strays }
}

/// Moves as the sums that the solution takes.
#[derive(Clone, Debug, Default)]
struct Sums {
    /// Sums of products of seconds, lower triangle.
    products: Vec<Vec<f64>>,
    /// Sums of seconds times joules.
    moments: Vec<f64>,
    squares: f64,
    moves: u64,
}

impl Sums {
    /// A kind may be given more than once.
    fn add(&mut self, seconds: &[(usize, f64)], energy_j: f64) {
        let kinds = seconds.iter().map(|(kind, _)| kind.saturating_add(1)).max().unwrap_or(0);
        while self.products.len() < kinds {
            self.products.push(vec![0.0; self.products.len().saturating_add(1)]);
            self.moments.push(0.0);
        }
        for &(kind, s) in seconds {
            self.moments[kind] += s * energy_j;
            for &(other, t) in seconds.iter().filter(|(other, _)| *other <= kind) {
                self.products[kind][other] += s * t;
            }
        }
        self.squares += energy_j * energy_j;
        self.moves = self.moves.saturating_add(1);
    }

    /// The powers, and the standard deviation of what they leave unexplained of a move.
    fn solve(&self) -> (Vec<Option<Power>>, Option<f64>) {
        let size = self.products.len();
        let present: Vec<_> = (0..size).filter(|&kind| self.products[kind][kind] > 0.0).collect();
        let mut powers = vec![None; size];
        let freedom = self.moves as f64 - present.len() as f64;
        if freedom < 1.0 {
            return (powers, None);
        }
        // To the diagonal 1, so that rare kinds weigh as much as frequent ones in what is solvable.
        let scale = |kind: usize| self.products[kind][kind].sqrt();
        let scaled = |row: usize, column: usize| {
            let (i, j) = (present[row.max(column)], present[row.min(column)]);
            self.products[i][j] / (scale(i) * scale(j)) + if row == column { RIDGE } else { 0.0 }
        };
        let Some(inverse) = inverse(present.len(), scaled) else { return (powers, None) };
        let moment = |row: usize| self.moments[present[row]] / scale(present[row]);
        let solution: Vec<f64> = inverse
            .iter()
            .map(|row| row.iter().enumerate().map(|(j, factor)| factor * moment(j)).sum())
            .collect();
        let explained: f64 = solution.iter().enumerate().map(|(j, x)| x * moment(j)).sum();
        // Rounding leaves less than nothing where the readings fit exactly.
        let variance = (self.squares - explained).max(0.0) / freedom;
        // Of few moves, what is left unexplained tells little of how much usually is.
        let error = variance.sqrt() * widened(freedom);
        for (row, &kind) in present.iter().enumerate() {
            let inflation = inverse[row][row];
            powers[kind] = (inflation < WORST_INFLATION).then(|| Power {
                power_w: solution[row] / scale(kind),
                error_w: error * inflation.sqrt() / scale(kind),
            });
        }
        (powers, Some(variance.sqrt()))
    }
}

/// How much further Student's interval reaches than that of a known variance.
fn widened(freedom: f64) -> f64 {
    let reach = |freedom| students_reach(1.0, freedom).filter(|reach| reach.is_finite());
    if freedom > MUCH_FREEDOM { 1.0 } else { reach(freedom).map_or(1.0, |of| of / NORMAL_REACH) }
}

/// The inverse of a symmetric positive definite matrix, through its Cholesky factor.
fn inverse(size: usize, of: impl Fn(usize, usize) -> f64) -> Option<Vec<Vec<f64>>> {
    let mut factor = vec![vec![0.0; size]; size];
    for row in 0..size {
        for column in 0..=row {
            let known: f64 = (0..column).map(|k| factor[row][k] * factor[column][k]).sum();
            let rest = of(row, column) - known;
            factor[row][column] = match row == column {
                true if rest <= 0.0 => return None,
                true => rest.sqrt(),
                false => rest / factor[column][column],
            };
        }
    }
    // Column by column, the inverse of the factor.
    let mut columns = vec![vec![0.0; size]; size];
    for (number, column) in columns.iter_mut().enumerate() {
        for row in number..size {
            let known: f64 = (number..row).map(|k| factor[row][k] * column[k]).sum();
            let unit = if row == number { 1.0 } else { 0.0 };
            column[row] = (unit - known) / factor[row][row];
        }
    }
    let product =
        |i: usize, j: usize| (i.max(j)..size).map(|k| columns[i][k] * columns[j][k]).sum::<f64>();
    Some((0..size).map(|i| (0..size).map(|j| product(i, j)).collect()).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Readings every 20 ms of a rank that repeats instructions of these lengths and powers.
    fn repeated(instructions: &[(f64, f64)], readings: usize) -> Regression {
        let mut regression = Regression::default();
        let (mut kind, mut left_s) = (0, instructions[0].0);
        for _ in 0..readings {
            let (mut open_s, mut seconds, mut energy_j) = (0.020, Vec::new(), 0.0);
            while open_s > 0.0 {
                let s = left_s.min(open_s);
                seconds.push((kind, s));
                energy_j += instructions[kind].1 * s;
                (open_s, left_s) = (open_s - s, left_s - s);
                if left_s <= 0.0 {
                    kind = (kind + 1) % instructions.len();
                    left_s = instructions[kind].0;
                }
            }
            regression.add(seconds, energy_j);
        }
        regression
    }

    #[test]
    fn the_interval_of_few_values_holds_the_truth_as_often_as_that_of_many() {
        let mut state = 1_u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        for moves in [3, 4, 6, 40] {
            let mut held = 0;
            for _ in 0..2_000 {
                let mut regression = Regression::default();
                for _ in 0..moves {
                    let seconds = vec![(0, 0.02 + 0.05 * draw()), (1, 0.02 + 0.05 * draw())];
                    let energy_j: f64 = seconds.iter().map(|(_, s)| 300.0 * s).sum();
                    let noise_j = (0..12).map(|_| draw()).sum::<f64>() - 6.0;
                    regression.add(seconds, energy_j + noise_j);
                }
                let power = regression.solve().powers[0].unwrap();
                held += u32::from((power.power_w - 300.0).abs() <= NORMAL_REACH * power.error_w);
            }
            assert!((1_880..=1_920).contains(&held), "{moves} values: {held} of 2,000");
        }
    }

    #[test]
    fn kinds_that_always_come_in_the_same_proportion_are_not_told_apart() {
        let mut regression = Regression::default();
        (1..50).for_each(|n| {
            regression.add(vec![(0, 0.01), (1, 0.02)], 5.0 + 0.001 * f64::from(n % 3));
        });
        assert_eq!(regression.solve().powers, [None, None]);
    }

    #[test]
    fn fewer_readings_than_kinds_tell_nothing() {
        assert_eq!(repeated(&[(0.003, 100.0), (0.007, 200.0)], 2).solve().powers, [None, None]);
        assert_eq!(Regression::default().solve().powers, []);
    }

    #[test]
    fn the_error_is_that_of_the_scatter() {
        let mut regression = Regression::default();
        // 100 W, read over 20 ms, off by 0.1 J one way or the other.
        for n in 0..400 {
            regression.add(vec![(0, 0.02)], 2.0 + if n % 2 == 0 { 0.1 } else { -0.1 });
        }
        let power = regression.solve().powers[0].unwrap();
        assert!((power.power_w - 100.0).abs() < 1e-3, "{power:?}");
        assert!((power.error_w - 5.0 / 20.0).abs() < 1e-3, "{power:?}");
    }

    #[test]
    fn a_few_moves_that_fit_nothing_are_left_out() {
        let instructions = [(0.0037, 100.0), (0.0071, 300.0)];
        let mut regression = repeated(&instructions, 3000);
        for n in 0..100 {
            regression.add(vec![(n % 2, 0.02)], 20.0);
        }
        let solution = regression.solve();
        assert!((100..110).contains(&solution.strays), "{solution:?}");
        for (power, (_, truth)) in solution.powers.iter().zip(instructions) {
            assert!((power.unwrap().power_w / truth - 1.0).abs() < 0.002, "{power:?} {truth}");
        }
    }

    #[test]
    fn a_kind_that_is_in_strays_alone_is_not_known() {
        let mut regression = Regression::default();
        (0..100)
            .for_each(|n| regression.add(vec![(0, 0.02)], if n % 2 == 0 { 2.0 } else { 2.001 }));
        regression.add(vec![(0, 0.02), (1, 0.001)], 50.0);
        regression.add(vec![(0, 0.02), (1, 0.001)], 2.0);
        let solution = regression.solve();
        assert!((solution.powers[0].unwrap().power_w - 100.0).abs() < 1.0, "{solution:?}");
        assert_eq!(solution.moves + solution.strays, 102);
    }

    #[test]
    fn many_moves_that_do_not_fit_the_others_are_not_left_out() {
        let mut regression = Regression::default();
        for n in 0..1000 {
            regression.add(vec![(0, 0.02)], if n % 5 == 0 { 10.0 } else { 2.0 });
        }
        assert!((regression.solve().powers[0].unwrap().power_w - 180.0).abs() < 0.1);
    }

    proptest! {
        #[test]
        fn the_power_of_each_instruction_is_found_however_short_it_is(
            instructions in prop::collection::vec((0.0011..0.050, 50.0..400.0), 1..5)
        ) {
            let powers = repeated(&instructions, 3000).solve().powers;
            for (&(_, truth), found) in instructions.iter().zip(&powers) {
                // Lengths in a bad proportion to 20 ms may leave it open, but never wrong.
                if let Some(found) = found {
                    prop_assert!((found.power_w - truth).abs() < 0.01 * truth, "{found:?} {truth}");
                }
            }
        }
    }
}
