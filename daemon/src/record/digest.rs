//! Makes what a trial tells of one rank from its events and the samples of its GPU, as both come in. The
//! memory that it takes does not grow with the length of the trial. Pure.

use std::collections::VecDeque;
use std::ops::Range;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use pfo_planner::Mhz;
use pfo_protocol::{Doubt, Instruction, InstructionSample, LeftOut, TrialRow, Unit, WaitPower};

use crate::record::curve::{Knot, energy_between};
use crate::record::regression::{MOST_KINDS, Power, Regression, Solution};
use crate::record::ring::Observed;
use crate::record::samples::{Samples, Unseen};
use crate::record::spread::Spread;

/// A wait begins so long after an instruction: until then the GPU has not come to rest, or the next
/// kernels are only being launched.
const PAUSE_NS: u64 = 500_000;

/// So long the counter is waited for after the last step.
const PATIENCE_NS: u64 = 2_000_000_000;

/// What a rank may tell between two samples. One that tells more is not measured meanwhile.
const MOST_SPANS: usize = 1 << 16;

/// What the driver reported of a GPU at some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When (`CLOCK_MONOTONIC`, ns).
    pub at_ns: u64,
    /// The energy counter, if it is known to have changed to this then.
    pub energy_j: Option<f64>,
    /// The SM clock.
    pub sm_clock: Option<Mhz>,
    /// Why the clock is what it is.
    pub reasons: ThrottleReasons,
    /// Whether pfo itself limits the power.
    pub power_limited: bool,
}

impl Sample {
    const NONE: Self = Self {
        at_ns: 0,
        energy_j: None,
        sm_clock: None,
        reasons: ThrottleReasons::empty(),
        power_limited: false,
    };

    /// Whether something slowed the GPU down.
    fn is_throttled(&self) -> bool {
        let mut slowed = ThrottleReasons::SW_POWER_CAP
            | ThrottleReasons::HW_SLOWDOWN
            | ThrottleReasons::SW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
        // A limit of pfo's is what is to be measured.
        slowed.set(ThrottleReasons::SW_POWER_CAP, !self.power_limited);
        self.reasons.intersects(slowed)
    }
}

/// A step, as one rank began it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepMark {
    /// Its number.
    pub step: u64,
    /// When it began.
    pub at_ns: u64,
    /// What the counter showed then.
    pub energy_j: Option<f64>,
}

/// What was recorded of one rank.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Every step of the range and the one after it.
    pub steps: Vec<StepMark>,
    /// Steps of the range that went astray.
    pub mismatched_steps: u64,
    /// Readings of the counter that powers were found from.
    pub readings: u64,
    /// Readings that fitted no powers.
    pub stray_readings: u64,
    /// The instructions.
    pub rows: Vec<TrialRow>,
    /// The waits.
    pub waits: Vec<WaitPower>,
    /// Each instruction by itself, if these were to be kept.
    pub samples: Vec<InstructionSample>,
    /// How many more of these there were.
    pub dropped_samples: u64,
}

/// What a rank does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Instruction {
        instruction: Instruction,
        chunk: u16,
        asked: Option<Mhz>,
    },
    Waiting {
        asked: Option<Mhz>,
    },
    /// Right after an instruction.
    Pausing {
        asked: Option<Mhz>,
    },
    /// After the last instruction of a step.
    Finishing,
    /// Between two steps.
    Between,
}

/// A piece of a rank's time.
#[derive(Clone, Copy, Debug)]
struct Span {
    began_ns: u64,
    ended_ns: u64,
    /// The number of what it did; none is not measured.
    kind: Option<usize>,
    doubt: Option<Doubt>,
    /// Whether it counts as one, and is no part or continuation of another.
    counts: bool,
    /// An instruction that is to be kept by itself.
    alone: Option<Unseen>,
}

/// What was found of one kind of time.
#[derive(Clone, Debug)]
struct Found {
    doing: Doing,
    time: Spread,
    clock: Spread,
    left_out: LeftOut,
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
    instructions: Option<Samples>,
}

impl Digest {
    /// Nothing yet of these steps; a clock counts as settled so long after the driver accepted it. So many
    /// instructions are kept by themselves.
    #[must_use]
    pub fn new(range: Range<u64>, settle_ns: u64, samples: Option<usize>) -> Self {
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
            instructions: samples.map(Samples::new),
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
        if self.instructions.is_some()
            && self.step_counts
            && let (Some(mark), Some(span)) = (self.steps.last(), self.spans.back_mut())
        {
            let times_ns = [span.began_ns, span.ended_ns];
            span.alone = Some(Unseen::new(mark.step, unit, asked, times_ns));
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

    /// Says what the rank did from the last event on. Returns the kind of that.
    fn span_until(&mut self, until_ns: u64, doing: Doing, doubt: Option<Doubt>) -> Option<usize> {
        let kind = self.kind_of(doing);
        self.push_span(until_ns, kind, doubt, true);
        kind
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
            instructions.drop_some(lost as u64);
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
                self.found.push(Found {
                    doing,
                    time: Spread::default(),
                    clock: Spread::default(),
                    left_out: LeftOut::default(),
                });
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
        while let Some(span) = self.spans.front().copied()
            && span.ended_ns <= sample.at_ns
        {
            self.spans.pop_front();
            self.count(&span);
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
    fn count(&mut self, span: &Span) {
        if let (Some(instructions), Some(alone)) = (&mut self.instructions, span.alone) {
            instructions.keep(alone, span.doubt);
        }
        let Some(found) = span.kind.map(|kind| &mut self.found[kind]) else { return };
        let left_out = &mut found.left_out;
        match span.doubt {
            _ if !span.counts => {}
            None => found.time.add((span.ended_ns - span.began_ns) as f64 / 1e9),
            Some(Doubt::Mismatched) => left_out.mismatched += 1,
            Some(Doubt::Settling) => left_out.settling += 1,
            Some(Doubt::Throttled) => left_out.throttled += 1,
            Some(Doubt::OtherClock) => left_out.other_clock += 1,
        }
    }

    /// What was recorded.
    #[must_use]
    pub fn finish(self) -> Recorded {
        let Solution { powers, moves: readings, strays: stray_readings } = self.regression.solve();
        let (mut rows, mut waits) = (Vec::new(), Vec::new());
        for (kind, Found { doing, time, clock, left_out }) in self.found.into_iter().enumerate() {
            let power = powers.get(kind).copied().flatten();
            match (doing, power) {
                (Doing::Instruction { instruction, chunk, asked }, power) => {
                    let root = (time.count() as f64).sqrt();
                    rows.push(TrialRow {
                        instruction,
                        chunk,
                        mhz: asked.map(|mhz| mhz.0),
                        observed_mhz: (clock.count() > 0).then(|| clock.mean()),
                        count: time.count(),
                        time_mean_s: time.mean(),
                        time_sd_s: time.deviation(),
                        time_median_s: time.median(),
                        energy_mean_j: power.map(|power| power.power_w * time.mean()),
                        energy_median_j: power.map(|power| power.power_w * time.median()),
                        energy_sd_j: power.map(|power| power.error_w * time.mean() * root),
                        left_out,
                    });
                }
                (Doing::Waiting { asked }, Some(Power { power_w, error_w })) => {
                    waits.push(WaitPower {
                        mhz: asked.map(|mhz| mhz.0),
                        count: time.count(),
                        time_s: time.mean() * time.count() as f64,
                        power_w,
                        power_error_w: error_w,
                    });
                }
                (_, _) => {}
            }
        }
        let Self { steps, mismatched_steps, instructions, .. } = self;
        let (samples, dropped_samples) = instructions.map(Samples::finish).unwrap_or_default();
        Recorded {
            steps,
            mismatched_steps,
            readings,
            stray_readings,
            rows,
            waits,
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
