//! Judges the energy counter of a GPU by its power readings and its power limit. Pure: every time is
//! an argument. It must not believe a reading because the driver returned it.
//!
//! A reading below the last one, or further above it than the GPU can draw, is dropped. If the next
//! one follows the dropped one, the counter was reset, and counting continues from there; if it
//! follows the last accepted one, the dropped one was a spike. Energy counted is compared with power
//! samples taken at irregular times: the mean of these has an error, which the comparison allows for.

use std::collections::VecDeque;
use std::fmt;

/// Nothing draws more than this many times the power limit of its GPU, a module neither. A counter that
/// is refreshed every half second shows the energy of that time at once.
const MOST_LIMITS: f64 = 3.0;
const REFRESH_S: f64 = 0.2;
/// In place of a limit that the driver does not report, in watts.
const UNKNOWN_LIMIT_W: f64 = 1500.0;

/// A counter that shows the same for this long, while at least this much is drawn, stands still; one
/// that cannot be read for this long is in doubt.
const STILL_S: f64 = 5.0;
const STILL_J: f64 = 20.0;

/// A counter that counts less than this part of the power reading is in doubt; one that counts more
/// than this multiple for this long counts more than the GPU, such as its module.
const LEAST_RATIO: f64 = 0.85;
const MOST_RATIO: f64 = 1.25;
const MODULE_S: f64 = 30.0;
/// How many standard errors of the mean power are allowed for. A counter's refreshes and a reading that
/// is an average over a second shift energy at the edges: by `EDGES_S` of the highest power at most.
const ERRORS: f64 = 2.0;
const EDGES_S: f64 = 1.0;
/// The fewest power samples that are compared.
const LEAST_SAMPLES: f64 = 25.0;

/// The comparison is over this time, or as many samples if the driver answers late, and over every
/// shorter time until now.
const COMPARED_S: f64 = 30.0;
const ENOUGH: usize = 60;

/// The share of the newest sample in the power that is assumed for the time of a reset.
const LATELY: f64 = 0.4;

/// As many jumps within this time are a doubt, and each one is named for this long.
const MOST_JUMPS: usize = 3;
const JUMPS_NS: u64 = 120_000_000_000;

/// A doubt ends when nothing has been wrong for this long.
const QUIET_NS: u64 = 30_000_000_000;

/// What is wrong with a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Doubt {
    Missing,
    Unreadable,
    Jumps,
    Still { drawn_w: f64 },
    Low { ratio: f64 },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("it has no energy counter"),
            Self::Unreadable => f.write_str("its energy counter cannot be read"),
            Self::Jumps => f.write_str("its energy counter falls or jumps again and again"),
            Self::Still { drawn_w } => {
                write!(f, "its energy counter stands still while it draws {drawn_w:.0} W")
            }
            Self::Low { ratio } => write!(
                f,
                "its energy counter counts {ratio:.1} times the energy of its power readings"
            ),
        }
    }
}

/// A value of the counter and the call that returned it.
#[derive(Clone, Copy, Debug)]
struct Reading {
    asked_ns: u64,
    got_ns: u64,
    energy_j: f64,
}

/// What the power reading said, what was counted until then, and how long reading that took.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ns: u64,
    power_w: f64,
    counted_j: f64,
    call_s: f64,
}

/// The judge of one counter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judge {
    /// The last reading that was accepted, and the one before it that showed another value.
    last: Option<Reading>,
    former: Option<Reading>,
    /// A reading that contradicts the last one.
    odd: Option<Reading>,
    /// When the value that is shown was seen first.
    moved_ns: u64,
    /// Since when the counter could not be read.
    unread_ns: Option<u64>,
    /// What is added to readings since the counter was reset, and the highest energy returned.
    offset_j: f64,
    counted_j: f64,
    limit_w: Option<f64>,
    /// The power of the last samples.
    lately_w: f64,
    samples: VecDeque<Sample>,
    jumps_ns: VecDeque<u64>,
    doubt: Option<Doubt>,
    /// When something was wrong last.
    wrong_ns: u64,
    /// Since when it counts more than the GPU, and how many times as much.
    module: Option<(u64, f64)>,
    /// How often energies that were returned in the last minute turned out to be wrong, or to be
    /// right again.
    pub(crate) spoiled: u64,
}

impl Judge {
    /// Begins anew with a new session. What was in doubt stays so until it has been right for a while.
    pub(crate) fn begin(&mut self) {
        let Self { doubt, wrong_ns, spoiled, .. } = *self;
        *self = Self { doubt, wrong_ns, spoiled, ..Self::default() };
    }

    /// Takes what a call from `asked_ns` to `got_ns` returned. Returns the energy in joules, which never
    /// falls; none if the reading is not to be used.
    pub(crate) fn read(&mut self, asked_ns: u64, got_ns: u64, energy: Option<f64>) -> Option<f64> {
        let Some(energy_j) = energy else {
            self.unread_ns.get_or_insert(got_ns);
            return None;
        };
        self.unread_ns = None;
        let new = Reading { asked_ns, got_ns, energy_j };
        let Some(last) = self.last else {
            (self.counted_j, self.moved_ns) = (energy_j, got_ns);
            self.last = Some(new);
            return self.returned(new);
        };
        // The other call may have read after this one did.
        let overlaps = asked_ns < last.got_ns && energy_j < last.energy_j;
        if overlaps && self.odd.is_none() {
            return self.doubt.is_none().then_some(self.counted_j);
        }
        let odd = self.odd.take();
        if odd.is_some() {
            self.jumped(got_ns);
        }
        if self.follows(&last, &new) {
            self.former = if energy_j == last.energy_j { self.former } else { Some(last) };
        } else if odd.is_some_and(|odd| self.follows(&odd, &new)) {
            self.settle(&last, &new);
        } else {
            self.odd = Some(new);
            return None;
        }
        if energy_j != last.energy_j {
            self.moved_ns = got_ns;
        }
        self.last = Some(new);
        self.returned(new)
    }

    /// Whether a GPU can have drawn what lies between two readings.
    fn follows(&self, one: &Reading, next: &Reading) -> bool {
        let more_j = next.energy_j - one.energy_j;
        let passed_s = seconds(one.asked_ns, next.got_ns) + REFRESH_S;
        let most_w = MOST_LIMITS * self.limit_w.unwrap_or(UNKNOWN_LIMIT_W);
        more_j >= 0.0 && more_j <= most_w * passed_s
    }

    /// Two readings agree that the last one before them no longer holds.
    fn settle(&mut self, last: &Reading, new: &Reading) {
        let was_a_spike = self.former.is_some_and(|former| self.follows(&former, new));
        if was_a_spike && new.energy_j < last.energy_j {
            self.spoiled = self.spoiled.wrapping_add(1);
        } else {
            let meanwhile_j = self.lately_w * seconds(last.got_ns, new.got_ns);
            self.offset_j = self.counted_j + meanwhile_j - new.energy_j;
            // What was counted before lacks what the reset has lost.
            self.samples.clear();
        }
        self.former = None;
    }

    /// The energy of an accepted reading, unless the counter is in doubt, or has yet to count what was
    /// returned for a spike.
    fn returned(&mut self, reading: Reading) -> Option<f64> {
        let energy_j = reading.energy_j + self.offset_j;
        if energy_j < self.counted_j {
            return None;
        }
        self.counted_j = energy_j;
        self.doubt.is_none().then_some(energy_j)
    }

    fn jumped(&mut self, now_ns: u64) {
        self.jumps_ns.push_back(now_ns);
        self.jumps_ns.drain(..self.jumps_ns.len().saturating_sub(MOST_JUMPS));
    }

    /// Takes what the power reading said at a time, and the limit that is in force, both in watts.
    pub(crate) fn power(&mut self, at_ns: u64, power_w: Option<f64>, limit_w: Option<f64>) {
        self.limit_w = limit_w.filter(|limit_w| *limit_w > 0.0);
        if let Some(power_w) = power_w {
            let call_s = self.last.map_or(0.0, |last| seconds(last.asked_ns, last.got_ns));
            let is_old = |sample: &mut Sample| seconds(sample.at_ns, at_ns) >= COMPARED_S;
            while self.samples.len() > ENOUGH && self.samples.pop_front_if(is_old).is_some() {}
            self.samples.push_back(Sample { at_ns, power_w, counted_j: self.counted_j, call_s });
            self.lately_w += (power_w - self.lately_w) * LATELY;
        }
        self.decide(at_ns);
    }

    fn decide(&mut self, now_ns: u64) {
        let found = self.wrong(now_ns);
        self.wrong_ns = found.map_or(self.wrong_ns, |_| now_ns);
        let is_quiet = now_ns.saturating_sub(self.wrong_ns) > QUIET_NS;
        let doubt = found.or(self.doubt.filter(|_| !is_quiet));
        if doubt.is_some() != self.doubt.is_some() {
            self.spoiled = self.spoiled.wrapping_add(1);
        }
        self.doubt = doubt;
    }

    /// What is wrong now.
    fn wrong(&mut self, now_ns: u64) -> Option<Doubt> {
        let last = self.last?;
        if self.unread_ns.is_some_and(|since_ns| seconds(since_ns, now_ns) > STILL_S) {
            return Some(Doubt::Unreadable);
        }
        self.jumps_ns.retain(|at_ns| now_ns.saturating_sub(*at_ns) < JUMPS_NS);
        if self.jumps_ns.len() >= MOST_JUMPS {
            return Some(Doubt::Jumps);
        }
        let still_s = seconds(self.moved_ns, last.asked_ns);
        if still_s > STILL_S && self.lately_w * still_s > STILL_J {
            return Some(Doubt::Still { drawn_w: self.lately_w });
        }
        self.compared(now_ns)
    }

    /// Compares what was counted with the power samples, from now back to the oldest.
    fn compared(&mut self, now_ns: u64) -> Option<Doubt> {
        let newest = *self.samples.back()?;
        let (mut next, mut low, mut module) = (newest, None, None);
        let [mut many, mut sum_w, mut squares, mut drawn_j, mut most_w, mut call_s] = [0.0; 6];
        for sample in self.samples.iter().rev() {
            let power_w = sample.power_w;
            drawn_j += f64::midpoint(power_w, next.power_w) * seconds(sample.at_ns, next.at_ns);
            (many, sum_w, squares) = (many + 1.0, sum_w + power_w, squares + power_w * power_w);
            (most_w, call_s) = (power_w.max(most_w), sample.call_s.max(call_s));
            let (mean_w, passed_s) = (sum_w / many, seconds(sample.at_ns, newest.at_ns));
            let variance: f64 = (squares / many - mean_w * mean_w) / (many - 1.0).max(1.0);
            let error_j = ERRORS * variance.max(0.0).sqrt() * passed_s;
            let off_j = error_j + (EDGES_S + 2.0 * call_s) * most_w;
            let counted_j = newest.counted_j - sample.counted_j;
            let ratio = counted_j / drawn_j;
            if many >= LEAST_SAMPLES && counted_j + off_j < LEAST_RATIO * drawn_j {
                low = Some(Doubt::Low { ratio });
            }
            let is_module = counted_j > MOST_RATIO * (drawn_j + off_j) && many >= LEAST_SAMPLES;
            module = is_module.then_some(ratio);
            next = *sample;
        }
        let since_ns = self.module.map_or(now_ns, |(since_ns, _)| since_ns);
        self.module = module.map(|ratio| (since_ns, ratio));
        low
    }

    /// Why no energy is returned, if none is.
    pub(crate) fn doubt(&self) -> Option<Doubt> {
        let is_missing = self.last.is_none() && self.unread_ns.is_some();
        is_missing.then_some(Doubt::Missing).or(self.doubt)
    }

    /// What is to be said of the counter, in words.
    pub(crate) fn remark(&self, now_ns: u64) -> Option<String> {
        let module = self.module.filter(|(since_ns, _)| seconds(*since_ns, now_ns) > MODULE_S);
        let module = module.map(|(_, ratio)| {
            format!(
                "its energy counter counts {ratio:.1} times the energy of its power readings: more \
                 than the GPU, such as its module"
            )
        });
        let lately = |at_ns: &&u64| now_ns.saturating_sub(**at_ns) < JUMPS_NS;
        let jumped = self.jumps_ns.back().filter(lately).map(|at_ns| {
            let ago_s = seconds(*at_ns, now_ns);
            format!("its energy counter fell or jumped {ago_s:.0} s ago; pfod counts on from there")
        });
        self.doubt().map(|doubt| doubt.to_string()).or(jumped).or(module)
    }
}

fn seconds(from_ns: u64, until_ns: u64) -> f64 {
    until_ns.saturating_sub(from_ns) as f64 / 1e9
}

#[cfg(test)]
mod tests;
