//! The only way to the energy counter of a GPU: every reading is judged, and none is believed.

use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use pfo_keeper::{Gpu, Probe};
use pfo_protocol::{ClosingReason, Milliwatts, Refusal, ThrottledNs};
use pfo_service::{Panicked, Whose, catch, lock, now_ns};

use super::judge::{Doubt, Judge};
use crate::lease::Session;
use crate::refusal::internal;

/// Times between the readings that the counter is judged by: at least the first, and up to the second
/// more, so that they do not keep step with what the GPU does.
const WATCH_EVERY_NS: u64 = 100_000_000;
const DITHER_NS: f64 = 200e6;
/// Multiples of the golden ratio fill the range evenly.
const DITHER_STEP: f64 = 0.618_033_988_749_895;

/// What the readers of the GPU owe it delays such a reading by this much at most: without it, nothing
/// that they read is of use.
const MOST_OWED_NS: u64 = 1_000_000_000;

/// A reader of one GPU's counter.
#[derive(Debug)]
pub(crate) struct CounterReader {
    probe: Probe,
    limit_w: Option<f64>,
    judge: Arc<Mutex<Judge>>,
}

/// What the judge says of energies that were read in the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// How often that has changed.
    pub spoiled: u64,
    pub in_doubt: bool,
}

impl CounterReader {
    /// A reader whose readings that judge gets.
    ///
    /// # Errors
    /// If the GPU is gone.
    pub(super) fn new(gpu: &Gpu, judge: Arc<Mutex<Judge>>) -> Result<Self, Refusal> {
        let probe = gpu.probe().map_err(|error| internal(&error))?;
        let limit_w = gpu.default_power_limit.map(|Milliwatts(limit)| f64::from(limit) / 1e3);
        Ok(Self { probe, limit_w, judge })
    }

    /// Watches the counter of a session until this is dropped.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn watch(self: &Arc<Self>, session: Arc<Session>, gpu: &Gpu) -> Result<(), Refusal> {
        let (reader, whose) = (Arc::downgrade(self), Whose::of_rank(&session.holder, &gpu.uuid));
        let started = thread::Builder::new().name("counter".into()).spawn(move || {
            if catch(&whose, || keep_watching(&reader)).is_err() {
                session.end(ClosingReason::ShuttingDown, Panicked.to_string());
            }
        });
        started.map_err(|error| internal(&format!("cannot watch a counter: {error}")))?;
        Ok(())
    }

    /// The energy in joules, if there is a counter that is to be believed, and the verdict on it.
    pub(crate) fn energy_j(&self) -> (Option<f64>, Verdict) {
        let (asked_ns, energy_j) = (now_ns(), self.probe.energy_j());
        let mut judge = lock(&self.judge);
        let energy_j = judge.read(asked_ns, now_ns(), energy_j);
        // A counter that has never been read has returned nothing wrong.
        let in_doubt = judge.doubt().is_some_and(|doubt| doubt != Doubt::Missing);
        (energy_j, Verdict { spoiled: judge.spoiled, in_doubt })
    }

    /// The energy, and for how long each reason has kept the clock down.
    pub(super) fn counters(&self) -> (Option<f64>, ThrottledNs) {
        let (asked_ns, (energy_j, throttled_ns)) = (now_ns(), self.probe.counters());
        (lock(&self.judge).read(asked_ns, now_ns(), energy_j), throttled_ns)
    }

    pub(super) fn probe(&self) -> &Probe {
        &self.probe
    }

    /// Compares the counter with the power reading.
    fn compare(&self) {
        let _ = self.energy_j();
        let power_w = self.probe.power_w();
        lock(&self.judge).power(now_ns(), power_w, self.limit_w);
    }
}

fn keep_watching(reader: &Weak<CounterReader>) {
    let mut dither = 0.0f64;
    while let Some(reader) = reader.upgrade() {
        reader.compare();
        dither = (dither + DITHER_STEP).fract();
        let pause_ns = WATCH_EVERY_NS.saturating_add((DITHER_NS * dither) as u64);
        let owed_ns = reader.probe.asked.paid_at_ns().saturating_sub(now_ns());
        drop(reader);
        thread::sleep(Duration::from_nanos(pause_ns.max(owed_ns.min(MOST_OWED_NS))));
    }
}
