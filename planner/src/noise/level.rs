//! How noisy a table is: an estimate of the standard deviation of each row.
//!
//! It comes from the repeats, pooled over the table, because the few at one clock say too little; a
//! row that is the mean of many is more certain. Without repeats, the distances of rows from their
//! neighbours must do, although they take bends of the curve for noise.

use super::neighbours::scatter;
use crate::profile::Table;
use crate::profile::quantity::Quantity;

/// The least number of repeats, beyond the first ones, that give a scatter.
const ENOUGH: f64 = 3.0;

/// For each row of a table its standard deviation, as a share of the row; `None` if it is unknown.
pub(crate) fn level(table: Table, quantity: Quantity) -> Option<Vec<f64>> {
    let (mut squares, mut freedom) = (0.0, 0.0);
    for (row, repeats) in table.rows.iter().zip(table.repeats()) {
        if let Some(scatter) = quantity.scatter(row, &repeats) {
            let weight = f64::from(repeats.count) - 1.0;
            squares += weight * scatter * scatter;
            freedom += weight;
        }
    }
    if freedom < ENOUGH {
        let scatter = scatter(table.rows, quantity)?;
        return Some(vec![scatter; table.rows.len()]);
    }
    let of_one: f64 = squares / freedom;
    Some(table.counts().iter().map(|count| (of_one / count).sqrt()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    /// Twelve rows, every other 4 % too long, with what is said of their repeats.
    fn level_of(columns: &str, repeats: &str) -> Option<Vec<f64>> {
        let mut csv = format!("stage,instruction,frequency,time,energy{columns}\n");
        for index in 0..12 {
            let time_s = if index % 2 == 0 { 0.10 } else { 0.104 };
            csv += &format!("0,forward,{},{time_s},20{repeats}\n", 900 + 15 * index);
        }
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        level(profile.tables().next().unwrap(), Quantity::Time)
    }

    #[test]
    fn repeats_say_how_noisy_a_table_is_and_many_make_it_surer() {
        let level = level_of(",count,time_sd", ",16,0.004").unwrap();
        assert!(level.iter().all(|level| (level - 0.01).abs() < 0.0005), "{level:?}");
    }

    #[test]
    fn without_repeats_the_neighbours_do() {
        for (columns, repeats) in [("", ""), (",count", ",16"), (",count,time_sd", ",1,0.5")] {
            let level = level_of(columns, repeats).unwrap();
            assert!(level.iter().all(|level| (0.02..0.08).contains(level)), "{level:?}");
        }
    }
}
