//! What each kind of time draws, from how much of each there was between readings of the energy counter.
//!
//! A counter that is refreshed every 20 ms or 100 ms cannot tell the energy of an instruction of 5 ms, and
//! sharing out what lies between two readings by time would give an instruction of any length some of
//! its neighbour's power. But over many readings the instructions lie differently each time, and least
//! squares find the power that each must have drawn. Pure.

/// Kinds of time that are told apart. The memory for them grows with the square.
pub const MOST_KINDS: usize = 512;

/// Above this factor, noise of the readings is blown up so much that nothing is said.
const WORST_INFLATION: f64 = 1e6;

/// Keeps what cannot be told apart solvable; far below any inflation that is accepted.
const RIDGE: f64 = 1e-9;

/// A power and how far to trust it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// Watts.
    pub power_w: f64,
    /// Its standard error, in watts.
    pub error_w: f64,
}

/// Readings so far, as the sums that the solution takes.
#[derive(Clone, Debug, Default)]
pub struct Regression {
    /// Sums of products of seconds, lower triangle.
    products: Vec<Vec<f64>>,
    /// Sums of seconds times joules.
    moments: Vec<f64>,
    squares: f64,
    readings: u64,
}

impl Regression {
    /// Adds what the counter moved by between two readings, and the seconds of each kind between them.
    /// A kind may be given more than once.
    pub fn add(&mut self, seconds: &[(usize, f64)], energy_j: f64) {
        let kinds = seconds.iter().map(|(kind, _)| kind + 1).max().unwrap_or(0);
        while self.products.len() < kinds {
            self.products.push(vec![0.0; self.products.len() + 1]);
            self.moments.push(0.0);
        }
        for &(kind, s) in seconds {
            self.moments[kind] += s * energy_j;
            for &(other, t) in seconds.iter().filter(|(other, _)| *other <= kind) {
                self.products[kind][other] += s * t;
            }
        }
        self.squares += energy_j * energy_j;
        self.readings += 1;
    }

    /// The power of every kind, or none where the readings do not tell.
    #[must_use]
    pub fn powers(&self) -> Vec<Option<Power>> {
        let size = self.products.len();
        let present: Vec<_> = (0..size).filter(|&kind| self.products[kind][kind] > 0.0).collect();
        let mut powers = vec![None; size];
        let freedom = self.readings as f64 - present.len() as f64;
        if freedom < 1.0 {
            return powers;
        }
        // To the diagonal 1, so that rare kinds weigh as much as frequent ones in what is solvable.
        let scale = |kind: usize| self.products[kind][kind].sqrt();
        let scaled = |row: usize, column: usize| {
            let (i, j) = (present[row.max(column)], present[row.min(column)]);
            self.products[i][j] / (scale(i) * scale(j)) + if row == column { RIDGE } else { 0.0 }
        };
        let Some(inverse) = inverse(present.len(), scaled) else { return powers };
        let moment = |row: usize| self.moments[present[row]] / scale(present[row]);
        let solution: Vec<f64> = inverse
            .iter()
            .map(|row| row.iter().enumerate().map(|(j, factor)| factor * moment(j)).sum())
            .collect();
        let explained: f64 = solution.iter().enumerate().map(|(j, x)| x * moment(j)).sum();
        // Rounding leaves less than nothing where the readings fit exactly.
        let variance = (self.squares - explained).max(0.0) / freedom;
        for (row, &kind) in present.iter().enumerate() {
            let inflation = inverse[row][row];
            powers[kind] = (inflation < WORST_INFLATION).then(|| Power {
                power_w: solution[row] / scale(kind),
                error_w: (variance * inflation).sqrt() / scale(kind),
            });
        }
        powers
    }
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
            regression.add(&seconds, energy_j);
        }
        regression
    }

    #[test]
    fn kinds_that_always_come_in_the_same_proportion_are_not_told_apart() {
        let mut regression = Regression::default();
        (1..50)
            .for_each(|n| regression.add(&[(0, 0.01), (1, 0.02)], 5.0 + 0.001 * f64::from(n % 3)));
        assert_eq!(regression.powers(), [None, None]);
    }

    #[test]
    fn fewer_readings_than_kinds_tell_nothing() {
        assert_eq!(repeated(&[(0.003, 100.0), (0.007, 200.0)], 2).powers(), [None, None]);
        assert_eq!(Regression::default().powers(), []);
    }

    #[test]
    fn the_error_is_that_of_the_scatter() {
        let mut regression = Regression::default();
        // 100 W, read over 20 ms, off by 0.1 J one way or the other.
        for n in 0..400 {
            regression.add(&[(0, 0.02)], 2.0 + if n % 2 == 0 { 0.1 } else { -0.1 });
        }
        let power = regression.powers()[0].unwrap();
        assert!((power.power_w - 100.0).abs() < 1e-3, "{power:?}");
        assert!((power.error_w - 5.0 / 20.0).abs() < 1e-3, "{power:?}");
    }

    proptest! {
        #[test]
        fn the_power_of_each_instruction_is_found_however_short_it_is(
            instructions in prop::collection::vec((0.0011..0.050, 50.0..400.0), 1..5)
        ) {
            let powers = repeated(&instructions, 3000).powers();
            for (&(_, truth), found) in instructions.iter().zip(&powers) {
                // Lengths in a bad proportion to 20 ms may leave it open, but never wrong.
                if let Some(found) = found {
                    prop_assert!((found.power_w - truth).abs() < 0.01 * truth, "{found:?} {truth}");
                }
            }
        }
    }
}
