//! The instructions of a trial one by one, as far as there is room. Pure.

use pfo_protocol::{CounterReading, Doubt, InstructionSample, Mhz, Unit};

use crate::record::curve::{Knot, energy_between};

/// An instruction since whose end the GPU was not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unseen {
    sample: InstructionSample,
    began_j: Option<f64>,
}

impl Unseen {
    fn new(step: u64, unit: Unit, asked: Option<Mhz>, [began_ns, ended_ns]: [u64; 2]) -> Self {
        let sample = InstructionSample {
            step,
            unit,
            began_ns,
            ended_ns,
            mhz: asked,
            observed: None,
            throttle_reasons: 0,
            counter_j: None,
            counter_refreshes: 0,
            left_out: None,
        };
        Self { sample, began_j: None }
    }

    /// Takes in a reading while it ran or the first one thereafter, and why the clock was kept down
    /// since the reading before.
    pub(crate) fn see(&mut self, now: &CounterReading, reasons: u64) {
        self.sample.throttle_reasons |= reasons;
        if let Some(mhz) = now.sm_clock
            && (now.read_ns < self.sample.ended_ns || self.sample.observed.is_none())
        {
            self.sample.observed = Some((mhz, now.read_ns));
        }
    }

    /// Takes in two consecutive refreshes of the counter.
    pub(crate) fn read(&mut self, before: Knot, after: Knot) {
        let InstructionSample { began_ns, ended_ns, .. } = self.sample;
        if (began_ns..ended_ns).contains(&after.at_ns) {
            let refreshes = &mut self.sample.counter_refreshes;
            *refreshes = refreshes.saturating_add(1);
        }
        self.began_j = self.began_j.or_else(|| energy_between(before, after, began_ns));
        let ended_j = energy_between(before, after, ended_ns);
        self.sample.counter_j =
            ended_j.zip(self.began_j).map(|(ended_j, began_j)| ended_j - began_j);
    }
}

/// The instructions of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Instructions {
    /// How many more may be kept.
    room: usize,
    kept: Vec<InstructionSample>,
    /// Those since whose end the counter was not refreshed.
    unread: Vec<Unseen>,
    dropped: u64,
}

impl Instructions {
    pub(crate) fn new(room: usize) -> Self {
        Self { room, ..Self::default() }
    }

    /// Begins to keep an instruction, if there is room for it.
    pub(crate) fn begin(
        &mut self,
        step: u64,
        unit: Unit,
        asked: Option<Mhz>,
        times_ns: [u64; 2],
    ) -> Option<Box<Unseen>> {
        let Some(room) = self.room.checked_sub(1) else {
            self.dropped = self.dropped.saturating_add(1);
            return None;
        };
        self.room = room;
        Some(Box::new(Unseen::new(step, unit, asked, times_ns)))
    }

    /// Keeps one since whose end the GPU was read.
    pub(crate) fn keep(&mut self, mut over: Unseen, left_out: Option<Doubt>) {
        over.sample.left_out = left_out;
        self.unread.push(over);
    }

    /// Gives up some that had begun to be kept.
    pub(crate) fn forget(&mut self, count: usize) {
        self.room = self.room.saturating_add(count);
        self.dropped = self.dropped.saturating_add(count as u64);
    }

    /// Takes in two consecutive refreshes of the counter.
    pub(crate) fn read(&mut self, before: Knot, after: Knot) {
        for mut over in self.unread.drain(..) {
            over.read(before, after);
            self.kept.push(over.sample);
        }
    }

    /// All that were kept, and how many found no room.
    pub(crate) fn finish(self) -> (Vec<InstructionSample>, u64) {
        let Self { mut kept, unread, dropped, .. } = self;
        kept.extend(unread.into_iter().map(|over| over.sample));
        (kept, dropped)
    }
}
