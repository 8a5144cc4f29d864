//! The rhythm in which a counter is refreshed: a line through the observed changes. Pure.
//!
//! Each change is only known to lie between two reads. Many of them together give a regular
//! counter's rhythm ten times as precisely, and with it the times of changes that were not
//! observed. A counter without a rhythm is recognised, and gets none.

use std::collections::VecDeque;

/// The most and the fewest changes that the line is fitted to. The rhythm drifts a little against
/// our clock.
const MOST_SEEN: usize = 64;
const LEAST_SEEN: usize = 16;

/// One change in this many may lie further off the line than the reads around it and this tolerance
/// allow.
const FEW: usize = 16;
const SLACK_NS: f64 = 50_000.0;

/// After this many periods without an observed change, the line is no longer trusted.
const MOST_UNSEEN: f64 = 32.0;

/// A change this close to a read, or as close as the reads around other changes, may have been before
/// or after it.
const NEAR_NS: f64 = 200_000.0;

/// An observed change.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// How many periods after the first.
    number: f64,
    /// The middle between the two reads around it.
    at_ns: u64,
    /// How far the two reads are from the middle.
    half_ns: f64,
}

/// Times of changes by their number, relative to the last one.
#[derive(Clone, Copy, Debug)]
struct Line {
    last: Seen,
    offset_ns: f64,
    period_ns: f64,
}

impl Line {
    fn off_ns(&self, seen: &Seen) -> f64 {
        since(self.last.at_ns, seen.at_ns)
            - self.offset_ns
            - (seen.number - self.last.number) * self.period_ns
    }

    /// How many periods after the last change a time is.
    fn periods(&self, ns: u64) -> f64 {
        (since(self.last.at_ns, ns) - self.offset_ns) / self.period_ns
    }

    /// The time `periods` after the last change.
    fn at_ns(&self, periods: f64) -> u64 {
        self.last.at_ns.saturating_add_signed((self.offset_ns + periods * self.period_ns) as i64)
    }
}

/// From one time to another, which may be before it.
fn since(from_ns: u64, until_ns: u64) -> f64 {
    until_ns.wrapping_sub(from_ns).cast_signed() as f64
}

/// The rhythm, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rhythm {
    seen: VecDeque<Seen>,
    /// Changes since the last of these.
    passed: f64,
    line: Option<Line>,
    trusted: bool,
}

impl Rhythm {
    /// Takes a change at an unknown time.
    pub(crate) fn pass(&mut self) {
        self.passed += 1.0;
    }

    /// Takes a change that lies between two reads. Returns its time.
    pub(crate) fn learn(&mut self, same_ns: u64, got_ns: u64) -> u64 {
        let at_ns = same_ns.midpoint(got_ns);
        let half_ns = got_ns.saturating_sub(same_ns) as f64 / 2.0;
        let mut number = 0.0;
        let at_least = 1.0 + std::mem::take(&mut self.passed);
        if let Some(last) = self.seen.back().copied() {
            // Some changes in between may not have altered the value.
            let periods = self
                .line
                .map_or(at_least, |line| (since(last.at_ns, at_ns) / line.period_ns).round());
            if periods < at_least {
                // The counter is refreshed more often than it seemed.
                *self = Self { seen: [last].into(), ..Self::default() };
            }
            number = last.number + periods.max(at_least);
        }
        self.seen.drain(..self.seen.len().saturating_sub(MOST_SEEN - 1));
        self.seen.push_back(Seen { number, at_ns, half_ns });
        self.line = self.fit();
        self.trusted = self.line.is_some_and(|line| {
            let is_off = |seen: &&Seen| line.off_ns(seen).abs() > seen.half_ns + SLACK_NS;
            let off = self.seen.iter().filter(is_off).count();
            self.seen.len() >= LEAST_SEEN && off <= self.seen.len() / FEW
        });
        let trusted = self.line.filter(|_| self.trusted);
        trusted.map_or(at_ns, |line| line.at_ns(0.0).clamp(same_ns, got_ns))
    }

    /// The least-squares line.
    fn fit(&self) -> Option<Line> {
        let last = *self.seen.back()?;
        let count = self.seen.len() as f64;
        let x = |seen: &Seen| seen.number - last.number;
        let y = |seen: &Seen| since(last.at_ns, seen.at_ns);
        let mean_x = self.seen.iter().map(x).sum::<f64>() / count;
        let mean_y = self.seen.iter().map(y).sum::<f64>() / count;
        let products = self.seen.iter().map(|seen| (x(seen) - mean_x) * (y(seen) - mean_y));
        let squares = self.seen.iter().map(|seen| (x(seen) - mean_x).powi(2)).sum::<f64>();
        let period_ns = products.sum::<f64>() / squares;
        let offset_ns = mean_y - period_ns * mean_x;
        (period_ns >= 1.0).then_some(Line { last, offset_ns, period_ns })
    }

    /// The last change that was taken, where the line has it, and the period, as far as it is known.
    pub(crate) fn last_and_period_ns(&self) -> Option<(u64, u64)> {
        self.line.map(|line| (line.at_ns(0.0), line.period_ns as u64))
    }

    /// Whether enough changes were seen where they were expected.
    pub(crate) fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// How far after an expected change a read has certainly seen it.
    pub(crate) fn near_ns(&self) -> f64 {
        let halves_ns = self.seen.iter().map(|seen| seen.half_ns).sum::<f64>();
        NEAR_NS.max(halves_ns / self.seen.len().max(1) as f64)
    }

    /// When the last change before a read must have been; `None` if that is not certain.
    pub(crate) fn before(&self, asked_ns: u64, got_ns: u64) -> Option<u64> {
        let line = self.line.filter(|_| self.trusted)?;
        let near = self.near_ns() / line.period_ns;
        let change = (line.periods(asked_ns) - near).floor();
        let alone = line.periods(got_ns) + near < change + 1.0;
        (alone && (0.0..=MOST_UNSEEN).contains(&change)).then(|| line.at_ns(change))
    }
}
