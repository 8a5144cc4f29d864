//! From the relaxed optimum to a plan of measured clocks that keeps a deadline.
//!
//! The relaxation mixes clocks freely; a GPU cannot. Rounding takes, in the order of the step, the
//! slowest clock that still ends each operation by its latest time, so that what one operation
//! leaves unused its successors get; what is left then is filled, best saving per second first.

use crate::network::Network;
use crate::tradeoff::{Choice, Tradeoffs};

/// Times closer than this are equal, in seconds.
const TOLERANCE_S: f64 = 1e-12;

/// The choices of every operation of a step, laid out for passes over all of them.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    /// All tradeoffs' choices, one tradeoff after the other, from fast to slow.
    all: Vec<Choice>,
    /// For each of `all`, whether it is on its hull.
    is_on_hull: Vec<bool>,
    /// For each of `all`, the most watts that any slower choice of its tradeoff saves.
    best_rate_w: Vec<f64>,
    /// For each operation, its choices as a range of `all`.
    of: Vec<(u32, u32)>,
    /// Watts from which on to fill, falling.
    levels_w: Vec<f64>,
}

/// A clock for every operation: an index into `Choices::all` each.
pub(crate) type Assignment = Vec<u32>;

/// A plan of measured clocks and what it comes to.
#[derive(Clone, Debug)]
pub(crate) struct Realised {
    pub(crate) time_s: f64,
    pub(crate) effective_j: f64,
    pub(crate) assignment: Assignment,
}

impl Choices {
    pub(crate) fn new(tradeoffs: &Tradeoffs) -> Self {
        let mut choices = Self {
            all: Vec::new(),
            is_on_hull: Vec::new(),
            best_rate_w: Vec::new(),
            of: Vec::new(),
            levels_w: Vec::new(),
        };
        let mut ranges = Vec::new();
        for tradeoff in &tradeoffs.list {
            let first = choices.all.len() as u32;
            for (index, choice) in (0..).zip(&tradeoff.choices) {
                let slower = tradeoff.choices.iter().skip(index as usize + 1);
                let best = slower.map(|slower| rate_w(choice, slower)).fold(0.0, f64::max);
                choices.all.push(*choice);
                choices.best_rate_w.push(best);
                choices.is_on_hull.push(tradeoff.hull.contains(&index));
            }
            ranges.push((first, choices.all.len() as u32));
        }
        choices.of = tradeoffs.of.iter().map(|&index| ranges[usize::from(index)]).collect();
        choices.levels_w = levels_w(&choices.best_rate_w);
        choices
    }

    pub(crate) fn get(&self, index: u32) -> &Choice {
        &self.all[index as usize]
    }

    pub(crate) fn effective_j(&self, assignment: &[u32]) -> f64 {
        assignment.iter().map(|&index| self.get(index).effective_j).sum()
    }
}

fn rate_w(fast: &Choice, slow: &Choice) -> f64 {
    (fast.effective_j - slow.effective_j) / (slow.time_s - fast.time_s)
}

/// A dozen levels between the best and the worst saving there is.
fn levels_w(rates_w: &[f64]) -> Vec<f64> {
    const LEVELS: i32 = 12;
    let most = rates_w.iter().copied().fold(0.0, f64::max);
    let mut levels: Vec<f64> = (1..LEVELS).map(|level| most * 0.65_f64.powi(level)).collect();
    levels.push(0.0);
    levels
}

/// Rounds, fills and splices; keeps its buffers from one plan to the next.
pub(crate) struct Realiser<'a> {
    network: &'a Network,
    choices: &'a Choices,
    /// For each operation, the shortest way from its end to the end of the step, in seconds.
    tail_s: Vec<f64>,
    /// The present assignment; the earliest start and the latest end of each operation in it.
    pub(crate) assignment: Assignment,
    start_s: Vec<f64>,
    end_s: Vec<f64>,
    latest_start_s: Vec<f64>,
    latest_end_s: Vec<f64>,
}

impl<'a> Realiser<'a> {
    pub(crate) fn new(network: &'a Network, choices: &'a Choices) -> Self {
        let n = network.len();
        let mut realiser = Self {
            network,
            choices,
            tail_s: vec![0.0; n],
            assignment: choices.of.iter().map(|&(fastest, _)| fastest).collect(),
            start_s: vec![0.0; n],
            end_s: vec![0.0; n + 1],
            latest_start_s: vec![0.0; n + 1],
            latest_end_s: vec![0.0; n],
        };
        realiser.latest(0.0);
        realiser.tail_s = realiser.latest_end_s.iter().map(|&end| -end).collect();
        realiser
    }

    fn time_s(&self, operation: usize) -> f64 {
        self.choices.get(self.assignment[operation]).time_s
    }

    fn earliest_start_s(&self, operation: usize) -> f64 {
        let [a, b] = self.network.predecessors[operation];
        f64::max(self.end_s[a as usize], self.end_s[b as usize])
    }

    fn latest_end_s(&self, operation: usize) -> f64 {
        let [a, b] = self.network.successors[operation];
        f64::min(self.latest_start_s[a as usize], self.latest_start_s[b as usize])
    }

    /// Starts every operation as early as it can; returns the makespan in seconds.
    pub(crate) fn earliest(&mut self) -> f64 {
        let mut makespan = 0.0_f64;
        for operation in 0..self.network.len() {
            let start = self.earliest_start_s(operation);
            let end = start + self.time_s(operation);
            self.start_s[operation] = start;
            self.end_s[operation] = end;
            makespan = makespan.max(end);
        }
        makespan
    }

    /// Ends every operation as late as the deadline allows.
    fn latest(&mut self, deadline_s: f64) {
        let n = self.network.len();
        self.latest_start_s[n] = deadline_s;
        for operation in (0..n).rev() {
            let end = self.latest_end_s(operation);
            self.latest_end_s[operation] = end;
            self.latest_start_s[operation] = end - self.time_s(operation);
        }
    }

    /// Rounds operations of these durations (seconds) to choices that keep the deadline.
    pub(crate) fn round(&mut self, duration_s: &[f64], deadline_s: f64, hull_only: bool) {
        let n = self.network.len();
        self.latest_start_s[n] = deadline_s;
        for operation in (0..n).rev() {
            let end = self.latest_end_s(operation);
            self.latest_end_s[operation] = end.min(deadline_s - self.tail_s[operation]);
            self.latest_start_s[operation] = end - duration_s[operation];
        }
        for operation in 0..n {
            let start = self.earliest_start_s(operation);
            let window = self.latest_end_s[operation] - start + TOLERANCE_S;
            let (fastest, end) = self.choices.of[operation];
            let fits = |&index: &u32| {
                self.choices.get(index).time_s <= window
                    && (!hull_only || self.choices.is_on_hull[index as usize])
            };
            let chosen = (fastest..end).rev().find(fits).unwrap_or(fastest);
            self.assignment[operation] = chosen;
            self.end_s[operation] = start + self.choices.get(chosen).time_s;
        }
    }

    /// Slows operations down into the slack that is left, best saving per second first.
    pub(crate) fn fill(&mut self, deadline_s: f64) {
        self.earliest();
        self.latest(deadline_s);
        let n = self.network.len();
        for level in 0..self.choices.levels_w.len() {
            let least_w = self.choices.levels_w[level];
            for operation in (0..n).rev() {
                let end = self.latest_end_s(operation);
                self.slow_down(operation, end - self.start_s[operation], least_w);
                self.latest_end_s[operation] = end;
                self.latest_start_s[operation] = end - self.time_s(operation);
            }
            for operation in 0..n {
                let start = self.earliest_start_s(operation);
                self.slow_down(operation, self.latest_end_s[operation] - start, least_w);
                self.start_s[operation] = start;
                self.end_s[operation] = start + self.time_s(operation);
            }
        }
    }

    /// Takes the slowest choice that fits into the window and saves enough for its time.
    fn slow_down(&mut self, operation: usize, window_s: f64, least_w: f64) {
        let present = self.assignment[operation];
        if self.choices.best_rate_w[present as usize] < least_w {
            return;
        }
        let (_, end) = self.choices.of[operation];
        let window_s = window_s + TOLERANCE_S;
        let now = *self.choices.get(present);
        let mut best = present;
        for index in present + 1..end {
            let slower = self.choices.get(index);
            if slower.time_s > window_s {
                break;
            }
            if rate_w(&now, slower) >= least_w {
                best = index;
            }
        }
        self.assignment[operation] = best;
    }

    /// Makes the latest switch from one assignment to another that keeps the deadline: operations
    /// before it take `first`, the others `then`. False if even the earliest switch does not.
    pub(crate) fn splice(&mut self, first: &[u32], then: &[u32], deadline_s: f64) -> bool {
        let n = self.network.len();
        let (mut low, mut high) = (0, n);
        let mut ok = false;
        while low <= high {
            let cut = (low + high) / 2;
            self.assignment[..cut].copy_from_slice(&first[..cut]);
            self.assignment[cut..].copy_from_slice(&then[cut..]);
            if self.earliest() <= deadline_s + TOLERANCE_S {
                ok = true;
                low = cut + 1;
            } else if cut == 0 {
                break;
            } else {
                high = cut - 1;
            }
        }
        if ok {
            let cut = high.min(n);
            self.assignment[..cut].copy_from_slice(&first[..cut]);
            self.assignment[cut..].copy_from_slice(&then[cut..]);
        }
        ok
    }

    pub(crate) fn splice_mirror(&mut self, fast: &[u32], slow: &[u32], deadline_s: f64) -> bool {
        let n = self.network.len();
        let (mut low, mut high) = (0, n); // smallest cut such that fast before, slow after fits
        while low < high {
            let cut = (low + high) / 2;
            self.assignment[..cut].copy_from_slice(&fast[..cut]);
            self.assignment[cut..].copy_from_slice(&slow[cut..]);
            if self.earliest() <= deadline_s + TOLERANCE_S {
                high = cut;
            } else {
                low = cut + 1;
            }
        }
        self.assignment[..low].copy_from_slice(&fast[..low]);
        self.assignment[low..].copy_from_slice(&slow[low..]);
        self.earliest() <= deadline_s + TOLERANCE_S
    }

    /// The least time that any plan takes, in seconds.
    pub(crate) fn fastest_s(&mut self) -> f64 {
        for (assigned, &(fastest, _)) in self.assignment.iter_mut().zip(&self.choices.of) {
            *assigned = fastest;
        }
        self.earliest()
    }

    /// The better of what rounding to hull points and to all points gives.
    pub(crate) fn best_rounding(&mut self, duration_s: &[f64], deadline_s: f64) -> Realised {
        let mut best = None;
        for hull_only in [false, true] {
            self.round(duration_s, deadline_s, hull_only);
            self.fill(deadline_s);
            self.keep_if_better(&mut best);
        }
        best.unwrap_or_else(|| self.present())
    }

    fn present(&mut self) -> Realised {
        Realised {
            time_s: self.earliest(),
            effective_j: self.choices.effective_j(&self.assignment),
            assignment: self.assignment.clone(),
        }
    }

    fn keep_if_better(&mut self, best: &mut Option<Realised>) {
        let effective_j = self.choices.effective_j(&self.assignment);
        if best.as_ref().is_none_or(|best| effective_j < best.effective_j) {
            *best = Some(self.present());
        }
    }

    /// The best plan for a deadline that can be spliced from two of these, or is one of them;
    /// the first must keep the deadline.
    pub(crate) fn between(&mut self, regimes: &[Realised], deadline_s: f64) -> Realised {
        let slower = regimes.partition_point(|plan| plan.time_s <= deadline_s + TOLERANCE_S);
        let fast = &regimes[slower.max(1) - 1];
        let mut best = Some(fast.clone());
        if let Some(slow) = regimes.get(slower) {
            if self.splice(&slow.assignment, &fast.assignment, deadline_s) {
                self.fill(deadline_s);
                self.keep_if_better(&mut best);
            }
            if self.splice_mirror(&fast.assignment, &slow.assignment, deadline_s) {
                self.fill(deadline_s);
                self.keep_if_better(&mut best);
            }
        }
        best.unwrap_or_else(|| self.present())
    }
}
