//! How late an energy counter is: what a value shows ended some time before the value came.
//!
//! The counters of an H100 and an H200 were 14 ms late with a value every 100 ms (`sim/facts`). To take
//! the values for those of their own time gives instructions of 20 ms their neighbours' power. The work
//! of a job tells how late: what the GPU did until then explains the values best. Pure.

use crate::record::looks::{Move, seconds};
use crate::record::regression::{Power, Regression, SLIGHT, Solution};

/// A counter is late by at most half the time between two values. As many lengths are tried, and as
/// many between the best of them and its neighbours.
const LENGTHS: u32 = 25;
const BETWEEN: u32 = 8;

/// Twice the logarithm of how much more likely the values are with the best of the lengths than with
/// none. Noise alone gave one of the lengths 18 at most in 99 of 100 simulated trials, of up to 12
/// kinds of work; the counter of an H100 gave 220 in 13 s.
const LIKELIER: f64 = 20.0;

/// By which shares of the time between two values a counter may be late of which there are too few
/// values to tell: those known are by a seventh.
const POSSIBLE: [f64; 2] = [0.14, 0.28];

/// A counter whose values are late by an unknown time, which is the same for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Late {
    /// By how much; none until it was looked for.
    by_ns: Option<u64>,
    /// The powers if it was late, where the values are too few to tell.
    possible: Vec<Solution>,
    last: Option<Move>,
    found: Regression,
}

impl Late {
    /// Adds values in their order; the first ones tell how late all are.
    pub(crate) fn add(&mut self, moves: &[Move], usual_ns: u64) {
        let by_ns = self.by_ns.or_else(|| lateness_ns(moves, usual_ns)).unwrap_or_else(|| {
            let late = |share: f64| solution(moves, (share * usual_ns as f64) as u64);
            self.possible = POSSIBLE.map(late).to_vec();
            0
        });
        self.by_ns = Some(by_ns);
        if by_ns > 0 {
            let moves: Vec<_> = self.last.take().into_iter().chain(moves.iter().cloned()).collect();
            regress(&mut self.found, &moves, by_ns);
        }
        self.last = moves.last().cloned();
    }

    /// The powers, if the counter is late.
    pub(crate) fn solve(self) -> Option<Solution> {
        self.by_ns.filter(|by_ns| *by_ns > 0).map(|_| self.found.solve())
    }

    /// The powers of a counter that is in time, with the errors that it then has if the values are too
    /// few to tell that it is.
    pub(crate) fn doubted(&self, in_time: Solution) -> Solution {
        let doubted = |(kind, power): (usize, Option<Power>)| {
            let Power { power_w, error_w } = power?;
            let off_w = |late: &Solution| {
                let late = late.powers.get(kind).copied().flatten();
                (late.map_or(0.0, |late| late.power_w) - power_w).abs()
            };
            let off_w = self.possible.iter().map(off_w).fold(0.0, f64::max);
            Some(Power { power_w, error_w: error_w.hypot(off_w) })
        };
        let powers = in_time.powers.into_iter().enumerate().map(doubted).collect();
        Solution { powers, ..in_time }
    }
}

/// The powers if the counter is late by this time.
fn solution(moves: &[Move], by_ns: u64) -> Solution {
    let mut regression = Regression::default();
    regress(&mut regression, moves, by_ns);
    regression.solve()
}

/// By how much the counter is late: not at all, unless that explains the values far better. None if they
/// are too few to tell.
fn lateness_ns(moves: &[Move], usual_ns: u64) -> Option<u64> {
    let solution = |by_ns| solution(moves, by_ns);
    let in_time = solution(0);
    let mean_j = moves.iter().map(|change| change.energy_j).sum::<f64>() / moves.len() as f64;
    let in_time_j = in_time.unexplained_j?;
    if in_time_j <= SLIGHT * mean_j {
        return Some(0);
    }
    let best = |lengths_ns: &mut dyn Iterator<Item = f64>| {
        let late = lengths_ns.filter_map(|ns| Some((ns, solution(ns as u64).unexplained_j?)));
        late.min_by(|(_, one_j), (_, other_j)| one_j.total_cmp(other_j))
    };
    let step_ns = usual_ns as f64 / f64::from(2 * LENGTHS);
    let coarse = best(&mut (1..=LENGTHS).map(|length| f64::from(length) * step_ns));
    let gain = |late_j: f64| 2.0 * in_time.moves as f64 * (in_time_j / late_j).ln();
    let Some((near_ns, _)) = coarse.filter(|(_, late_j)| gain(*late_j) > LIKELIER) else {
        return Some(0);
    };
    let between = |part: u32| near_ns + (f64::from(part) / f64::from(BETWEEN) - 1.0) * step_ns;
    Some(best(&mut (1..2 * BETWEEN).map(between)).map_or(0, |(by_ns, _)| by_ns as u64))
}

/// Adds those moves before which it is known what the GPU did.
fn regress(regression: &mut Regression, moves: &[Move], by_ns: u64) {
    for pair in moves.windows(2) {
        let [before, change] = pair else { continue };
        let ([_, known_ns], [began_ns, ended_ns]) = (before.bounds_ns(), change.bounds_ns());
        let from_ns = began_ns.saturating_sub(by_ns);
        if known_ns == began_ns && before.bounds_ns()[0] <= from_ns {
            let pieces = before.pieces.iter().chain(&change.pieces);
            let until_ns = ended_ns.saturating_sub(by_ns);
            regression
                .add(seconds(pieces.map(|piece| piece.within(from_ns, until_ns))), change.energy_j);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;

    use super::*;
    use crate::record::looks::{Looks, Piece};

    const MS: u64 = 1_000_000;

    /// A GPU that draws 300 W in pieces of 13 ms and 80 W in pieces of 8 ms, whose counter has a
    /// value every 100 ms that is late by this much, and off by this much one way or the other.
    fn values(count: u64, late_ms: u64, off_j: f64) -> Vec<Move> {
        let power_w = |ms: u64| if ms % 21 < 13 { 300.0 } else { 80.0 };
        let drawn_j = |from: u64| (from..from + 100).map(|ms| power_w(ms) / 1e3).sum::<f64>();
        let piece = |ms: u64| Piece {
            kind: usize::from(ms % 21 >= 13),
            began_ns: ms * MS,
            ended_ns: (ms + 1) * MS,
        };
        let value = |value: u64| Move {
            pieces: (100 * value..100 * (value + 1)).map(piece).collect(),
            energy_j: drawn_j(100 * value - late_ms)
                + off_j * [1.0, -0.6, -0.4][value as usize % 3],
        };
        (1..=count).map(value).collect()
    }

    fn powers(moves: &[Move]) -> Option<Vec<f64>> {
        let mut late = Late::default();
        late.add(moves, 100 * MS);
        let powers = late.solve()?.powers;
        Some(powers.into_iter().map(|power| power.unwrap().power_w).collect())
    }

    #[test]
    fn powers_of_short_work_are_right_however_late_the_counter_is() {
        for late_ms in [2, 14, 30, 50] {
            let found = powers(&values(60, late_ms, 0.2)).unwrap();
            assert!((found[0] - 300.0).abs() < 6.0, "{late_ms} ms: {found:?}");
            assert!((found[1] - 80.0).abs() < 6.0, "{late_ms} ms: {found:?}");
        }
    }

    #[test]
    fn too_few_values_to_tell_have_an_error_that_covers_a_late_counter() {
        let in_doubt = |late_ms| {
            let mut looks = Looks::default();
            values(24, late_ms, 0.0).into_iter().for_each(|change| {
                looks.add(change.pieces, change.energy_j);
            });
            let powers = looks.solve().explained().powers;
            powers.into_iter().map(Option::unwrap).zip([300.0, 80.0]).collect::<Vec<_>>()
        };
        for (power, truth_w) in in_doubt(14) {
            let off_w = (power.power_w - truth_w).abs();
            assert!(off_w > 5.0 && off_w < 2.0 * power.error_w, "{power:?} of {truth_w}");
        }
        for (power, truth_w) in in_doubt(0) {
            assert!((power.power_w - truth_w).abs() < 0.1 && power.error_w > 5.0, "{power:?}");
        }
    }

    #[test]
    fn a_counter_in_time_is_not_called_late() {
        for off_j in [0.0, 0.2, 2.0] {
            assert_eq!(powers(&values(200, 0, off_j)), None, "{off_j}");
        }
    }

    #[test]
    fn all_values_are_as_late_as_the_first_ones() {
        let moves = values(300, 14, 0.2);
        let mut late = Late::default();
        for batch in moves.chunks(60) {
            late.add(batch, 100 * MS);
        }
        assert_eq!(late.solve().unwrap().moves, 299, "one has nothing before it");
    }

    #[test]
    fn a_value_before_which_nothing_is_known_is_left_out() {
        let mut moves = values(61, 14, 0.2);
        moves.remove(30);
        let mut late = Late::default();
        late.add(&moves, 100 * MS);
        assert_eq!(late.solve().unwrap().moves, 58);
    }

    /// What the GPU kit saw of short instructions of four kinds: the moves of the counter, at the
    /// times of its rhythm.
    fn measured(facts: &Value) -> Vec<Move> {
        let seen = &facts["parts"]["instructions"];
        let kinds = ["copy", "matmul", "spin"];
        let ns = |value: &Value| value.as_i64().unwrap().max(0).cast_unsigned();
        let (mut pieces, mut known_ns): (Vec<Piece>, _) = (Vec::new(), 0);
        for span in seen["load"]["spans"].as_array().unwrap() {
            let kind = kinds.iter().position(|kind| span[0] == **kind).unwrap();
            let (began_ns, ended_ns) = (ns(&span[1]), ns(&span[2]));
            pieces.push(Piece { kind: kinds.len(), began_ns: known_ns, ended_ns: began_ns });
            pieces.push(Piece { kind, began_ns, ended_ns });
            known_ns = ended_ns;
        }
        let changes = seen["readings"]["energy_mj"]["changes"].as_array().unwrap();
        let changes: Vec<_> = changes
            .iter()
            .map(|change| (ns(&change[0]), change[1].as_f64().unwrap() / 1e3))
            .filter(|(at_ns, _)| (1..known_ns).contains(at_ns))
            .collect();
        let period_ns = facts["laws"]["energy_counter"]["period_ms"].as_f64().unwrap() * 1e6;
        let number = |at_ns: u64| ((at_ns - changes[0].0) as f64 / period_ns).round();
        let off_ns = |(at_ns, _): &(u64, f64)| *at_ns as f64 - number(*at_ns) * period_ns;
        let first_ns = changes.iter().map(off_ns).sum::<f64>() / changes.len() as f64;
        let at_ns = |at_ns: u64| (first_ns + number(at_ns) * period_ns) as u64;
        let between = |pair: &[(u64, f64)]| {
            let (from_ns, until_ns) = (at_ns(pair[0].0), at_ns(pair[1].0));
            let inside = pieces.iter().map(|piece| piece.within(from_ns, until_ns));
            Move {
                pieces: inside.filter(|piece| piece.began_ns < piece.ended_ns).collect(),
                energy_j: pair[1].1 - pair[0].1,
            }
        };
        changes.windows(2).map(between).collect()
    }

    #[test]
    fn the_counters_of_an_h100_and_an_h200_are_as_late_as_the_kit_found() {
        for model in ["h100", "h200"] {
            let path = format!("{}/../sim/facts/nvidia-{model}.json", env!("CARGO_MANIFEST_DIR"));
            let facts: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
            let moves = measured(&facts);
            let by_ms = lateness_ns(&moves, 100 * MS).unwrap() / MS;
            assert!((12..=16).contains(&by_ms), "{model}: {by_ms} ms");
            let unexplained_j = |by_ns| {
                let mut regression = Regression::default();
                regress(&mut regression, &moves, by_ns);
                regression.solve().unexplained_j.unwrap()
            };
            let [late_j, in_time_j] = [by_ms * MS, 0].map(unexplained_j);
            assert!(late_j < 0.6 * in_time_j, "{model}: {late_j} {in_time_j}");
        }
    }
}
