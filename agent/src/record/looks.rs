//! When an energy counter looks: at all times, or for a part of the time between two values, which it
//! takes for the whole ("Part-time power measurements", arXiv 2312.02741). Pure.
//!
//! The work of a job tells which. Each kind of work draws its own power, and so either what the GPU
//! did in all of the time between two values explains how much they differ, or what it did in the
//! part in which the counter looked, or what it did a little earlier (`late.rs`).

use crate::record::late::Late;
use crate::record::regression::{Regression, Solution};

/// Parts in which a counter may look, and when they may begin, as shares of the time between two
/// values.
const PARTS: [Part; 7] = [
    Part { share: 0.25, from: 0.0 },
    Part { share: 0.25, from: 0.25 },
    Part { share: 0.25, from: 0.5 },
    Part { share: 0.25, from: 0.75 },
    Part { share: 0.5, from: 0.0 },
    Part { share: 0.5, from: 0.25 },
    Part { share: 0.5, from: 0.5 },
];

/// A part explains a counter if it leaves this share, at most, of what all of the time leaves
/// unexplained.
const BETTER: f64 = 0.7;

/// Among more kinds of work than this, no part is looked for.
const MOST_KINDS: usize = 64;

/// Values that wait until it is known how far apart they usually are, and the pieces between them.
const MOST_WAITING: usize = 256;
const MOST_WAITING_PIECES: usize = 1 << 14;

/// Two values that are this many usual times apart tell nothing of a part.
const FAR_APART: f64 = 8.5;

/// A part of the time between two values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) share: f64,
    from: f64,
}

/// A piece of time that a GPU spent on one kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) kind: usize,
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
}

impl Piece {
    /// What of it lies between two times.
    pub(crate) fn within(&self, from_ns: u64, until_ns: u64) -> Self {
        let began_ns = self.began_ns.max(from_ns);
        Self { began_ns, ended_ns: self.ended_ns.min(until_ns).max(began_ns), ..*self }
    }
}

/// What a counter moved by between two values, and what its GPU did meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) energy_j: f64,
}

impl Move {
    pub(crate) fn bounds_ns(&self) -> [u64; 2] {
        let began_ns = self.pieces.first().map_or(0, |piece| piece.began_ns);
        [began_ns, self.pieces.last().map_or(began_ns, |piece| piece.ended_ns)]
    }

    fn length_ns(&self) -> u64 {
        let [began_ns, ended_ns] = self.bounds_ns();
        ended_ns.saturating_sub(began_ns)
    }

    /// The seconds of each kind of work, if the counter looks in this part of each period, and takes
    /// what it sees for the whole. The move is `periods` long.
    fn seconds_in(&self, part: Part, periods: u32) -> Vec<(usize, f64)> {
        let ([began_ns, _], length_ns) = (self.bounds_ns(), self.length_ns() as f64);
        let at =
            |period: f64| began_ns.saturating_add((period / f64::from(periods) * length_ns) as u64);
        let looks = |period: u32| {
            let from = f64::from(period) + part.from;
            [at(from), at(from + part.share)]
        };
        let seen_ns = |piece: &Piece| {
            let within = |[from_ns, to_ns]: [u64; 2]| {
                piece.ended_ns.min(to_ns).saturating_sub(piece.began_ns.max(from_ns))
            };
            (0..periods).map(|period| within(looks(period))).sum::<u64>()
        };
        let seen = self.pieces.iter().map(|piece| (piece.kind, seen_ns(piece)));
        add_up(seen.map(|(kind, ns)| (kind, ns as f64 / 1e9 / part.share)))
    }
}

/// What each kind of work draws, by whenever the counter may look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Looks {
    whole: Regression,
    late: Late,
    parts: [Regression; PARTS.len()],
    waiting: Vec<Move>,
    waiting_pieces: usize,
    /// Whether there were too many kinds of work for the parts.
    is_wide: bool,
}

/// What the values of a counter show.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shown {
    /// If it looks at all times.
    pub(crate) whole: Solution,
    /// If it does, and its values are late; none if they are in time.
    pub(crate) late: Option<Solution>,
    /// If it looks in a part, that which leaves least unexplained; none if there are too few values.
    pub(crate) by_part: Option<(Part, Solution)>,
}

impl Looks {
    /// Adds what the counter moved by between two values, and the pieces of time that lie between
    /// them, in their order.
    pub(crate) fn add(&mut self, pieces: Vec<Piece>, energy_j: f64) {
        if pieces.is_empty() {
            return;
        }
        self.whole.add(seconds(pieces.iter().copied()), energy_j);
        self.is_wide |= pieces.iter().any(|piece| piece.kind >= MOST_KINDS);
        if self.is_wide {
            (self.late, self.parts) = Default::default();
            (self.waiting, self.waiting_pieces) = (Vec::new(), 0);
            return;
        }
        self.waiting_pieces = self.waiting_pieces.saturating_add(pieces.len());
        self.waiting.push(Move { pieces, energy_j });
        if self.waiting.len() >= MOST_WAITING || self.waiting_pieces >= MOST_WAITING_PIECES {
            self.take_in_waiting();
        }
    }

    /// Takes in what waits. Where a value was missed, the counter looked once in each of the times
    /// that are usual between two.
    fn take_in_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_pieces = 0;
        let mut lengths_ns: Vec<_> = waiting.iter().map(Move::length_ns).collect();
        lengths_ns.sort_unstable();
        let usual_ns = lengths_ns.get(lengths_ns.len() / 2).copied().unwrap_or_default().max(1);
        self.late.add(&waiting, usual_ns);
        for change in waiting {
            let apart = change.length_ns() as f64 / usual_ns as f64;
            if apart < FAR_APART {
                let periods = apart.round().max(1.0) as u32;
                for (part, regression) in PARTS.into_iter().zip(&mut self.parts) {
                    regression.add(change.seconds_in(part, periods), change.energy_j);
                }
            }
        }
    }

    /// Solves for the powers.
    pub(crate) fn solve(mut self) -> Shown {
        self.take_in_waiting();
        let solve = |(part, regression): (Part, Regression)| {
            let solution = regression.solve();
            Some((solution.unexplained_j?, part, solution))
        };
        let best = PARTS.into_iter().zip(self.parts).filter_map(solve);
        let best = best.min_by(|(one_j, ..), (other_j, ..)| one_j.total_cmp(other_j));
        let by_part = best.map(|(_, part, solution)| (part, solution));
        let whole = self.late.doubted(self.whole.solve());
        Shown { whole, late: self.late.solve(), by_part }
    }
}

impl Shown {
    /// The explanation that holds: that of all of the time, late or not, unless a part explains the
    /// values far better.
    pub(crate) fn explained(self) -> Solution {
        let Self { whole, late, by_part } = self;
        let whole = late.unwrap_or(whole);
        let is_better = |part: &Solution| {
            let unexplained_j = part.unexplained_j.zip(whole.unexplained_j);
            unexplained_j.is_some_and(|(part_j, whole_j)| part_j < BETTER * whole_j)
        };
        match by_part {
            Some((_, part)) if is_better(&part) => part,
            _ => whole,
        }
    }
}

/// The seconds of each kind in all pieces.
pub(crate) fn seconds(pieces: impl Iterator<Item = Piece>) -> Vec<(usize, f64)> {
    let s = |piece: Piece| piece.ended_ns.saturating_sub(piece.began_ns) as f64 / 1e9;
    add_up(pieces.map(|piece| (piece.kind, s(piece))))
}

fn add_up(pieces: impl Iterator<Item = (usize, f64)>) -> Vec<(usize, f64)> {
    let mut seconds: Vec<(usize, f64)> = Vec::new();
    for (kind, s) in pieces.filter(|(_, s)| *s > 0.0) {
        match seconds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, seconds)) => *seconds += s,
            None => seconds.push((kind, s)),
        }
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const WHOLE: Part = Part { share: 1.0, from: 0.0 };

    /// A GPU that draws 300 W in pieces of 37 ms and 80 W in pieces of 24 ms, and whose counter has a
    /// value every 100 ms and looks for a part of that time. Of every `missed` values, one is missed.
    fn looks(part: Part, values: u64, missed: u64) -> Looks {
        let mut looks = Looks::default();
        let (mut pieces, mut energy_j): (Vec<Piece>, _) = (Vec::new(), 0.0);
        for value in 0..values {
            for at_ms in 100 * value..100 * (value + 1) {
                let (kind, power_w) = if at_ms % 61 < 37 { (0, 300.0) } else { (1, 80.0) };
                let into = (at_ms % 100) as f64 / 100.0;
                if (part.from..part.from + part.share).contains(&into) {
                    energy_j += power_w / 1e3 / part.share;
                }
                let (began_ns, ended_ns) = (at_ms * MS, (at_ms + 1) * MS);
                pieces.push(Piece { kind, began_ns, ended_ns });
            }
            if value % missed != 1 {
                looks.add(std::mem::take(&mut pieces), std::mem::take(&mut energy_j));
            }
        }
        looks
    }

    fn powers(looks: Looks) -> Vec<f64> {
        let powers = looks.solve().explained().powers;
        powers.into_iter().map(|power| power.unwrap().power_w).collect()
    }

    #[test]
    fn powers_are_right_whenever_the_counter_looks() {
        for part in [WHOLE].into_iter().chain(PARTS) {
            for missed in [u64::MAX, 5] {
                let powers = powers(looks(part, 60, missed));
                let near = |found: f64, truth: f64| (found - truth).abs() < 1.0;
                assert!(near(powers[0], 300.0) && near(powers[1], 80.0), "{part:?}: {powers:?}");
            }
        }
    }

    #[test]
    fn few_values_are_taken_for_all_of_the_time() {
        let few = looks(PARTS[0], 25, u64::MAX);
        assert_eq!(few.clone().solve().by_part, None);
        assert!((powers(few)[0] - 300.0).abs() > 5.0);
    }

    #[test]
    fn among_many_kinds_no_part_is_looked_for_and_none_takes_memory() {
        let mut many = looks(WHOLE, 40, u64::MAX);
        let kind = |kind, began_ns| Piece { kind, began_ns, ended_ns: began_ns + MS };
        many.add(vec![kind(0, 0), kind(MOST_KINDS, MS)], 0.3);
        many.add(vec![kind(0, 0), kind(1, MS)], 0.3);
        assert!(many.parts.iter().all(|part| part.clone().solve().moves == 0));
        assert!(many.waiting.is_empty());
        assert_eq!(many.solve().by_part, None);
    }

    #[test]
    fn nothing_between_two_values_is_no_value() {
        let mut nothing = Looks::default();
        nothing.add(Vec::new(), 5.0);
        assert_eq!(nothing.solve().whole.moves, 0);
    }
}
