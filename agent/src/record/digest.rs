//! The digest of one rank's trial: its events and the readings of its GPU go in as they arrive, and
//! what its instructions and waits took comes out.
//!
//! The memory does not grow with the length of the trial. Instructions that are kept one by one
//! take no more than the room given to them. Pure.

use std::collections::VecDeque;
use std::ops::Range;

use pfo_protocol::{CounterReading, Doubt, Mhz, SettleTimes, TapRecord, Unit};

use crate::record::curve::{Knot, energy_between};
use crate::record::found::{Doing, Found};
use crate::record::instructions::{Instructions, Unseen};
use crate::record::looks::{Looks, Piece, seconds};
use crate::record::recorded::{Recorded, StepMark};
use crate::record::regression::{MOST_KINDS, Regression, Solution};
use crate::record::sample::{NO_READING, Throttling};

/// What lies between an instruction and its wait: the GPU has not come to rest yet, or the next
/// kernels are being launched.
const PAUSE_NS: u64 = 500_000;

/// How long the counter is awaited after the last step.
const PATIENCE_NS: u64 = 2_000_000_000;

/// The pieces of a rank's time between two readings. A rank that reports more is not measured
/// meanwhile.
const MOST_SPANS: usize = 1 << 16;

/// The pieces between two values of the counter. What has more is not measured.
const MOST_PIECES: usize = 1 << 14;

/// A piece of a rank's time.
#[derive(Clone, Debug)]
struct Span {
    began_ns: u64,
    ended_ns: u64,
    /// Its place among what was found; none is not measured.
    kind: Option<usize>,
    doubt: Option<Doubt>,
    /// Whether it counts as one. A part of another one does not.
    counts: bool,
    /// The instruction, if it is kept one by one.
    alone: Option<Box<Unseen>>,
}

/// The time between two readings of the counter, as far as it is known.
#[derive(Clone, Debug, Default)]
struct Interval {
    since: Option<Knot>,
    pieces: Vec<Piece>,
    /// For how long a steady reason kept the clock down.
    throttled_s: f64,
    unusable: bool,
}

impl Interval {
    /// Adds a piece that follows the last one.
    fn add(&mut self, piece: Piece) {
        if let Some(last) = self.pieces.last_mut().filter(|last| last.kind == piece.kind) {
            last.ended_ns = piece.ended_ns;
        } else if self.pieces.len() < MOST_PIECES {
            self.pieces.push(piece);
        } else {
            self.unusable = true;
        }
    }
}

/// What has to be known about the GPU of a rank.
#[derive(Clone, Debug)]
pub(crate) struct RecordedGpu {
    /// The SM clocks that it supports, rising.
    pub(crate) sm_clocks: Vec<Mhz>,
    /// When a requested clock is in force.
    pub(crate) settle: SettleTimes,
}

/// The trial of one rank, as far as it is known.
#[derive(Debug)]
pub(crate) struct Digest {
    range: Range<u64>,
    gpu: RecordedGpu,
    steps: Vec<StepMark>,
    /// Steps whose energy is known.
    steps_read: usize,
    step_counts: bool,
    mismatched_steps: u64,
    /// When the last step of the range was over.
    over_ns: Option<u64>,
    found: Vec<Found>,
    spans: VecDeque<Span>,
    /// The time of the last event, up to which everything is known.
    known_ns: Option<u64>,
    /// Whether that was the end of an instruction.
    after_instruction: bool,
    readings: VecDeque<CounterReading>,
    /// The last reading that was taken in.
    reading: CounterReading,
    interval: Interval,
    energies: Looks,
    /// The same of the time for which a steady reason kept the clock down, where the driver counts
    /// it: seconds instead of joules, and so shares of time instead of powers.
    throttled: Regression,
    /// Whether the driver counts the time of every steady reason.
    counts_all: bool,
    /// The instructions one by one, if they are to be kept.
    instructions: Option<Instructions>,
}

impl Digest {
    /// A digest of these steps. `room` is for instructions that are kept one by one.
    pub(crate) fn new(range: Range<u64>, gpu: RecordedGpu, room: Option<usize>) -> Self {
        Self {
            range,
            gpu,
            steps: Vec::new(),
            steps_read: 0,
            step_counts: false,
            mismatched_steps: 0,
            over_ns: None,
            found: Vec::new(),
            spans: VecDeque::new(),
            known_ns: None,
            after_instruction: false,
            readings: VecDeque::new(),
            reading: NO_READING,
            interval: Interval::default(),
            energies: Looks::default(),
            throttled: Regression::default(),
            counts_all: true,
            instructions: room.map(Instructions::new),
        }
    }

    /// Whether the trial is over and the energy of its steps is known.
    pub(crate) fn is_complete(&self) -> bool {
        let read = |over_ns: u64| {
            self.steps_read == self.steps.len()
                || self.reading.at_ns > over_ns.saturating_add(PATIENCE_NS)
        };
        self.over_ns.is_some_and(read)
    }

    /// Takes in the next record of the rank. Readings out of order are left out: their time had to
    /// be found.
    pub(crate) fn take(&mut self, record: TapRecord) {
        match record {
            TapRecord::StepBegan { step, at_ns, astray } => {
                self.count_step(astray);
                self.span_until(at_ns, Doing::Between, doubt_if(astray));
                self.begin_step(step, at_ns);
            }
            TapRecord::StepEnded { at_ns, astray } => {
                self.count_step(astray);
                self.span_until(at_ns, Doing::Finishing, doubt_if(astray));
                self.after_instruction = false;
            }
            TapRecord::Ran { unit, began_ns, ended_ns, asked, locked, astray } => {
                let settled_ns = match (asked, locked) {
                    (None, None) => Some(0),
                    (Some(asked), Some((mhz, asked_ns))) if asked == mhz => {
                        Some(asked_ns.saturating_add(self.gpu.settle.ns_to(mhz)))
                    }
                    _ => None,
                };
                self.wait_until(began_ns, asked, settled_ns, astray);
                let settled = settled_ns.is_some_and(|settled_ns| settled_ns <= began_ns);
                let doubt = doubt_if(astray).or((!settled).then_some(Doubt::Settling));
                let doing =
                    Doing::Instruction { instruction: unit.instruction, chunk: unit.chunk, asked };
                self.span_until(ended_ns, doing, doubt);
                self.after_instruction = true;
                self.keep_alone(unit, asked);
            }
            TapRecord::Counter(reading) => self.queue(reading),
            TapRecord::TrialBegan { .. } | TapRecord::Ended => {}
        }
        self.take_in_readings();
    }

    /// Keeps what ran last, if instructions are kept one by one.
    fn keep_alone(&mut self, unit: Unit, asked: Option<Mhz>) {
        if self.step_counts
            && let Some(instructions) = &mut self.instructions
            && let (Some(mark), Some(span)) = (self.steps.last(), self.spans.back_mut())
        {
            span.alone = instructions.begin(mark.step, unit, asked, [span.began_ns, span.ended_ns]);
        }
    }

    fn count_step(&mut self, astray: bool) {
        let mismatched = u64::from(astray && self.step_counts);
        self.mismatched_steps = self.mismatched_steps.saturating_add(mismatched);
    }

    fn begin_step(&mut self, step: u64, at_ns: u64) {
        if self.range.contains(&step) || self.step_counts && step == self.range.end {
            self.steps.push(StepMark { step, at_ns, energy_j: None });
        }
        if step >= self.range.end && self.over_ns.is_none() {
            self.over_ns = Some(at_ns);
        }
        self.step_counts = self.range.contains(&step);
        self.after_instruction = false;
    }

    /// What lies before an instruction: a pause and a wait, as far as their clock has settled.
    fn wait_until(
        &mut self,
        began_ns: u64,
        asked: Option<Mhz>,
        settled_ns: Option<u64>,
        astray: bool,
    ) {
        let settled_ns = settled_ns.unwrap_or(u64::MAX).min(began_ns);
        let waiting = Doing::Waiting { asked };
        if std::mem::take(&mut self.after_instruction) {
            let rest_ns = self.known_ns.unwrap_or(0).saturating_add(PAUSE_NS).min(began_ns);
            let unsettled = (settled_ns > self.known_ns.unwrap_or(0)).then_some(Doubt::Settling);
            self.span_until(rest_ns, Doing::Pausing { asked }, doubt_if(astray).or(unsettled));
        }
        if self.known_ns.is_some_and(|known_ns| settled_ns > known_ns) {
            let kind = self.kind_of(waiting);
            self.push_span(settled_ns, kind, Some(Doubt::Settling), false);
        }
        if self.known_ns.is_some_and(|known_ns| began_ns > known_ns) {
            self.span_until(began_ns, waiting, doubt_if(astray));
        }
    }

    /// Adds what the rank did since the last event.
    fn span_until(&mut self, until_ns: u64, doing: Doing, doubt: Option<Doubt>) {
        let kind = self.kind_of(doing);
        self.push_span(until_ns, kind, doubt, true);
    }

    fn push_span(
        &mut self,
        until_ns: u64,
        kind: Option<usize>,
        doubt: Option<Doubt>,
        counts: bool,
    ) {
        // The peer reports the times, and they may go back.
        let ended_ns = self.known_ns.map_or(until_ns, |known_ns| until_ns.max(known_ns));
        if let Some(began_ns) = self.known_ns.replace(ended_ns) {
            if self.spans.len() >= MOST_SPANS {
                self.forget_spans();
            }
            self.spans.push_back(Span { began_ns, ended_ns, kind, doubt, counts, alone: None });
        }
    }

    fn forget_spans(&mut self) {
        let lost = self.spans.drain(..).filter(|span| span.alone.is_some()).count();
        if let Some(instructions) = &mut self.instructions {
            instructions.forget(lost);
        }
        self.interval = Interval { unusable: true, ..Interval::default() };
    }

    fn kind_of(&mut self, doing: Doing) -> Option<usize> {
        if !self.step_counts {
            return None;
        }
        let known = self.found.iter().rposition(|found| found.doing == doing);
        known.or_else(|| {
            (self.found.len() < MOST_KINDS).then(|| {
                self.found.push(Found::none(doing));
                self.found.len().saturating_sub(1)
            })
        })
    }

    fn queue(&mut self, reading: CounterReading) {
        let newest_ns = self.readings.back().map_or(self.reading.at_ns, |newest| newest.at_ns);
        if reading.at_ns < newest_ns {
            return;
        }
        if self.readings.len() >= MOST_SPANS {
            // A rank that is silent for that long has nothing to be measured.
            self.readings.clear();
            self.interval = Interval { unusable: true, ..Interval::default() };
        }
        self.readings.push_back(reading);
    }

    fn take_in_readings(&mut self) {
        while let Some(reading) = self.readings.front().copied()
            && self.known_ns.is_some_and(|known_ns| reading.read_ns.max(reading.at_ns) <= known_ns)
        {
            self.readings.pop_front();
            self.take_in(reading);
        }
    }

    /// Takes in a reading up to which everything is known.
    fn take_in(&mut self, reading: CounterReading) {
        let former = std::mem::replace(&mut self.reading, reading);
        let from_ns = former.at_ns;
        let covered = self.spans.front().is_some_and(|span| span.began_ns <= from_ns);
        let throttling = Throttling::between(&former, &reading);
        self.interval.throttled_s += throttling.steady_s;
        self.counts_all &= throttling.steady_now.is_none();
        self.interval.unusable |= !covered || throttling.disturbs();
        if !throttling.disturbs() {
            self.see_clock(&reading, throttling);
        }
        for span in &mut self.spans {
            if span.began_ns >= reading.at_ns {
                break;
            }
            if let Some(alone) = &mut span.alone {
                alone.see(&reading, throttling.reasons);
            }
            if throttling.disturbs() {
                span.doubt.get_or_insert(Doubt::Throttled);
            }
            match (span.kind, span.doubt) {
                (Some(kind), None) => {
                    let began_ns = span.began_ns.max(from_ns);
                    let ended_ns = span.ended_ns.min(reading.at_ns).max(began_ns);
                    self.interval.add(Piece { kind, began_ns, ended_ns });
                }
                _ => self.interval.unusable = true,
            }
        }
        while let Some(span) = self.spans.pop_front_if(|span| span.ended_ns <= reading.at_ns) {
            self.count(span);
        }
        if let Some(energy_j) = reading.energy_j {
            self.read_counter(Knot { at_ns: reading.at_ns, energy_j });
        }
    }

    /// Takes the clock of a reading, and what kept it down, for what ran when it was read.
    fn see_clock(&mut self, reading: &CounterReading, throttling: Throttling) {
        let mut spans = self.spans.iter_mut();
        if let Some(span) = spans.find(|span| reading.read_ns < span.ended_ns)
            && span.began_ns < reading.read_ns
            && let Some(kind) = span.kind
        {
            let found = &mut self.found[kind];
            found.see_throttling(throttling);
            let Some(clock) = reading.sm_clock else { return };
            span.doubt = span.doubt.or_else(|| found.see_clock(clock, throttling, &self.gpu));
        }
    }

    fn read_counter(&mut self, knot: Knot) {
        let interval = Interval { since: Some(knot), ..Interval::default() };
        let Interval { since, pieces, throttled_s, unusable } =
            std::mem::replace(&mut self.interval, interval);
        let Some(before) = since else { return };
        if !unusable {
            self.throttled.add(seconds(pieces.iter().copied()), throttled_s);
            self.energies.add(pieces, knot.energy_j - before.energy_j);
        }
        if let Some(instructions) = &mut self.instructions {
            instructions.read(before, knot);
            let running = self.spans.iter_mut().take_while(|span| span.began_ns < knot.at_ns);
            running
                .filter_map(|span| span.alone.as_mut())
                .for_each(|alone| alone.read(before, knot));
        }
        let unread = self.steps.get_mut(self.steps_read..).unwrap_or_default();
        for mark in unread.iter_mut().take_while(|mark| mark.at_ns <= knot.at_ns) {
            mark.energy_j = energy_between(before, knot, mark.at_ns);
            self.steps_read = self.steps_read.saturating_add(1);
        }
    }

    /// Counts a span that is over.
    fn count(&mut self, span: Span) {
        let Span { began_ns, ended_ns, kind, doubt, counts, alone } = span;
        if let Some((instructions, alone)) = self.instructions.as_mut().zip(alone) {
            instructions.keep(*alone, doubt);
        }
        if let Some(found) = kind.filter(|_| counts).map(|kind| &mut self.found[kind]) {
            found.count(ended_ns.saturating_sub(began_ns), doubt);
        }
    }

    /// Everything that was recorded.
    pub(crate) fn finish(self) -> Recorded {
        let Self { steps, mismatched_steps, found, instructions, counts_all, .. } = self;
        let Solution { powers, moves: readings, strays: stray_readings, .. } =
            self.energies.solve().explained();
        let shares = self.throttled.solve().powers;
        let power = |kind: usize| powers.get(kind).copied().flatten();
        let share = |kind: usize| Some(shares.get(kind).copied().flatten()?.power_w);
        let (samples, dropped_samples) = instructions.map(Instructions::finish).unwrap_or_default();
        let kinds = || (0..).zip(&found);
        Recorded {
            steps,
            mismatched_steps,
            readings,
            stray_readings,
            rows: kinds()
                .filter_map(|(kind, found)| found.row(power(kind), share(kind), counts_all))
                .collect(),
            waits: kinds().filter_map(|(kind, found)| found.wait(power(kind))).collect(),
            samples,
            dropped_samples,
        }
    }
}

fn doubt_if(astray: bool) -> Option<Doubt> {
    astray.then_some(Doubt::Mismatched)
}

#[cfg(test)]
mod played;
#[cfg(test)]
mod tests;
