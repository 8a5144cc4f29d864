//! The clocks that each operation of a step can have, laid out for fast passes over all of them.

pub(crate) mod pareto;
pub(crate) mod tradeoff;

use pfo_vocabulary::Mhz;

use crate::choices::pareto::Cost;
use crate::choices::tradeoff::{Choice, Tradeoffs};

/// The choices of all operations.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    /// The choices of all tradeoffs, one tradeoff after the other, from fast to slow.
    all: Vec<Choice>,
    /// For each of `all`, whether it is on its tradeoff's hull.
    is_on_hull: Vec<bool>,
    /// For each of `all`, the most watts that a slower choice saves.
    best_rate_w: Vec<f64>,
    /// For each tradeoff, the range of its choices in `all`.
    ranges: Vec<(u32, u32)>,
    /// For each operation, the same.
    of: Vec<(u32, u32)>,
}

/// For every operation the index of its choice among all.
pub(crate) type Assignment = Vec<u32>;

/// An assignment in a fourth of the room: for every operation its choice, counted from the fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed(Box<[u8]>);

/// A plan of measured clocks with its time and effective energy. Many are kept at a time.
#[derive(Clone, Debug)]
pub(crate) struct Realised {
    pub(crate) time_s: f64,
    pub(crate) effective_j: f64,
    pub(crate) assignment: Packed,
}

impl Realised {
    pub(crate) fn cost(&self) -> Cost {
        (self.time_s, self.effective_j)
    }
}

impl Choices {
    pub(crate) fn new(tradeoffs: &Tradeoffs) -> Self {
        let mut choices = Self {
            all: Vec::new(),
            is_on_hull: Vec::new(),
            best_rate_w: Vec::new(),
            ranges: Vec::new(),
            of: Vec::new(),
        };
        for tradeoff in &tradeoffs.list {
            let first = choices.all.len() as u32;
            for (index, choice) in tradeoff.choices.iter().enumerate() {
                let slower = &tradeoff.choices[index + 1..];
                let rates = slower.iter().map(|slower| rate_w(choice, slower));
                choices.best_rate_w.push(rates.fold(0.0, f64::max));
                choices.is_on_hull.push(tradeoff.hull.contains(&(index as u16)));
                choices.all.push(*choice);
            }
            choices.ranges.push((first, choices.all.len() as u32));
        }
        choices.of = tradeoffs.of.iter().map(|&index| choices.ranges[usize::from(index)]).collect();
        choices
    }

    pub(crate) fn all(&self) -> &[Choice] {
        &self.all
    }

    pub(crate) fn get(&self, index: u32) -> &Choice {
        &self.all[index as usize]
    }

    /// The choices of an operation, from fast to slow, as a range of indices.
    pub(crate) fn of(&self, operation: usize) -> (u32, u32) {
        self.of[operation]
    }

    /// An assignment to keep.
    pub(crate) fn packed(&self, assignment: &[u32]) -> Packed {
        // A table has at most 256 rows.
        let packed = |(index, (fastest, _)): (&u32, &(u32, u32))| (index - fastest) as u8;
        Packed(assignment.iter().zip(&self.of).map(packed).collect())
    }

    /// The choice of an operation in an assignment that was kept.
    pub(crate) fn unpacked(&self, Packed(assignment): &Packed, operation: usize) -> u32 {
        self.of[operation].0 + u32::from(assignment[operation])
    }

    /// All choices of an assignment that was kept.
    pub(crate) fn all_unpacked(&self, packed: &Packed) -> Assignment {
        (0..self.of.len()).map(|operation| self.unpacked(packed, operation)).collect()
    }

    /// The choices of each kind of operation.
    pub(crate) fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    pub(crate) fn fastest(&self, operation: usize) -> u32 {
        self.of[operation].0
    }

    /// An operation's choice that is nearest to a clock.
    pub(crate) fn nearest(&self, operation: usize, clock: Mhz) -> u32 {
        let (fastest, end) = self.of[operation];
        let distance = |&index: &u32| self.get(index).frequency.0.abs_diff(clock.0);
        (fastest..end).min_by_key(distance).unwrap_or(fastest)
    }

    /// An operation's slowest choice of at most this many seconds; its fastest if there is none.
    pub(crate) fn slowest_within(&self, operation: usize, time_s: f64) -> u32 {
        let (fastest, end) = self.of[operation];
        let fits = |&index: &u32| self.get(index).time_s <= time_s;
        (fastest..end).rev().find(fits).unwrap_or(fastest)
    }

    /// The same among the choices on the hull.
    pub(crate) fn slowest_on_hull_within(&self, operation: usize, time_s: f64) -> u32 {
        let (fastest, end) = self.of[operation];
        let fits =
            |&index: &u32| self.is_on_hull[index as usize] && self.get(index).time_s <= time_s;
        (fastest..end).rev().find(fits).unwrap_or(fastest)
    }

    /// The next slower choice on the hull.
    pub(crate) fn slower_on_hull(&self, operation: usize, index: u32) -> Option<u32> {
        (index + 1..self.of[operation].1).find(|&index| self.is_on_hull[index as usize])
    }

    /// The next faster choice on the hull; the same if it is the fastest.
    pub(crate) fn faster_on_hull(&self, operation: usize, index: u32) -> u32 {
        let faster = (self.of[operation].0..index).rev();
        faster.into_iter().find(|&index| self.is_on_hull[index as usize]).unwrap_or(index)
    }

    /// The slowest choice, `present` or slower, that takes at most this many seconds and saves at
    /// least this many watts over `present`.
    pub(crate) fn worth_slowing_to(
        &self,
        operation: usize,
        present: u32,
        time_s: f64,
        least_w: f64,
    ) -> u32 {
        let mut best = present;
        if self.best_rate_w[present as usize] >= least_w {
            let fast = self.get(present);
            for index in present + 1..self.of[operation].1 {
                let slower = self.get(index);
                if slower.time_s > time_s {
                    break;
                }
                if saves(fast, slower, least_w) {
                    best = index;
                }
            }
        }
        best
    }

    /// The most watts that a slower choice than `present` of at most this many seconds saves.
    pub(crate) fn best_rate_within_w(&self, operation: usize, present: u32, time_s: f64) -> f64 {
        let fast = self.get(present);
        (present + 1..self.of[operation].1)
            .map(|index| self.get(index))
            .take_while(|slow| slow.time_s <= time_s)
            .fold(0.0, |most_w, slow| f64::max(most_w, rate_w(fast, slow)))
    }

    /// The most watts that any choice saves.
    pub(crate) fn best_rate_w(&self) -> f64 {
        self.best_rate_w.iter().copied().fold(0.0, f64::max)
    }

    /// The effective energy of an assignment, in joules.
    pub(crate) fn effective_j(&self, assignment: &[u32]) -> f64 {
        assignment.iter().map(|&index| self.get(index).effective_j).sum()
    }
}

/// Whether the slower of two choices saves at least this number of watts: without a division, since
/// most of the time of a long step goes by asking this.
fn saves(fast: &Choice, slow: &Choice, least_w: f64) -> bool {
    fast.effective_j - slow.effective_j >= least_w * (slow.time_s - fast.time_s)
}

/// Watts saved by the slower of two choices.
fn rate_w(fast: &Choice, slow: &Choice) -> f64 {
    (fast.effective_j - slow.effective_j) / (slow.time_s - fast.time_s)
}
