//! The exact time-energy frontier if clocks could be mixed freely: a lower bound for every plan.
//!
//! With each operation on the lower hull of its effective energy, the least energy for every
//! iteration time at once is the parametric dual of a minimum-cost flow (Phillips and Dessouky
//! 1977; Fulkerson's and Kelley's time-cost tradeoff): starting from the slowest schedule, push
//! flow along the longest residual path until the path cannot become any shorter. Flow is power
//! (what a second less costs), lengths are times, and the potentials are the event times of an
//! optimal schedule. Integers throughout (ns, µW), so that ties are ties.
//!
//! A new search for every path would visit nearly all events each time. So the tree of longest
//! paths to the end of the step is kept, as max-flow solvers keep theirs (Boykov and Kolmogorov
//! 2004). These words are used throughout:
//!
//! | word | meaning |
//! |---|---|
//! | event | the start or the end of operations ([`events`]) |
//! | way | an arc in one of its directions |
//! | hang | be a child in the tree: an event hangs from the next event on its longest path |
//! | pulled | in the tree of the step's end: when the end comes earlier, the event does, too |
//! | resting | cut off from that tree, because flow used up an arc: the event keeps its time |
//! | contact | a way from a resting event to a pulled one has no time left |
//!
//! At a contact the resting event begins to hang from the pulled one. Once the start of the step is
//! pulled, the path from it to the end is the next longest one. A cut or a join touches only the
//! smaller of the two parts.

pub(crate) mod anchor;
pub(crate) mod bound;
mod contacts;
mod curve;
mod euler_tours;
mod event_times;
pub(crate) mod events;
mod flow;
pub(crate) mod prices;
mod residual;

use pfo_vocabulary::Watts;

use crate::choices::tradeoff::Tradeoffs;
use crate::relaxation::events::Events;
use contacts::{Contact, Contacts};
use curve::{Curve, UNBOUNDED};
use euler_tours::{EulerTours, Part};
use event_times::EventTimes;
use flow::{Flow, Way};
use residual::Residual;

/// A stretch of the frontier along which every second costs the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Piece {
    /// Its fast end, which takes more energy.
    pub(crate) fast_s: f64,
    /// Its slow end.
    pub(crate) slow_s: f64,
    /// Joules by which a second less raises the effective energy.
    pub(crate) slope_w: f64,
}

/// A walk along the frontier, from slow to fast.
pub(crate) struct Relaxation {
    sink: u32,
    residual: Residual,
    /// For each pulled event, the event that it hangs from and the way there.
    parents: Vec<Parent>,
    tours: EulerTours,
    contacts: Contacts,
    /// Events on the longest path, and the ways from them.
    path: Vec<(u32, Way)>,
    /// The contact that ends the present piece.
    next: Option<Contact>,
    /// Power that the next faster second costs, µW.
    slope: i64,
    fastest: i64,
    slowest: i64,
}

#[derive(Clone, Copy)]
struct Parent {
    way: Way,
    head: u32,
}

impl Relaxation {
    /// Starts at the slowest useful time.
    pub(crate) fn new(events: &Events, tradeoffs: &Tradeoffs) -> Self {
        Self::coarse(events, tradeoffs, Watts(0.0))
    }

    /// Nearly the same: what a second less costs is rounded to a multiple of this power. Fewer costs
    /// differ then, which takes less time.
    pub(crate) fn coarse(events: &Events, tradeoffs: &Tradeoffs, grain: Watts) -> Self {
        let grain_uw = ((grain.0 * 1e6) as i64).max(1);
        let curves = tradeoffs.list.iter().map(|tradeoff| Curve::new(tradeoff, grain_uw));
        let mut curves: Vec<Curve> = curves.collect();
        let precedence = curves.len() as u16;
        curves.push(Curve::precedence());
        let curve = events
            .arcs
            .iter()
            .map(|arc| arc.operation.map_or(precedence, |op| tradeoffs.of[op as usize]))
            .collect();
        let flow = Flow::new(curves, curve);

        let (to_end, _) = longest_paths(events, |arc| flow.fastest(arc));
        let fastest = to_end[Events::SOURCE as usize];
        let (to_end, parents) = longest_paths(events, |arc| flow.length(Way::along(arc)));
        let slowest = to_end[Events::SOURCE as usize];
        let times =
            EventTimes::new(to_end.iter().map(|to_end| slowest - to_end).collect(), slowest);
        let sink = events.sink();
        let mut tours = EulerTours::new(events.count + 2);
        tours.hang(sink, root(sink, true));
        for event in (0..sink).rev() {
            tours.hang(event, parents[event as usize].head);
        }
        Self {
            sink,
            residual: Residual::new(events, flow, times),
            parents,
            tours,
            contacts: Contacts::new(events.count),
            path: Vec::new(),
            next: None,
            slope: 0,
            fastest,
            slowest,
        }
    }

    /// The fastest possible time, in seconds (early by at most a ns per operation on the way).
    pub(crate) fn fastest_s(&self) -> f64 {
        seconds(self.fastest)
    }

    /// The time beyond which more time saves nothing, in seconds.
    pub(crate) fn slowest_s(&self) -> f64 {
        seconds(self.slowest)
    }

    /// Moves on to the next faster piece of the frontier; `None` at its fast end. Consecutive
    /// pieces may have the same slope.
    pub(crate) fn advance(&mut self) -> Option<Piece> {
        if let Some(contact) = self.next.take() {
            self.residual.times.pull_to(contact.end);
            self.pull(contact);
        }
        loop {
            while !self.residual.times.is_pulled(Events::SOURCE) {
                let contact = self.contacts.next(&self.residual)?;
                let slow = self.residual.times.end();
                if contact.end < slow {
                    self.next = Some(contact);
                    let (fast_s, slow_s) = (seconds(contact.end), seconds(slow));
                    return Some(Piece { fast_s, slow_s, slope_w: self.slope as f64 * 1e-6 });
                }
                self.pull(contact);
            }
            self.augment()?;
        }
    }

    /// Event times of an optimal schedule at a time within the present piece, in seconds.
    pub(crate) fn schedule(&self, time_s: f64, at_s: &mut Vec<f64>) {
        let times = &self.residual.times;
        let slow = times.end();
        let fast = self.next.map_or(slow, |contact| contact.end);
        let earlier = (slow - (time_s * 1e9) as i64).clamp(0, slow - fast);
        let at = |event| times.at(event) - if times.is_pulled(event) { earlier } else { 0 };
        at_s.clear();
        at_s.extend((0..=self.sink).map(|event| seconds(at(event))));
    }

    /// Watts that a second less on an arc costs within the present piece.
    pub(crate) fn flow_w(&self, arc: usize) -> f64 {
        self.residual.flow.on(arc) as f64 * 1e-6
    }

    /// Pushes what the longest path can carry and cuts off what hangs from a way that this uses up;
    /// `None` if the path is unbounded, because all of it runs at its fastest.
    fn augment(&mut self) -> Option<()> {
        let Self { sink, residual, parents, path, .. } = self;
        path.clear();
        let mut pushed = UNBOUNDED;
        let mut event = Events::SOURCE;
        while event != *sink {
            let Parent { way, head } = parents[event as usize];
            pushed = pushed.min(residual.flow.room(way));
            path.push((event, way));
            event = head;
        }
        // Every arc's flow stays far below this; see `Curve::new`.
        if pushed > UNBOUNDED / 2 {
            return None;
        }
        self.slope += pushed;
        path.retain(|&(_, way)| !residual.flow.push(way, pushed));
        for index in 0..self.path.len() {
            let (event, _) = self.path[index];
            self.turn(event, false);
            self.tours.hang(event, root(self.sink, false));
        }
        Some(())
    }

    /// Hangs a resting event where it has contact.
    fn pull(&mut self, contact: Contact) {
        let Contact { resting, way, pulled, .. } = contact;
        self.turn(resting, true);
        self.parents[resting as usize] = Parent { way, head: pulled };
        self.tours.hang(resting, pulled);
    }

    /// Cuts a branch off, which is pulled or rests from now on.
    fn turn(&mut self, branch: u32, pulled: bool) {
        let Self { residual, tours, contacts, .. } = self;
        tours.cut(branch);
        let (part, few) = tours.smaller(branch, root(self.sink, !pulled));
        let few_are_pulled = match part {
            Part::Branch => {
                residual.times.turn(few, pulled);
                pulled
            }
            Part::Rest => {
                residual.times.turn_others(few, pulled);
                contacts.clear();
                !pulled
            }
        };
        for &event in few {
            if few_are_pulled {
                contacts.note(residual, event);
            } else {
                contacts.find(residual, event);
            }
        }
    }
}

/// The roots of all pulled and of all resting events: no events themselves, but numbered like them.
fn root(sink: u32, pulled: bool) -> u32 {
    sink + if pulled { 1 } else { 2 }
}

/// For each event the longest path to the end of the step, if arcs have these lengths: its length
/// and its first way.
fn longest_paths(events: &Events, length_ns: impl Fn(usize) -> i64) -> (Vec<i64>, Vec<Parent>) {
    let sink = events.sink();
    let mut to_end = vec![-1; events.count];
    let mut parents = vec![Parent { way: Way::along(0), head: sink }; events.count];
    to_end[sink as usize] = 0;
    // Arcs are sorted by their heads, and lead to higher ones.
    for (index, arc) in events.arcs.iter().enumerate().rev() {
        let length = length_ns(index) + to_end[arc.head as usize];
        if length > to_end[arc.tail as usize] {
            to_end[arc.tail as usize] = length;
            parents[arc.tail as usize] = Parent { way: Way::along(index), head: arc.head };
        }
    }
    (to_end, parents)
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
    use crate::schedule::name::Schedule;
    use crate::test_profiles::{any_profile, power_law, unequal};
    use pfo_vocabulary::Watts;

    fn walk(
        profile: &Profile,
        microbatches: u32,
        visit: impl FnMut(&Relaxation, Piece, &Events, &Tradeoffs),
    ) {
        let mut visit = visit;
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::new(profile, schedule, microbatches).unwrap();
        let tradeoffs = Tradeoffs::new(&pipeline, &Watts(80.0).into());
        let events = Events::new(pipeline.network());
        let mut relaxation = Relaxation::new(&events, &tradeoffs);
        while let Some(piece) = relaxation.advance() {
            visit(&relaxation, piece, &events, &tradeoffs);
        }
    }

    /// What is wrong with the schedules along the frontier: they must be possible, and cost what
    /// the dual bound says. Then they are optimal, and the bound is exact.
    fn fault(profile: &Profile, microbatches: u32) -> Option<String> {
        let mut bound_j = None;
        let mut fault = None;
        let mut at_s = Vec::new();
        walk(profile, microbatches, |relaxation, piece, events, tradeoffs| {
            let bound_j = bound_j.get_or_insert_with(|| tradeoffs.least_effective_j());
            *bound_j += piece.slope_w * (piece.slow_s - piece.fast_s);
            relaxation.schedule(piece.fast_s, &mut at_s);
            for arc in &events.arcs {
                let window_s = at_s[arc.head as usize] - at_s[arc.tail as usize];
                let fastest_s = arc
                    .operation
                    .map_or(0.0, |operation| tradeoffs.get(operation as usize).choices[0].time_s);
                if window_s < fastest_s - 2e-9 {
                    fault = Some(format!("{piece:?}: {window_s} s for {fastest_s} s"));
                }
            }
            if (at_s[0], at_s[at_s.len() - 1]) != (0.0, piece.fast_s) {
                fault = Some(format!("{piece:?}: from {} to {:?}", at_s[0], at_s.last()));
            }
            let spent_j: f64 = (0..tradeoffs.of.len())
                .map(|operation| {
                    let (start, end) = events.spans[operation];
                    tradeoffs.get(operation).mixed_j(at_s[end as usize] - at_s[start as usize])
                })
                .sum();
            // A ns too early on the steepest hull that these tables can have, 59 J in 0.1 ms.
            let rounding_j = 1e-9 * 6e5 * tradeoffs.of.len() as f64;
            if (spent_j - *bound_j).abs() > rounding_j {
                fault = Some(format!("{piece:?}: {spent_j} J for {bound_j} J"));
            }
        });
        fault
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_schedule_costs_what_the_bound_says(
            profile in any_profile(4, 6), microbatches in 1_u32..6,
        ) {
            prop_assert_eq!(fault(&profile, microbatches), None);
        }

        #[test]
        fn pieces_join_and_a_second_less_never_costs_less_than_the_one_before(
            profile in any_profile(4, 6), microbatches in 1_u32..6,
        ) {
            let mut pieces: Vec<Piece> = Vec::new();
            walk(&profile, microbatches, |_, piece, _, _| pieces.push(piece));
            for pair in pieces.windows(2) {
                prop_assert_eq!(pair[0].fast_s, pair[1].slow_s);
                prop_assert!(pair[0].slope_w <= pair[1].slope_w);
            }
        }
    }

    #[test]
    fn stages_all_alike_or_all_different_are_solved_exactly() {
        let clocks = (1000..=1400).step_by(40);
        for scale in [[1.0; 6], [0.95, 1.03, 1.0, 0.99, 1.06, 0.97]] {
            let profile = power_law(&scale, [0.05, 0.1], 0.8, &clocks);
            assert_eq!(fault(&profile, 16), None, "{scale:?}");
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
