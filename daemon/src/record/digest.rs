//! Makes what a trial tells of one rank from its events and the samples of its GPU, as both come in. The
//! memory that it takes does not grow with the length of the trial; where instructions are kept by
//! themselves, not beyond the room for them. Pure.

use std::collections::VecDeque;
use std::ops::Range;

use pfo_planner::Mhz;
use pfo_protocol::{Doubt, Unit};

use crate::record::curve::{Knot, energy_between};
use crate::record::found::{Doing, Found};
use crate::record::instructions::{Instructions, Unseen};
use crate::record::recorded::{Recorded, StepMark};
use crate::record::regression::{MOST_KINDS, Regression, Solution};
use crate::record::ring::Observed;
use crate::record::sample::Sample;

/// A wait begins so long after an instruction: until then the GPU has not come to rest, or the next
/// kernels are only being launched.
const PAUSE_NS: u64 = 500_000;

/// So long the counter is waited for after the last step.
const PATIENCE_NS: u64 = 2_000_000_000;

/// What a rank may tell between two samples. One that tells more is not measured meanwhile.
const MOST_SPANS: usize = 1 << 16;

/// A piece of a rank's time.
#[derive(Clone, Debug)]
struct Span {
    began_ns: u64,
    ended_ns: u64,
    /// The number of what it did; none is not measured.
    kind: Option<usize>,
    doubt: Option<Doubt>,
    /// Whether it counts as one, and is no part or continuation of another.
    counts: bool,
    /// An instruction that is to be kept by itself.
    alone: Option<Box<Unseen>>,
}

/// The time between two readings of the counter, as far as it is known.
#[derive(Clone, Debug, Default)]
struct Interval {
    since: Option<Knot>,
    seconds: Vec<(usize, f64)>,
    unusable: bool,
}

impl Interval {
    fn add(&mut self, kind: usize, s: f64) {
        match self.seconds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, seconds)) => *seconds += s,
            None => self.seconds.push((kind, s)),
        }
    }
}

/// A rank that is being recorded.
#[derive(Debug)]
pub struct Digest {
    range: Range<u64>,
    settle_ns: u64,
    steps: Vec<StepMark>,
    /// Steps whose energy is known.
    steps_read: usize,
    step_counts: bool,
    /// The last step of the range is over.
    over_ns: Option<u64>,
    mismatched_steps: u64,
    found: Vec<Found>,
    spans: VecDeque<Span>,
    /// What the last event said, up to which everything is known.
    known_ns: Option<u64>,
    /// It said that an instruction ended.
    after_instruction: bool,
    samples: VecDeque<Sample>,
    /// The last one that was taken in.
    sampled: Sample,
    interval: Interval,
    regression: Regression,
    /// Each instruction by itself, if somebody wants that.
    instructions: Option<Instructions>,
}

impl Digest {
    /// Nothing yet of these steps; a clock counts as settled so long after the driver accepted it. There is
    /// room for so many instructions by themselves, if these are to be kept.
    #[must_use]
    pub fn new(range: Range<u64>, settle_ns: u64, room: Option<usize>) -> Self {
        Self {
            range,
            settle_ns,
            steps: Vec::new(),
            steps_read: 0,
            step_counts: false,
            over_ns: None,
            mismatched_steps: 0,
            found: Vec::new(),
            spans: VecDeque::new(),
            known_ns: None,
            after_instruction: false,
            samples: VecDeque::new(),
            sampled: Sample::NONE,
            interval: Interval::default(),
            regression: Regression::default(),
            instructions: room.map(Instructions::new),
        }
    }

    /// Whether everything is there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let read = |over_ns| {
            self.steps_read == self.steps.len() || self.sampled.at_ns > over_ns + PATIENCE_NS
        };
        self.over_ns.is_some_and(read)
    }

    /// Takes in what a rank told.
    pub fn observe(&mut self, observed: Observed) {
        match observed {
            Observed::StepBegan { step, at_ns, astray } => {
                self.span_until(at_ns, Doing::Between, doubt_if(astray));
                self.end_step(astray);
                self.begin_step(step, at_ns);
            }
            Observed::StepEnded { at_ns, astray } => {
                self.span_until(at_ns, Doing::Finishing, doubt_if(astray));
                self.end_step(astray);
            }
            Observed::Ran { unit, began_ns, ended_ns, asked, locked, astray } => {
                let settled_ns = match (asked, locked) {
                    (None, None) => Some(0),
                    (Some(asked), Some((mhz, accepted_ns))) if asked == mhz => {
                        Some(accepted_ns.saturating_add(self.settle_ns))
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
        }
        self.take_in_samples();
    }

    /// Keeps by itself what ran last, if that is wanted.
    fn keep_alone(&mut self, unit: Unit, asked: Option<Mhz>) {
        if self.step_counts
            && let Some(instructions) = &mut self.instructions
            && let (Some(mark), Some(span)) = (self.steps.last(), self.spans.back_mut())
        {
            span.alone = instructions.told(mark.step, unit, asked, [span.began_ns, span.ended_ns]);
        }
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

    fn end_step(&mut self, astray: bool) {
        if astray && self.step_counts {
            self.mismatched_steps += 1;
        }
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

    /// Says what the rank did from the last event on.
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
        // Times are the peer's word, and may go back.
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
                self.found.len() - 1
            })
        })
    }

    /// Takes in what the driver reported. What comes out of order, because its time had to be found
    /// out, is left out.
    pub fn sample(&mut self, sample: Sample) {
        let newest_ns = self.samples.back().map_or(self.sampled.at_ns, |newest| newest.at_ns);
        if sample.at_ns < newest_ns {
            return;
        }
        if self.samples.len() >= MOST_SPANS {
            // A rank that says nothing for so long has nothing to be measured.
            self.samples.clear();
            self.interval = Interval { unusable: true, ..Interval::default() };
        }
        self.samples.push_back(sample);
        self.take_in_samples();
    }

    fn take_in_samples(&mut self) {
        while let Some(sample) = self.samples.front().copied()
            && self.known_ns.is_some_and(|known_ns| sample.at_ns <= known_ns)
        {
            self.samples.pop_front();
            self.take_in(sample);
        }
    }

    /// Takes in a sample up to which everything is known.
    fn take_in(&mut self, sample: Sample) {
        let former = std::mem::replace(&mut self.sampled, sample);
        let from_ns = former.at_ns;
        let covered = self.spans.front().is_some_and(|span| span.began_ns <= from_ns);
        // It began or ended between the two.
        let throttled = former.is_throttled() || sample.is_throttled();
        self.interval.unusable |= !covered || throttled;
        for span in &mut self.spans {
            if span.began_ns >= sample.at_ns {
                break;
            }
            if let Some(alone) = &mut span.alone {
                alone.see(&former, &sample);
            }
            let found = span.kind.map(|kind| &mut self.found[kind]);
            if throttled {
                span.doubt.get_or_insert(Doubt::Throttled);
            }
            if let Some(found) = found
                && let Doing::Instruction { asked, .. } = found.doing
                && let Some(clock) = sample.sm_clock
                && span.ended_ns > sample.at_ns
                && span.doubt.is_none()
            {
                if asked.is_some_and(|asked| asked != clock) {
                    span.doubt = Some(Doubt::OtherClock);
                } else {
                    found.clock.add(clock.0.into());
                }
            }
            match (span.kind, span.doubt) {
                (Some(kind), None) => {
                    let ns = span.ended_ns.min(sample.at_ns) - span.began_ns.max(from_ns);
                    self.interval.add(kind, ns as f64 / 1e9);
                }
                _ => self.interval.unusable = true,
            }
        }
        while let Some(span) = self.spans.pop_front_if(|span| span.ended_ns <= sample.at_ns) {
            self.count(span);
        }
        if let Some(energy_j) = sample.energy_j {
            self.read_counter(Knot { at_ns: sample.at_ns, energy_j });
        }
    }

    fn read_counter(&mut self, knot: Knot) {
        let interval = Interval { since: Some(knot), ..Interval::default() };
        let Interval { since, seconds, unusable } = std::mem::replace(&mut self.interval, interval);
        let Some(before) = since else { return };
        if !unusable {
            self.regression.add(seconds, knot.energy_j - before.energy_j);
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
            self.steps_read += 1;
        }
    }

    /// Counts a span that is over.
    fn count(&mut self, span: Span) {
        let Span { began_ns, ended_ns, kind, doubt, counts, alone } = span;
        if let Some((instructions, alone)) = self.instructions.as_mut().zip(alone) {
            instructions.keep(*alone, doubt);
        }
        if let Some(found) = kind.filter(|_| counts).map(|kind| &mut self.found[kind]) {
            found.count(ended_ns - began_ns, doubt);
        }
    }

    /// What was recorded.
    #[must_use]
    pub fn finish(self) -> Recorded {
        let Self { steps, mismatched_steps, found, instructions, .. } = self;
        let Solution { powers, moves: readings, strays: stray_readings } = self.regression.solve();
        let power = |kind: usize| powers.get(kind).copied().flatten();
        let (samples, dropped_samples) = instructions.map(Instructions::finish).unwrap_or_default();
        Recorded {
            steps,
            mismatched_steps,
            readings,
            stray_readings,
            rows: (0..).zip(&found).filter_map(|(kind, found)| found.row(power(kind))).collect(),
            waits: (0..).zip(&found).filter_map(|(kind, found)| found.wait(power(kind))).collect(),
            samples,
            dropped_samples,
        }
    }
}

fn doubt_if(astray: bool) -> Option<Doubt> {
    astray.then_some(Doubt::Mismatched)
}

#[cfg(test)]
mod tests;
