//! Choices and numbers, decoded from the bytes of a fuzzer. Numbers are small, or where a bound may
//! be wrong, or anything.

use pfo_service::now_ns;

const NUMBERS: [u64; 24] = [
    u32::MAX as u64 - 1,
    u32::MAX as u64,
    1 << 32,
    (1 << 16) - 1,
    1 << 16,
    (1 << 20) + 1,
    10_000,
    10_001,
    50_000,
    50_001,
    (1 << 50) - 1,
    1 << 50,
    (1 << 50) + 1,
    1 << 63,
    (1 << 63) - 1,
    u64::MAX - u32::MAX as u64,
    u64::MAX - 10_000,
    u64::MAX - 5,
    u64::MAX - 4,
    u64::MAX - 3,
    u64::MAX - 2,
    u64::MAX - 1,
    u64::MAX,
    0,
];

const FIGURES: [f64; 24] = [
    0.0,
    -0.0,
    -1.0,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    1e300,
    -1e300,
    1e-300,
    f64::MAX,
    f64::MIN_POSITIVE,
    f64::EPSILON,
    1e6,
    1_000_000.000_1,
    1e9,
    1e10,
    1e12,
    1e-9,
    1e-6,
    0.001,
    0.5,
    2.0,
    1e15,
    18_446_744_073.709_55,
];

/// A minute, which an event may be ahead.
const AHEAD_NS: u64 = 60_000_000_000;

/// Bytes that are not decoded yet. Behind their end there are zeros.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    /// The next bytes, at most this many.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn below(&mut self, number: u8) -> u8 {
        self.byte() % number
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: u8) -> bool {
        self.below(times) == 1
    }

    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[usize::from(self.byte()) % list.len()]
    }

    pub(crate) fn list<T>(&mut self, most: u8, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let length = self.below(most + 1);
        (0..length).map(|_| one(self)).collect()
    }

    pub(crate) fn optional<T>(&mut self, one: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (!self.once_in(3)).then(|| one(self))
    }

    /// Any number.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..128 => u64::from(small % 8),
            128..232 => self.pick(&NUMBERS),
            _ => self.raw(),
        }
    }

    pub(crate) fn short_number(&mut self) -> u32 {
        match self.number() {
            number @ 0..=0xffff_ffff => number as u32,
            number => (number >> 32) as u32,
        }
    }

    /// A number that is mostly the one that is right.
    pub(crate) fn mostly(&mut self, right: u64) -> u64 {
        if self.once_in(12) { self.number() } else { right }
    }

    /// Any figure.
    pub(crate) fn figure(&mut self) -> f64 {
        match self.byte() {
            small @ 0..128 => f64::from(small) / 100.0,
            128..232 => self.pick(&FIGURES),
            _ => f64::from_bits(self.raw()),
        }
    }

    /// A time in nanoseconds (`CLOCK_MONOTONIC`), mostly now.
    pub(crate) fn time_ns(&mut self) -> u64 {
        let now_ns = now_ns();
        match self.byte() {
            0..200 => now_ns,
            200..215 => now_ns.saturating_sub(self.number()),
            215..230 => now_ns.saturating_add(AHEAD_NS - 1_000_000_000),
            230..235 => now_ns.saturating_add(AHEAD_NS + 1_000_000_000),
            _ => self.number(),
        }
    }

    fn raw(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }
}
