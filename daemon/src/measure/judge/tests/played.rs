//! A GPU whose counter has faults, and what the judge makes of it.

use crate::measure::judge::Judge;

/// When a fault begins in the middle, and how soon after it began a figure must be right or absent.
pub(super) const FAULT_S: f64 = 40.0;
pub(super) const PATIENCE_S: f64 = 30.0;
pub(super) const END_S: f64 = 140.0;

/// Numbers that look random, from a seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn within(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[(self.unit() * all.len() as f64) as usize]
    }
}

/// A stretch of work: a square wave of power.
#[derive(Clone, Copy)]
struct Stretch {
    pub(super) began_s: f64,
    began_j: f64,
    low_w: f64,
    high_w: f64,
    period_s: f64,
    duty: f64,
}

impl Stretch {
    fn energy_j(&self, at_s: f64) -> f64 {
        let passed_s = at_s - self.began_s;
        let whole = (passed_s / self.period_s).floor();
        let rest_s = passed_s - whole * self.period_s;
        let high_s = whole * self.duty * self.period_s + rest_s.min(self.duty * self.period_s);
        self.began_j + self.low_w * passed_s + (self.high_w - self.low_w) * high_s
    }

    fn power_w(&self, at_s: f64) -> f64 {
        let into = ((at_s - self.began_s) / self.period_s).fract();
        if into < self.duty { self.high_w } else { self.low_w }
    }
}

/// What a GPU draws.
struct Load(Vec<Stretch>);

impl Load {
    fn random(random: &mut Random) -> Self {
        let is_steady = random.unit() < 0.3;
        let limit_w = random.one_of(&[70.0, 250.0, 400.0, 700.0]);
        let (mut at_s, mut energy_j, mut all) = (0.0, 0.0, Vec::new());
        while at_s < END_S + 20.0 {
            let high_w = limit_w * random.within(0.4, 1.0);
            let stretch = Stretch {
                began_s: at_s,
                began_j: energy_j,
                low_w: limit_w * random.within(0.12, 0.4),
                high_w,
                period_s: random.one_of(&[0.003, 0.02, 0.05, 0.1, 0.25, 0.7, 3.0]),
                duty: random.one_of(&[0.0, 0.1, 0.5, 0.8, 0.95, 1.0]),
            };
            at_s += if is_steady { 1000.0 } else { random.within(0.5, 25.0) };
            energy_j = stretch.energy_j(at_s);
            all.push(stretch);
        }
        Self(all)
    }

    fn at(&self, at_s: f64) -> &Stretch {
        let next = self.0.partition_point(|stretch| stretch.began_s <= at_s);
        &self.0[next.saturating_sub(1)]
    }

    fn energy_j(&self, at_s: f64) -> f64 {
        self.at(at_s).energy_j(at_s)
    }
}

/// How long a driver that answers late takes at most.
const LONGEST_ANSWER_S: f64 = 2.0;

/// Where a counter of 32 bits of millijoules begins anew.
const WRAPS_J: f64 = u32::MAX as f64 / 1e3;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    None,
    FallsOnce,
    FallsAgain,
    Spikes,
    StandsStill,
    HalfRate,
    Module,
    Wraps,
    AnswersLate,
    NotSupportedNowAndThen,
    ResetsWithTheDriver,
    Missing,
}

/// What the judge was given of a GPU, and what it made of that.
pub(super) struct Played {
    pub(super) judge: Judge,
    pub(super) now_s: f64,
    random: Random,
    load: Load,
    /// What is wrong with the counter, one behind the other, and since when.
    pub(super) faults: Vec<Fault>,
    pub(super) began_s: f64,
    refresh_s: f64,
    averaged: bool,
    base_j: f64,
    /// The figure of the session: what was returned first and last, with the truth at the time; none
    /// once it was in doubt.
    pub(super) session: Option<[(f64, f64); 2]>,
    /// The figure of the window: as that of the session, but begun anew.
    pub(super) window: Option<[(f64, f64); 2]>,
    spoiled: u64,
    pub(super) doubted: bool,
}

impl Played {
    pub(super) fn new(seed: u64, fault: Fault) -> Self {
        Self::with(seed, &[fault], FAULT_S)
    }

    pub(super) fn with(seed: u64, faults: &[Fault], began_s: f64) -> Self {
        let mut random = Random::new(seed);
        let load = Load::random(&mut random);
        let refresh_s = random.one_of(&[0.01, 0.02, 0.1, 0.5]);
        let averaged = random.unit() < 0.5;
        let base_j = match faults.contains(&Fault::Wraps) {
            true => WRAPS_J - load.energy_j(began_s),
            false => random.within(0.0, 1e6),
        };
        let judge = Judge::default();
        let (session, window, spoiled, doubted) = (None, None, 0, false);
        Self {
            judge,
            now_s: 0.0,
            random,
            load,
            faults: faults.to_vec(),
            began_s,
            refresh_s,
            averaged,
            base_j,
            session,
            window,
            spoiled,
            doubted,
        }
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// What the counter has at a time, after some of its faults.
    fn value_j(&self, faults: &[Fault], at_s: f64) -> f64 {
        let Some((fault, others)) = faults.split_last() else {
            return self.base_j
                + self.load.energy_j((at_s / self.refresh_s).floor() * self.refresh_s);
        };
        let honest_j = self.value_j(others, at_s);
        if *fault == Fault::Module {
            return honest_j + 300.0 * at_s;
        }
        if at_s < self.began_s {
            return honest_j;
        }
        let before_j = || self.value_j(others, self.began_s);
        match fault {
            Fault::FallsOnce => honest_j - 0.99 * before_j(),
            Fault::FallsAgain => {
                let last_s = self.began_s + ((at_s - self.began_s) / 6.0).floor() * 6.0;
                (honest_j - self.value_j(others, last_s)).max(0.0)
            }
            Fault::StandsStill => before_j(),
            Fault::HalfRate => f64::midpoint(before_j(), honest_j),
            Fault::Wraps => honest_j % WRAPS_J,
            Fault::ResetsWithTheDriver => honest_j - before_j(),
            _ => honest_j,
        }
    }

    /// What the driver returns at a time.
    fn counter(&mut self, at_s: f64) -> Option<f64> {
        if self.has(Fault::Missing) {
            return None;
        }
        let value_j = self.value_j(&self.faults, at_s);
        if at_s < self.began_s {
            return Some(value_j);
        }
        if self.has(Fault::ResetsWithTheDriver) && at_s < self.began_s + 0.5
            || self.has(Fault::NotSupportedNowAndThen) && self.random.unit() < 0.3
        {
            return None;
        }
        let is_spike = self.has(Fault::Spikes) && self.random.unit() < 0.05;
        Some(if is_spike { value_j + self.random.one_of(&[1e4, 1e9]) } else { value_j })
    }

    /// A call that reads the counter.
    fn read(&mut self) {
        let is_late = self.has(Fault::AnswersLate) && self.now_s > self.began_s;
        let takes_s = if is_late { self.random.within(0.0, LONGEST_ANSWER_S) } else { 0.0001 };
        let asked_ns = (self.now_s * 1e9) as u64;
        let at_s = self.now_s + takes_s * self.random.unit();
        let value = self.counter(at_s).map(|energy_j| (energy_j * 1e3).floor() / 1e3);
        self.now_s += takes_s;
        let returned = self.judge.read(asked_ns, (self.now_s * 1e9) as u64, value);
        if self.judge.spoiled != self.spoiled {
            self.spoiled = self.judge.spoiled;
            self.window = None;
            self.doubted |= self.judge.doubt().is_some();
        }
        let Some(energy_j) = returned else { return };
        let now = (energy_j, self.load.energy_j(at_s));
        for figure in [&mut self.session, &mut self.window] {
            let [first, last] = figure.unwrap_or([now, now]);
            assert!(energy_j >= last.0, "{:?}: {energy_j} J after {} J", self.faults, last.0);
            *figure = Some([first, now]);
        }
    }

    fn power(&mut self) {
        let stretch = *self.load.at(self.now_s);
        let average_w = || self.load.energy_j(self.now_s) - self.load.energy_j(self.now_s - 1.0);
        let power_w = if self.averaged { average_w() } else { stretch.power_w(self.now_s) };
        let highest_w = self.load.0.iter().map(|stretch| stretch.high_w).fold(0.0, f64::max);
        self.judge.power((self.now_s * 1e9) as u64, Some(power_w), Some(highest_w));
    }

    /// Plays until then: the watch reads about five times a second, the rank at its steps.
    pub(super) fn until(&mut self, end_s: f64) {
        let step_s = self.random.one_of(&[0.05, 0.3, 2.0, 30.0]);
        let mut step_at_s = self.now_s;
        while self.now_s < end_s {
            if step_at_s < self.now_s {
                step_at_s = self.now_s + step_s;
                self.read();
            }
            self.read();
            self.power();
            self.now_s += self.random.within(0.1, 0.3);
        }
    }

    /// How far a figure may be off beside one part in a hundred: what its counter has not shown yet,
    /// or not while the driver did not answer.
    fn edges_j(&self) -> f64 {
        let highest_w = self.load.0.iter().map(|stretch| stretch.high_w).fold(0.0, f64::max);
        let answers_s = if self.has(Fault::AnswersLate) { LONGEST_ANSWER_S } else { 0.0 };
        highest_w * (self.refresh_s + 0.2 + answers_s)
    }

    pub(super) fn is_right(&self, figure: Option<[(f64, f64); 2]>) -> bool {
        let Some([first, last]) = figure else { return true };
        let (shown_j, true_j) = (last.0 - first.0, last.1 - first.1);
        (shown_j - true_j).abs() <= 0.01 * true_j + self.edges_j()
    }
}
