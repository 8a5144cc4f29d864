//! Samples of one quantity and their percentiles; and the clock that takes them.

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC` in nanoseconds, as the shim, the daemon and the simulated driver read it.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// Nanoseconds, sample by sample.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<u64>);

impl Samples {
    pub(crate) fn add(&mut self, ns: u64) {
        self.0.push(ns);
    }

    pub(crate) fn extend(&mut self, samples: impl IntoIterator<Item = u64>) {
        self.0.extend(samples);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn percentiles(mut self) -> Percentiles {
        self.0.sort_unstable();
        let at = |share: f64| {
            let index = (self.0.len() as f64 * share) as usize;
            self.0.get(index.min(self.0.len().saturating_sub(1))).map_or(f64::NAN, |&ns| ns as f64)
        };
        Percentiles { p50_us: at(0.5) / 1e3, p99_us: at(0.99) / 1e3 }
    }
}

/// The middle and the tail, in microseconds or as ratios of these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Percentiles {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Percentiles {
    /// How many times those of somebody else these are.
    pub(crate) fn ratio_to(self, other: Self) -> Self {
        Self { p50_us: self.p50_us / other.p50_us, p99_us: self.p99_us / other.p99_us }
    }

    /// Without a cost that every sample includes.
    pub(crate) fn without(self, cost: Self) -> Self {
        Self { p50_us: self.p50_us - cost.p50_us, p99_us: self.p99_us - cost.p50_us }
    }
}
