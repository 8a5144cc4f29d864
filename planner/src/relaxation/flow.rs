//! The flow on every arc, and how much more each direction takes before the arc's length changes.

use super::curve::{Curve, NEVER};

/// One direction of an arc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way(u32);

impl Way {
    pub(super) fn along(arc: usize) -> Self {
        Self((arc as u32) << 1 | 1)
    }

    pub(super) fn against(arc: usize) -> Self {
        Self((arc as u32) << 1)
    }

    pub(super) fn reversed(self) -> Self {
        Self(self.0 ^ 1)
    }

    fn arc(self) -> usize {
        (self.0 >> 1) as usize
    }

    /// 0 against the arc, 1 along it.
    fn direction(self) -> usize {
        (self.0 & 1) as usize
    }
}

/// A flow of minimum cost, in µW: an arc whose length lies between two points of its curve carries
/// exactly what a ns between them costs.
pub(super) struct Flow {
    curves: Vec<Curve>,
    /// For each arc its curve, and the segment of that curve that its flow is in.
    curve: Vec<u16>,
    segment: Vec<u16>,
    /// By direction: the least ns from the way's tail to its head, and the most that can be pushed
    /// before that changes.
    length: Vec<[i64; 2]>,
    room: Vec<[i64; 2]>,
}

impl Flow {
    /// No flow yet; `curve` says which of the curves is each arc's.
    pub(super) fn new(curves: Vec<Curve>, curve: Vec<u16>) -> Self {
        let arcs = curve.len();
        let (length, room) = (vec![[0; 2]; arcs], vec![[0; 2]; arcs]);
        let mut flow = Self { curves, curve, segment: vec![0; arcs], length, room };
        for arc in 0..arcs {
            flow.set(arc, 0, 0);
        }
        flow
    }

    /// The least ns from a way's tail to its head.
    pub(super) fn length(&self, way: Way) -> i64 {
        self.length[way.arc()][way.direction()]
    }

    /// How much can be pushed before the way's length changes.
    pub(super) fn room(&self, way: Way) -> i64 {
        self.room[way.arc()][way.direction()]
    }

    /// What flows on an arc.
    pub(super) fn on(&self, arc: usize) -> i64 {
        let [against, along] = self.length[arc];
        let above = if against == -along { self.room[arc][0] } else { 0 };
        self.curves[usize::from(self.curve[arc])].costs_uw[usize::from(self.segment[arc])] + above
    }

    /// The length of an arc if it is as short as it can be.
    pub(super) fn fastest(&self, arc: usize) -> i64 {
        self.curves[usize::from(self.curve[arc])].fastest()
    }

    /// Pushes at most the room there is; true if the way keeps its length.
    pub(super) fn push(&mut self, way: Way, amount: i64) -> bool {
        let (arc, length, room) = (way.arc(), self.length(way), self.room(way));
        let [against, along] = self.length[arc];
        let is_within_segment = against == -along;
        if is_within_segment && amount < room {
            self.room[arc][way.direction()] -= amount;
            self.room[arc][way.reversed().direction()] += amount;
            return true;
        }
        let segment = usize::from(self.segment[arc]);
        let above = if is_within_segment { self.room[arc][0] } else { 0 };
        match (way == Way::along(arc), is_within_segment) {
            (true, _) if amount == room => self.set(arc, segment + 1, 0),
            (true, _) => self.set(arc, segment, above + amount),
            (false, true) => self.set(arc, segment, above - amount),
            (false, false) => self.set(arc, segment - 1, room - amount),
        }
        self.length(way) == length
    }

    /// Sets an arc's flow this far above the lower end of a segment.
    fn set(&mut self, arc: usize, segment: usize, above: i64) {
        let curve = &self.curves[usize::from(self.curve[arc])];
        let width = |segment: usize| curve.costs_uw[segment + 1] - curve.costs_uw[segment];
        let (against, room) = if above > 0 {
            (-curve.times_ns[segment], above)
        } else if segment > 0 {
            (-curve.times_ns[segment - 1], width(segment - 1))
        } else {
            (-NEVER, 0)
        };
        self.segment[arc] = segment as u16;
        self.length[arc] = [against, curve.times_ns[segment]];
        self.room[arc] = [room, width(segment) - above];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::relaxation::curve::UNBOUNDED;

    /// Four ns for less than 10 µW, three for less than 25, two for less than 40, and then one.
    fn flow() -> Flow {
        let times_ns = vec![4, 3, 2, 1];
        let costs_uw = vec![0, 10, 25, 40, UNBOUNDED];
        Flow::new(vec![Curve { times_ns, costs_uw }], vec![0])
    }

    proptest! {
        #[test]
        fn an_arc_is_as_long_as_its_flow_says_and_a_little_less_flow_would(
            pushes in prop::collection::vec((any::<bool>(), 1_i64..20), 1..30),
        ) {
            let mut flow = flow();
            let mut present = 0;
            for (forth, amount) in pushes {
                let way = if forth { Way::along(0) } else { Way::against(0) };
                let amount = amount.min(flow.room(way));
                let length = flow.length(way);
                if amount > 0 {
                    prop_assert_eq!(flow.push(way, amount), flow.length(way) == length);
                    present += if forth { amount } else { -amount };
                }
                prop_assert_eq!(flow.on(0), present);
                let time_at = |flow: i64| match flow {
                    ..0 => NEVER,
                    0..10 => 4,
                    10..25 => 3,
                    25..40 => 2,
                    _ => 1,
                };
                prop_assert_eq!(flow.length(Way::along(0)), time_at(present));
                prop_assert_eq!(flow.length(Way::against(0)), -time_at(present - 1));
            }
        }

        #[test]
        fn there_is_room_up_to_the_next_bend(amount in 1_i64..10) {
            let mut flow = flow();
            prop_assert!(flow.push(Way::along(0), amount));
            prop_assert_eq!(flow.room(Way::along(0)), 10 - amount);
            prop_assert_eq!(flow.room(Way::against(0)), amount);
            prop_assert!(!flow.push(Way::along(0), 10 - amount));
            prop_assert_eq!(flow.room(Way::along(0)), 15);
            prop_assert_eq!(flow.room(Way::against(0)), 10);
        }
    }
}
