//! The best choices for all operations of a stretch at once, by branch and bound (Land and Doig
//! 1960) with the Lagrangian bound of the relaxation.
//!
//! Time on an arc has a price p, and what flows into an event flows out of it. So a plan that is in
//! time takes more effective energy than the relaxed optimum by
//!
//! > Σ (e + p·t − the least of that among the operation's choices) + Σ p · (the arc's slack)
//!
//! wherever events happen within their slack. No term is below 0: a branch whose terms so far add up to
//! those of the best plan so far ends there. Events up to the end of the stretch happen as early as
//! they can, and those behind it as late; what lies outside adds the same to all plans.

use std::ops::Range;

use super::candidates::Candidate;
use crate::realise::TOLERANCE_S;
use crate::relaxation::events::{Arc, Events};

/// What has to be saved to count, in joules.
const LEAST_J: f64 = 1e-7;

/// Arcs to the events of a part of a step, whose operations are decided.
pub(super) struct Stretch<'a> {
    events: &'a Events,
    price_w: &'a [f64],
    candidates: &'a [Vec<Candidate>],
    arcs: Range<usize>,
    /// For each event its earliest time with the choices so far, and its latest.
    at_s: Vec<f64>,
    latest_s: Vec<f64>,
    /// For each event the prices of the arcs to it that are decided.
    into_w: Vec<f64>,
    /// For each event what leaving later than at 0 saves outside the stretch, in W, and what that
    /// is counted from, in J: the prices of its arcs that leave the stretch, and their slack at 0.
    leaving: Vec<(f64, f64)>,
    tried: Vec<Candidate>,
    best: Vec<Candidate>,
    /// What the best choices take more than the bound, or what they have to.
    least_j: f64,
    is_better: bool,
    visits_left: usize,
}

impl<'a> Stretch<'a> {
    /// The stretch from the events of one arc to those of another, of a step that takes at most
    /// `deadline_s`; none if its present choices are as good as any.
    pub(super) fn new(
        (events, price_w, candidates): (&'a Events, &'a [f64], &'a [Vec<Candidate>]),
        present: &[Candidate],
        (first, last): (usize, usize),
        (deadline_s, visits): (f64, usize),
    ) -> Option<Self> {
        let head = |arc: usize| events.arcs[arc].head;
        let begin = events.arcs.partition_point(|arc| arc.head < head(first));
        let end = events.arcs.partition_point(|arc| arc.head <= head(last));
        let mut stretch = Self {
            events,
            price_w,
            candidates,
            arcs: begin..end,
            at_s: vec![0.0; events.count],
            latest_s: vec![f64::INFINITY; events.count],
            into_w: vec![0.0; events.count],
            leaving: vec![(0.0, 0.0); events.count],
            tried: present.to_vec(),
            best: Vec::new(),
            least_j: f64::INFINITY,
            is_better: false,
            visits_left: visits,
        };
        stretch.look_around(present, deadline_s);
        let present_j = stretch.excess_j();
        stretch.least_j = present_j - LEAST_J;
        (present_j > LEAST_J).then_some(stretch)
    }

    /// Better choices, with their arcs, if there are any.
    pub(super) fn better(&mut self) -> Option<Vec<(usize, Candidate)>> {
        self.decide(self.arcs.start, 0.0);
        let chosen = self.arcs.clone().zip(self.best.iter().copied());
        self.is_better.then(|| chosen.collect())
    }

    pub(super) fn visits_left(&self) -> usize {
        self.visits_left
    }

    /// Finds the earliest times before the stretch and the latest ones, and what leaves it.
    fn look_around(&mut self, present: &[Candidate], deadline_s: f64) {
        let arcs = &self.events.arcs;
        let sink = self.events.sink() as usize;
        self.latest_s[sink] = deadline_s;
        for index in (self.arcs.start..arcs.len()).rev() {
            let Arc { tail, head, .. } = arcs[index];
            let (tail, latest_s) = (tail as usize, self.latest_s[head as usize]);
            let is_inside = index < self.arcs.end;
            let time_s =
                if is_inside { fastest_s(&self.candidates[index]) } else { present[index].time_s };
            self.latest_s[tail] = self.latest_s[tail].min(latest_s - time_s);
            if !is_inside {
                let price_w = self.price_w[index];
                let (leaving_w, leaving_j) = &mut self.leaving[tail];
                *leaving_w += price_w;
                *leaving_j += price_w * (latest_s - time_s);
            }
        }
        for (&Arc { tail, head, .. }, own) in arcs.iter().zip(present).take(self.arcs.start) {
            let end_s = self.at_s[tail as usize] + own.time_s;
            self.at_s[head as usize] = self.at_s[head as usize].max(end_s);
        }
        self.at_s[sink] = deadline_s;
    }

    /// What the choices that are tried take more than the bound, in joules.
    fn excess_j(&mut self) -> f64 {
        let before = (self.at_s.clone(), self.into_w.clone());
        let mut excess_j = 0.0;
        for index in self.arcs.clone() {
            let (more_j, at_s) = self.with(index, self.tried[index]);
            excess_j += more_j;
            self.reach(index, at_s);
        }
        (self.at_s, self.into_w) = before;
        excess_j
    }

    /// What a choice on an arc adds, in joules, and when the event at the arc's end then happens.
    fn with(&self, index: usize, candidate: Candidate) -> (f64, f64) {
        let Arc { tail, head, .. } = self.events.arcs[index];
        let head = head as usize;
        let end_s = self.at_s[tail as usize] + candidate.time_s;
        let at_s = self.at_s[head].max(end_s);
        let waited_j = (at_s - self.at_s[head]) * self.into_w[head];
        let slack_j = self.price_w[index] * (at_s - end_s);
        let next = self.events.arcs.get(index + 1);
        let is_reached = next.is_none_or(|next| next.head as usize != head);
        let (leaving_w, leaving_j) = self.leaving[head];
        let behind_j = if is_reached { leaving_j - leaving_w * at_s } else { 0.0 };
        (candidate.reduced_j + waited_j + slack_j + behind_j, at_s)
    }

    fn reach(&mut self, index: usize, at_s: f64) {
        let head = self.events.arcs[index].head as usize;
        self.at_s[head] = at_s;
        self.into_w[head] += self.price_w[index];
    }

    /// Decides the arcs from this one on, if those before take so much more than the bound.
    fn decide(&mut self, index: usize, excess_j: f64) {
        if index == self.arcs.end {
            self.least_j = excess_j - LEAST_J;
            self.is_better = true;
            self.best.clear();
            self.best.extend_from_slice(&self.tried[self.arcs.clone()]);
            return;
        }
        let candidates = self.candidates;
        let Arc { tail, head, .. } = self.events.arcs[index];
        let head = head as usize;
        let start_s = self.at_s[tail as usize];
        let before = (self.at_s[head], self.into_w[head]);
        for &candidate in &candidates[index] {
            if self.visits_left == 0 || excess_j + candidate.reduced_j >= self.least_j {
                break;
            }
            self.visits_left -= 1;
            if start_s + candidate.time_s > self.latest_s[head] + TOLERANCE_S {
                continue;
            }
            let (more_j, at_s) = self.with(index, candidate);
            if excess_j + more_j >= self.least_j {
                continue;
            }
            self.reach(index, at_s);
            self.tried[index] = candidate;
            self.decide(index + 1, excess_j + more_j);
            (self.at_s[head], self.into_w[head]) = before;
        }
    }
}

fn fastest_s(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| candidate.time_s).fold(f64::INFINITY, f64::min)
}
