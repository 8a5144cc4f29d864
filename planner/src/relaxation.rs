//! The exact time-energy frontier if clocks could be mixed freely: a lower bound for every plan.
//!
//! With each operation on the lower hull of its effective energy, the least energy for every
//! iteration time at once is the parametric dual of a minimum-cost flow (Phillips and Dessouky
//! 1977; Fulkerson's and Kelley's time-cost tradeoff): starting from the slowest schedule, push
//! flow along the longest residual path until the path cannot become any shorter. Flow is power
//! (what a second less costs), lengths are times, and the potentials are the event times of an
//! optimal schedule. Integers throughout (ns, µW), so that ties are ties.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::curve::{Curve, NEVER, Residual, UNBOUNDED};
use crate::events::Events;
use crate::tradeoff::Tradeoffs;

/// A stretch of the frontier along which a second less costs the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Piece {
    /// The end of more energy.
    pub(crate) fast_s: f64,
    /// The end of less.
    pub(crate) slow_s: f64,
    /// Joules that each second costs, without what waiting costs.
    pub(crate) slope_w: f64,
}

/// A walk along the frontier, from slow to fast.
pub(crate) struct Relaxation<'a> {
    events: &'a Events,
    /// For each arc its curve, its flow, the segment of the curve that this is in, what is left.
    curves: Vec<Curve>,
    curve: Vec<u16>,
    flow: Vec<i64>,
    segment: Vec<u16>,
    residual: Vec<Residual>,
    /// The arcs into event `v` are `into[v]..into[v + 1]`, those out of it are in `outgoing`.
    into: Vec<u32>,
    out_of: Vec<u32>,
    outgoing: Vec<u32>,
    /// Event times: the dual potentials.
    at: Vec<i64>,
    /// Power that the next second less costs, µW.
    slope: i64,
    /// How far the step can shrink along the longest residual path; found by the last search.
    shrink: i64,
    search: Search,
    fastest: i64,
    slowest: i64,
}

/// Distances to the sink in reduced lengths.
struct Search {
    distance: Vec<i64>,
    /// The arc over which an event reaches the sink.
    via: Vec<u32>,
    /// Events by rising distance.
    settled: Vec<u32>,
    is_settled: Vec<bool>,
    /// At the present distance, and further away.
    near: VecDeque<u32>,
    far: BinaryHeap<Reverse<(i64, u32)>>,
}

impl<'a> Relaxation<'a> {
    /// Starts at the slowest time that is of use.
    pub(crate) fn new(events: &'a Events, tradeoffs: &Tradeoffs) -> Self {
        let mut curves: Vec<Curve> = tradeoffs.list.iter().map(Curve::new).collect();
        let precedence = curves.len() as u16;
        curves.push(Curve::precedence());
        let curve: Vec<u16> = events
            .arcs
            .iter()
            .map(|arc| arc.operation.map_or(precedence, |op| tradeoffs.of[op as usize]))
            .collect();

        let at_fastest = earliest(events, |arc| curves[usize::from(curve[arc])].fastest());
        let at = earliest(events, |arc| curves[usize::from(curve[arc])].times_ns[0]);
        let sink = events.sink() as usize;
        let (into, _) = grouped(events.count, events.arcs.iter().map(|arc| arc.head));
        let (out_of, outgoing) = grouped(events.count, events.arcs.iter().map(|arc| arc.tail));
        let residual =
            curve.iter().map(|&c| Residual::new(&curves[usize::from(c)], 0, 0)).collect();
        let mut relaxation = Self {
            events,
            curve,
            flow: vec![0; events.arcs.len()],
            segment: vec![0; events.arcs.len()],
            residual,
            curves,
            into,
            out_of,
            outgoing,
            slope: 0,
            shrink: 0,
            search: Search::new(events.count),
            fastest: at_fastest[sink],
            slowest: at[sink],
            at,
        };
        relaxation.search();
        relaxation
    }

    /// The fastest possible time, in seconds (early by at most a ns per operation on the way).
    pub(crate) fn fastest_s(&self) -> f64 {
        seconds(self.fastest)
    }

    /// The time from which on more of it saves nothing, in seconds.
    pub(crate) fn slowest_s(&self) -> f64 {
        seconds(self.slowest)
    }

    /// Moves on to the next faster piece of the frontier; `None` at its fast end.
    pub(crate) fn advance(&mut self) -> Option<Piece> {
        loop {
            self.shrink_step();
            self.augment()?;
            self.search();
            // Identical stages make many equally long paths: all must carry flow first.
            if self.shrink > 0 {
                let slow = self.at[self.events.sink() as usize];
                return Some(Piece {
                    fast_s: seconds(slow - self.shrink),
                    slow_s: seconds(slow),
                    slope_w: self.slope as f64 * 1e-6,
                });
            }
        }
    }

    /// Event times of an optimal schedule at a time within the present piece, in seconds.
    pub(crate) fn schedule(&self, time_s: f64, at_s: &mut Vec<f64>) {
        let slow = self.at[self.events.sink() as usize];
        let shrink = (slow - (time_s * 1e9) as i64).clamp(0, self.shrink);
        at_s.clear();
        at_s.extend(self.at.iter().map(|&at| seconds(at)));
        for &event in &self.search.settled {
            let event = event as usize;
            let earlier = (shrink - self.search.distance[event]).max(0);
            at_s[event] = seconds(self.at[event] - earlier);
        }
    }

    /// Finds the longest residual paths to the sink, as far as the source.
    fn search(&mut self) {
        let Self { events, at, residual, search, .. } = self;
        search.start(events.sink());
        while let Some(event) = search.next() {
            if event == Events::SOURCE {
                break;
            }
            let (v, here) = (event as usize, search.distance[event as usize]);
            for arc in self.into[v]..self.into[v + 1] {
                let tail = events.arcs[arc as usize].tail;
                let (length, _) = residual[arc as usize].up;
                search.reach(tail, here + at[v] - at[tail as usize] - length, arc);
            }
            for &arc in &self.outgoing[self.out_of[v] as usize..self.out_of[v + 1] as usize] {
                let (length, capacity) = residual[arc as usize].down;
                if capacity > 0 {
                    let head = events.arcs[arc as usize].head;
                    search.reach(head, here + length - (at[head as usize] - at[v]), arc);
                }
            }
        }
        self.shrink = search.distance[Events::SOURCE as usize];
    }

    /// Shortens the schedule until the longest path is tight.
    fn shrink_step(&mut self) {
        if self.shrink > 0 {
            for &event in &self.search.settled {
                let event = event as usize;
                self.at[event] -= (self.shrink - self.search.distance[event]).max(0);
            }
        }
    }

    /// Pushes what the longest path can carry; `None` if that is without end, because all of it
    /// runs at its fastest.
    fn augment(&mut self) -> Option<()> {
        let sink = self.events.sink();
        let mut pushed = UNBOUNDED;
        let mut event = Events::SOURCE;
        while event != sink {
            let arc = self.search.via[event as usize] as usize;
            let ends = self.events.arcs[arc];
            let Residual { up, down } = self.residual[arc];
            (event, pushed) = if ends.tail == event {
                (ends.head, pushed.min(up.1))
            } else {
                (ends.tail, pushed.min(down.1))
            };
        }
        // Every arc's flow stays far below this; see `Curve::new`.
        if pushed > UNBOUNDED / 2 {
            return None;
        }
        let mut event = Events::SOURCE;
        while event != sink {
            let arc = self.search.via[event as usize] as usize;
            let ends = self.events.arcs[arc];
            event = if ends.tail == event {
                self.flow[arc] += pushed;
                ends.head
            } else {
                self.flow[arc] -= pushed;
                ends.tail
            };
            self.refresh(arc);
        }
        self.slope += pushed;
        Some(())
    }

    /// Finds the segment that an arc's flow is in now.
    fn refresh(&mut self, arc: usize) {
        let curve = &self.curves[usize::from(self.curve[arc])];
        let (flow, mut segment) = (self.flow[arc], usize::from(self.segment[arc]));
        while flow >= curve.costs_uw[segment + 1] {
            segment += 1;
        }
        while flow < curve.costs_uw[segment] {
            segment -= 1;
        }
        self.segment[arc] = segment as u16;
        self.residual[arc] = Residual::new(curve, segment, flow);
    }
}

impl Search {
    fn new(events: usize) -> Self {
        Self {
            distance: vec![NEVER; events],
            via: vec![0; events],
            settled: Vec::with_capacity(events),
            is_settled: vec![false; events],
            near: VecDeque::with_capacity(events),
            far: BinaryHeap::new(),
        }
    }

    fn start(&mut self, sink: u32) {
        self.distance.fill(NEVER);
        self.is_settled.fill(false);
        self.settled.clear();
        self.near.clear();
        self.far.clear();
        self.distance[sink as usize] = 0;
        self.near.push_back(sink);
    }

    /// The nearest event that was not next before.
    fn next(&mut self) -> Option<u32> {
        loop {
            let event = match self.near.pop_front() {
                Some(event) => event,
                None => self.far.pop()?.0.1,
            };
            if !std::mem::replace(&mut self.is_settled[event as usize], true) {
                self.settled.push(event);
                return Some(event);
            }
        }
    }

    /// Notes a way to the sink of this length from `event`, over `arc`.
    fn reach(&mut self, event: u32, distance: i64, arc: u32) {
        if distance < self.distance[event as usize] {
            self.distance[event as usize] = distance;
            self.via[event as usize] = arc;
            let here = self.settled.last().map_or(0, |&last| self.distance[last as usize]);
            if distance == here {
                self.near.push_back(event);
            } else {
                self.far.push(Reverse((distance, event)));
            }
        }
    }
}

/// When each event happens at the earliest, in ns, if arcs are of these lengths.
fn earliest(events: &Events, length_ns: impl Fn(usize) -> i64) -> Vec<i64> {
    let mut at = vec![0; events.count];
    for (index, arc) in events.arcs.iter().enumerate() {
        at[arc.head as usize] = at[arc.head as usize].max(at[arc.tail as usize] + length_ns(index));
    }
    at
}

/// Indices grouped by key: those of key `k` are `members[starts[k]..starts[k + 1]]`.
fn grouped(keys: usize, key_of: impl Iterator<Item = u32> + Clone) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0_u32; keys + 1];
    for key in key_of.clone() {
        starts[key as usize + 1] += 1;
    }
    for key in 0..keys {
        starts[key + 1] += starts[key];
    }
    let mut next = starts.clone();
    let mut members = vec![0; starts[keys] as usize];
    for (index, key) in (0..).zip(key_of) {
        members[next[key as usize] as usize] = index;
        next[key as usize] += 1;
    }
    (starts, members)
}

fn seconds(ns: i64) -> f64 {
    ns as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::Pipeline;
    use crate::profile::Profile;
    use crate::schedule::Schedule;
    use crate::test_profiles::{any_profile, unequal};
    use crate::units::Watts;

    fn walk(
        profile: &Profile,
        microbatches: u32,
        visit: impl FnMut(&Relaxation<'_>, Piece, &Events, &Tradeoffs),
    ) {
        let mut visit = visit;
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::new(profile, schedule, microbatches).unwrap();
        let tradeoffs = Tradeoffs::new(&pipeline, Watts(80.0));
        let events = Events::new(pipeline.network());
        let mut relaxation = Relaxation::new(&events, &tradeoffs);
        while let Some(piece) = relaxation.advance() {
            visit(&relaxation, piece, &events, &tradeoffs);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        // A schedule that costs what the dual bound says is optimal, and the bound is exact.
        #[test]
        fn every_schedule_costs_what_the_bound_says(profile in any_profile(4, 6), microbatches in 1_u32..6) {
            let mut energy_j = None;
            let mut failure = None;
            walk(&profile, microbatches, |relaxation, piece, events, tradeoffs| {
                let energy = energy_j.get_or_insert_with(|| tradeoffs.least_effective_j());
                *energy += piece.slope_w * (piece.slow_s - piece.fast_s);
                let mut at_s = Vec::new();
                relaxation.schedule(piece.fast_s, &mut at_s);
                let spent_j: f64 = events.spans.iter().zip(&tradeoffs.of).map(|(&(start, end), &index)| {
                    tradeoffs.list[usize::from(index)].mixed_j(at_s[end as usize] - at_s[start as usize])
                }).sum();
                // A ns too early on the steepest hull that these tables can have, 59 J in 0.1 ms.
                let rounding_j = 1e-9 * 6e5 * tradeoffs.of.len() as f64;
                if (spent_j - *energy).abs() > rounding_j {
                    failure = Some((piece, spent_j, *energy));
                }
            });
            prop_assert_eq!(failure, None);
        }

        #[test]
        fn pieces_join_and_a_second_less_never_costs_less_than_the_one_before(
            profile in any_profile(4, 6), microbatches in 1_u32..6,
        ) {
            let mut pieces: Vec<Piece> = Vec::new();
            walk(&profile, microbatches, |_, piece, _, _| pieces.push(piece));
            for pair in pieces.windows(2) {
                prop_assert_eq!(pair[0].fast_s, pair[1].slow_s);
                prop_assert!(pair[0].slope_w < pair[1].slope_w);
            }
        }
    }

    #[test]
    fn the_walk_ends_where_every_operation_runs_at_its_fastest() {
        let mut fastest_s = 0.0;
        let mut last_s = 0.0;
        walk(&unequal(), 4, |relaxation, piece, _, _| {
            fastest_s = relaxation.fastest_s();
            last_s = piece.fast_s;
        });
        assert_eq!(last_s, fastest_s);
        // Stage 0's first forward, stage 1's four microbatches, stage 0's last backward.
        assert!((fastest_s - (0.05 + 4.0 * 0.18 + 0.1)).abs() < 1e-6);
    }
}
