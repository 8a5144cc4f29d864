//! When events happen, while the end of the step comes earlier and pulls some of them along.
//!
//! Events that keep their distance form a group. Where half a step is pulled or rests from one
//! moment on, its groups change as a whole, and only the events of the other half are touched.

const MOST_GROUPS: usize = 64;

/// The times of all events, in ns.
pub(super) struct EventTimes {
    /// For each event its group, and its time relative to the group's origin.
    group: Vec<u8>,
    from_origin: Vec<i64>,
    origin: [i64; MOST_GROUPS],
    groups: usize,
    /// One bit for each group that is pulled.
    pulled: u64,
    end: i64,
}

impl EventTimes {
    /// All events are pulled.
    pub(super) fn new(at: Vec<i64>, end: i64) -> Self {
        let group = vec![0; at.len()];
        let origin = [0; MOST_GROUPS];
        Self { group, from_origin: at, origin, groups: 1, pulled: 1, end }
    }

    pub(super) fn at(&self, event: u32) -> i64 {
        let event = event as usize;
        self.from_origin[event] + self.origin[usize::from(self.group[event])]
    }

    pub(super) fn is_pulled(&self, event: u32) -> bool {
        self.pulled >> self.group[event as usize] & 1 == 1
    }

    /// How long the step takes.
    pub(super) fn end(&self) -> i64 {
        self.end
    }

    /// Makes the step end earlier, and every pulled event with it.
    pub(super) fn pull_to(&mut self, end: i64) {
        let earlier = self.end - end;
        self.end = end;
        for (group, origin) in self.origin[..self.groups].iter_mut().enumerate() {
            if self.pulled >> group & 1 == 1 {
                *origin -= earlier;
            }
        }
    }

    /// Makes these events pulled or resting.
    pub(super) fn turn(&mut self, events: &[u32], pulled: bool) {
        let alike = if pulled { self.pulled } else { !self.pulled };
        let group = alike.trailing_zeros() as usize;
        let group = if group < self.groups { group } else { self.add_group(pulled) };
        self.regroup(events, group);
    }

    /// Makes all events but these pulled or resting.
    pub(super) fn turn_others(&mut self, events: &[u32], pulled: bool) {
        let group = self.add_group(!pulled);
        self.regroup(events, group);
        self.pulled = if pulled { !(1 << group) } else { 1 << group };
    }

    fn add_group(&mut self, pulled: bool) -> usize {
        if self.groups == MOST_GROUPS {
            self.merge_groups();
        }
        let group = self.groups;
        self.groups += 1;
        self.origin[group] = 0;
        self.pulled = self.pulled & !(1 << group) | u64::from(pulled) << group;
        group
    }

    /// Leaves one group of resting events and one of pulled ones.
    fn merge_groups(&mut self) {
        for event in 0..self.group.len() {
            let at = self.at(event as u32);
            self.group[event] = u8::from(self.is_pulled(event as u32));
            self.from_origin[event] = at;
        }
        self.origin = [0; MOST_GROUPS];
        (self.groups, self.pulled) = (2, 0b10);
    }

    fn regroup(&mut self, events: &[u32], group: usize) {
        for &event in events {
            let from_origin = self.at(event) - self.origin[group];
            self.from_origin[event as usize] = from_origin;
            self.group[event as usize] = group as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVENTS: u32 = 12;

    #[derive(Clone, Debug)]
    enum Change {
        Turn(Vec<u32>, bool),
        TurnOthers(Vec<u32>, bool),
        Pull(i64),
    }

    fn any_change() -> impl Strategy<Value = Change> {
        let few = || prop::collection::vec(0..EVENTS, 0..4);
        prop_oneof![
            (few(), any::<bool>()).prop_map(|(few, pulled)| Change::Turn(few, pulled)),
            (few(), any::<bool>()).prop_map(|(few, pulled)| Change::TurnOthers(few, pulled)),
            (0_i64..10).prop_map(Change::Pull),
        ]
    }

    proptest! {
        // More changes than there are groups.
        #[test]
        fn what_is_pulled_moves_with_the_end_and_all_else_stays(
            changes in prop::collection::vec(any_change(), 1..250),
        ) {
            let at: Vec<i64> = (0..i64::from(EVENTS)).collect();
            let mut times = EventTimes::new(at.clone(), 10_000);
            let mut expected: Vec<(i64, bool)> = at.into_iter().map(|at| (at, true)).collect();
            for change in changes {
                match change {
                    Change::Turn(few, pulled) => {
                        times.turn(&few, pulled);
                        few.iter().for_each(|&event| expected[event as usize].1 = pulled);
                    }
                    Change::TurnOthers(few, pulled) => {
                        times.turn_others(&few, pulled);
                        for (event, (_, is_pulled)) in (0..).zip(&mut expected) {
                            *is_pulled = pulled != few.contains(&event);
                        }
                    }
                    Change::Pull(earlier) => {
                        times.pull_to(times.end() - earlier);
                        for (at, _) in expected.iter_mut().filter(|(_, pulled)| *pulled) {
                            *at -= earlier;
                        }
                    }
                }
                let present: Vec<(i64, bool)> =
                    (0..EVENTS).map(|event| (times.at(event), times.is_pulled(event))).collect();
                prop_assert_eq!(&present, &expected);
            }
        }
    }
}
