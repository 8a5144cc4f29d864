//! Stages that run the same layers, measured together.
//!
//! Equal layers have curves of equal shape, and GPUs of one model differ by a level: one is a
//! percent slower or draws a percent more at every clock. So tables that differ by a factor and by
//! noise measure one shape, each at its own level, and the mean of their shapes is what each would
//! say if it were measured as often as all of them together. Real steps of the curve are in all of
//! them, and stay.
//!
//! Whether noise is all that is between two tables shows in the order of the differences: those of
//! noise change from clock to clock by √2 of their size, those of other layers or of another power
//! limit hardly (von Neumann, Distribution of the ratio of the mean square successive difference to
//! the variance, 1941).

use pfo_vocabulary::{Instruction, Stage};

use super::neighbours::scatter;
use super::shape::ROUNDING;
use crate::profile::Profile;
use crate::profile::Table;
use crate::profile::measurement::Measurement;
use crate::profile::quantity::Quantity;
use crate::profile::repeats::Repeats;

/// A smaller table says too little about its shape.
const ENOUGH_ROWS: usize = 10;

/// Von Neumann's ratio of white noise over n rows is 2 ± 2/√n. Differences are taken for noise down
/// to this many standard deviations below.
const LIKELY: f64 = 2.5;

/// The scatter that a table shows by itself is uncertain by up to this factor.
const UNCERTAIN: f64 = 2.0;

/// The least change of a row that is worth making.
const WORTHWHILE: f64 = 0.002;

/// Gives the tables of stages that run the same layers their common shape.
pub(super) fn pool(profile: &mut Profile) {
    for pool in pools(profile) {
        if pool.most() >= WORTHWHILE {
            pool.apply(profile);
        }
    }
}

/// The pools of more than one stage.
fn pools(profile: &Profile) -> Vec<Pool> {
    let mut pools: Vec<Pool> = Vec::new();
    for table in profile.tables().filter(|table| table.rows.len() >= ENOUGH_ROWS) {
        let member = Member::of(table);
        match pools.iter_mut().find(|pool| pool.is_like(table, &member)) {
            Some(pool) => pool.members.push(member),
            None => {
                let rows = table.rows.to_vec();
                pools.push(Pool { instruction: table.instruction, rows, members: vec![member] });
            }
        }
    }
    pools.retain(|pool| pool.members.len() > 1);
    pools
}

/// A table, as logarithms: what is a factor becomes a difference.
struct Member {
    stage: Stage,
    /// How often each row was measured.
    counts: Vec<f64>,
    shapes: [Shape; 2],
}

/// Of one quantity, by row.
struct Shape {
    /// The mean of the logarithms.
    level: f64,
    /// Each row's logarithm without the level.
    above: Vec<f64>,
    /// The standard deviation of a row, as the table by itself shows it.
    scatter: f64,
}

impl Member {
    fn of(table: Table) -> Self {
        let shape = |quantity: Quantity| {
            let logarithms: Vec<f64> = table.values(quantity).iter().map(|v| v.ln()).collect();
            let level = mean(&logarithms);
            Shape {
                level,
                above: logarithms.iter().map(|value| value - level).collect(),
                scatter: scatter(table.rows, quantity).unwrap_or_default(),
            }
        };
        let shapes = Quantity::BOTH.map(shape);
        Self { stage: table.stage, counts: table.counts(), shapes }
    }
}

/// Tables of one shape.
struct Pool {
    instruction: Instruction,
    /// Those of the first stage, for their clocks.
    rows: Vec<Measurement>,
    members: Vec<Member>,
}

impl Pool {
    /// Whether noise is all that is between a table and these.
    fn is_like(&self, table: Table, member: &Member) -> bool {
        let clocks =
            |rows: &[Measurement]| -> Vec<_> { rows.iter().map(|r| r.frequency).collect() };
        let members = self.members.len() as f64;
        self.instruction == table.instruction
            && clocks(&self.rows) == clocks(table.rows)
            && (0..Quantity::BOTH.len()).all(|of| {
                let shape = &member.shapes[of];
                let pairs = shape.above.iter().zip(self.shape(of));
                let differences: Vec<f64> = pairs.map(|(a, b)| a - b).collect();
                is_noise(&differences, shape.scatter * (1.0 + 1.0 / members).sqrt())
            })
    }

    /// The common shape of a quantity.
    fn shape(&self, of: usize) -> Vec<f64> {
        let row = |row: usize| {
            let sum = |value: fn(&Shape, usize) -> f64| -> f64 {
                self.members.iter().map(|m| m.counts[row] * value(&m.shapes[of], row)).sum()
            };
            sum(|shape, row| shape.above[row]) / sum(|_, _| 1.0)
        };
        (0..self.rows.len()).map(row).collect()
    }

    /// The largest change of a row, as a share.
    fn most(&self) -> f64 {
        let of_quantity = |of: usize| {
            let shape = self.shape(of);
            let of_member = move |member: &Member| {
                let pairs = member.shapes[of].above.iter().zip(&shape);
                pairs.map(|(a, b)| (b - a).exp_m1().abs()).fold(0.0, f64::max)
            };
            self.members.iter().map(of_member).fold(0.0, f64::max)
        };
        of_quantity(0).max(of_quantity(1))
    }

    /// The standard deviation of a single measurement, as a share: what the rows of the members are
    /// off the common shape.
    fn deviation(&self, of: usize) -> f64 {
        let shape = self.shape(of);
        let squares = |member: &Member| -> f64 {
            let pairs = member.shapes[of].above.iter().zip(&shape).zip(&member.counts);
            pairs.map(|((a, b), count)| count * (a - b).powi(2)).sum()
        };
        let freedom = (self.members.len() - 1) * (self.rows.len() - 1);
        (self.members.iter().map(squares).sum::<f64>() / freedom as f64).sqrt()
    }

    /// Gives every member the common shape at its own level. Each row then counts as measured by
    /// all of them.
    fn apply(&self, profile: &mut Profile) {
        let [times, powers] = [0, 1].map(|of| self.shape(of));
        let [time_sd, power_sd] = [0, 1].map(|of| self.deviation(of));
        // What `Quantity::scatter` makes the scatter of power of.
        let energy_sd = (power_sd.powi(2) - time_sd.powi(2)).max(0.0).sqrt();
        for member in &self.members {
            let [time, power] = &member.shapes;
            let row = |(index, row): (usize, &Measurement)| {
                let time_s = (time.level + times[index]).exp();
                let energy_j = (power.level + powers[index]).exp() * time_s;
                let count: f64 = self.members.iter().map(|member| member.counts[index]).sum();
                let repeats = Repeats {
                    count: count as u32,
                    time_sd_s: Some(time_sd * time_s),
                    energy_sd_j: Some(energy_sd * energy_j),
                };
                (Measurement { time_s, energy_j, ..*row }, repeats)
            };
            let rows: Vec<_> = self.rows.iter().enumerate().map(row).collect();
            profile.replace(member.stage, self.instruction, rows);
        }
    }
}

/// Whether differences of one row after the other look like noise of about this standard deviation.
fn is_noise(differences: &[f64], scatter: f64) -> bool {
    let count = differences.len() as f64;
    let mean = mean(differences);
    let squares: f64 = differences.iter().map(|difference| (difference - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0)).sqrt();
    if deviation <= ROUNDING {
        return true;
    }
    let steps: f64 = differences.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum();
    steps / squares >= 2.0 - LIKELY * 2.0 / count.sqrt() && deviation <= UNCERTAIN * scatter
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use pfo_vocabulary::Mhz;

    /// Time and power of a stage at a clock.
    type Truth = fn(Stage, f64) -> (f64, f64);

    const LEVELS: [f64; 4] = [1.0, 1.02, 0.99, 1.01];

    /// Four stages of 30 clocks, measured once with an error of this share.
    fn measured(truth: Truth, error: f64, seed: u64) -> Profile {
        let mut random = Rng::with_seed(seed);
        // Nearly normal.
        let mut off = || 1.0 + error * ((0..12).map(|_| random.f64()).sum::<f64>() - 6.0);
        let mut rows = Vec::new();
        for (stage, level) in (0..).map(Stage).zip(LEVELS) {
            for mhz in (960..1410).step_by(15) {
                let (time_s, power_w) = truth(stage, f64::from(mhz) / 1410.0);
                let time_s = time_s * off();
                let energy_j = level * power_w * time_s * off();
                let frequency = Mhz(mhz);
                let row = Measurement { frequency, time_s, energy_j };
                rows.push((stage, Instruction::Forward, row));
            }
        }
        Profile::from_measurements(rows).unwrap()
    }

    fn smooth(_: Stage, clock: f64) -> (f64, f64) {
        (0.1 / clock, 100.0 + 250.0 * clock.powi(3))
    }

    /// Slower by a tenth from 1200 MHz on, as an A40 that runs into its power limit.
    fn stepped(_: Stage, clock: f64) -> (f64, f64) {
        let (time_s, power_w) = smooth(Stage(0), clock);
        if clock < 1200.0 / 1410.0 { (time_s, power_w) } else { (1.1 * time_s, power_w) }
    }

    /// The last stage has another layer, which waits for memory.
    fn other_last_layer(stage: Stage, clock: f64) -> (f64, f64) {
        let (time_s, power_w) = smooth(stage, clock);
        if stage == Stage(3) { (0.07 + 0.03 / clock, power_w) } else { (time_s, power_w) }
    }

    /// The last stage is the only one with the step.
    fn other_last_limit(stage: Stage, clock: f64) -> (f64, f64) {
        if stage == Stage(3) { stepped(stage, clock) } else { smooth(stage, clock) }
    }

    /// The root of the mean square of what powers are off the truth.
    fn error(profile: &Profile, truth: Truth) -> f64 {
        let rows: Vec<_> = profile.rows().collect();
        let squares = rows.iter().map(|(stage, _, row)| {
            let (_, power_w) = truth(*stage, f64::from(row.frequency.0) / 1410.0);
            (Quantity::Power.of(row) / (LEVELS[stage.index()] * power_w) - 1.0).powi(2)
        });
        (squares.sum::<f64>() / rows.len() as f64).sqrt()
    }

    #[test]
    fn equal_layers_share_their_shape_and_keep_their_level() {
        for (truth, seed) in [smooth as Truth, stepped].into_iter().zip(0..) {
            let measured = measured(truth, 0.02, seed);
            let mut pooled = measured.clone();
            pool(&mut pooled);
            let (before, after) = (error(&measured, truth), error(&pooled, truth));
            assert!(after < 0.65 * before, "{after} after {before}");
            let row = pooled.table(Stage(2), Instruction::Forward)[7];
            let repeats = pooled.repeats(Stage(2), Instruction::Forward, row.frequency);
            assert_eq!(repeats.count, 4);
            let scatter = Quantity::Time.scatter(&row, &repeats).unwrap();
            assert!((0.015..0.025).contains(&scatter), "{scatter}");
        }
    }

    #[test]
    fn a_step_that_all_stages_have_survives() {
        let mut profile = measured(stepped, 0.02, 1);
        pool(&mut profile);
        for stage in (0..4).map(Stage) {
            let at = |mhz| profile.at(stage, Instruction::Forward, Mhz(mhz)).unwrap().time_s;
            let step = at(1200) / at(1185) * (1200.0 / 1185.0);
            assert!((step / 1.1 - 1.0).abs() < 0.04, "{step}");
        }
    }

    #[test]
    fn other_layers_and_other_limits_keep_their_own_shape() {
        for (truth, seed) in [other_last_layer as Truth, other_last_limit].into_iter().zip(0..) {
            let measured = measured(truth, 0.01, seed);
            let mut pooled = measured.clone();
            pool(&mut pooled);
            let table = |profile: &Profile, stage| {
                profile.table(Stage(stage), Instruction::Forward).to_vec()
            };
            assert_eq!(table(&pooled, 3), table(&measured, 3));
            assert_ne!(table(&pooled, 0), table(&measured, 0));
        }
    }

    #[test]
    fn what_is_pooled_or_has_no_noise_stays_to_the_bit() {
        let clean = measured(smooth, 0.0, 0);
        let mut pooled = clean.clone();
        pool(&mut pooled);
        assert_eq!(pooled, clean);
        let mut once = measured(smooth, 0.03, 5);
        pool(&mut once);
        let mut twice = once.clone();
        pool(&mut twice);
        assert_eq!(twice, once);
    }
}
