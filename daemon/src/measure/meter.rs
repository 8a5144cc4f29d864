//! Reads a leased GPU's energy counter for the taps. It reads when the counter's rhythm predicts a
//! change, and not at all while there is no listener.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use pfo_protocol::{ClosingReason, CounterReading, GpuUuid, Refusal, TapRecord};
use pfo_service::{Panicked, Whose, catch, lock, now_ns};

use super::counter::CounterReader;
use super::outbox::Outbox;
use super::refresh::{Look, Refresh};
use crate::lease::{Queue, Session};
use crate::refusal::internal;

/// How often to read a GPU without an energy counter.
const PERIOD_NS: u64 = 20_000_000;

/// How often to take records while no counter is read.
const QUIET_PERIOD: Duration = Duration::from_millis(100);

/// The meter of one rank. It measures until this is dropped or the session ends.
pub(crate) struct Meter {
    shared: Arc<Shared>,
}

struct Shared {
    session: Arc<Session>,
    refresh: Arc<Mutex<Refresh>>,
    queue: Arc<Queue>,
    listeners: Mutex<Listeners>,
    stop: AtomicBool,
}

#[derive(Default)]
struct Listeners {
    all: Vec<Weak<Outbox>>,
    /// The session has ended, and listeners receive nothing more.
    are_done: bool,
}

impl Meter {
    /// Starts the meter of a session's GPU, whose counter is refreshed in this rhythm.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(
        session: Arc<Session>,
        gpu: &GpuUuid,
        reader: CounterReader,
        refresh: Arc<Mutex<Refresh>>,
    ) -> Result<Arc<Self>, Refusal> {
        let whose = Whose::of_rank(&session.holder, gpu);
        let shared = Arc::new(Shared::of(session, refresh));
        let meter = Arc::new(Self { shared: Arc::clone(&shared) });
        let started = thread::Builder::new().name("meter".into()).spawn(move || {
            if catch(&whose, || shared.measure(&reader)).is_err() {
                shared.session.end(ClosingReason::ShuttingDown, Panicked.to_string());
            }
        });
        started.map_err(|error| internal(&format!("cannot measure: {error}")))?;
        Ok(meter)
    }

    /// Whether it is the meter of this session.
    pub(super) fn is_of(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.shared.session, session)
    }

    /// Adds a listener. One that is added after the end of the session receives only that end.
    pub(super) fn add(&self, listener: &Arc<Outbox>) {
        let mut listeners = lock(&self.shared.listeners);
        if listeners.are_done {
            listener.take(self.shared.session.holder.rank, 0, &[TapRecord::Ended]);
        } else {
            listeners.all.push(Arc::downgrade(listener));
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.session.progress.tap.close(&self.shared.queue);
    }
}

impl Shared {
    fn of(session: Arc<Session>, refresh: Arc<Mutex<Refresh>>) -> Self {
        let (queue, listeners) = (session.progress.tap.open(), Mutex::default());
        Self { session, refresh, queue, listeners, stop: AtomicBool::new(false) }
    }

    /// The current listeners; the last ones if the session has ended.
    fn present(&self, ended: bool) -> Vec<Arc<Outbox>> {
        let mut listeners = lock(&self.listeners);
        listeners.are_done |= ended;
        listeners.all.retain(|listener| listener.strong_count() > 0);
        listeners.all.iter().filter_map(Weak::upgrade).collect()
    }

    fn measure(&self, reader: &CounterReader) {
        lock(&self.refresh).resume();
        let mut records = Vec::new();
        while !self.stop.load(Relaxed) {
            // Checked before the records are taken, so that they include everything up to this
            // point.
            let ended = self.session.progress.ended.load(Relaxed);
            let listeners = self.present(ended);
            let reading = listeners
                .iter()
                .any(|listener| listener.counters)
                .then(|| look(reader, &self.refresh));
            records.extend(std::iter::from_fn(|| self.queue.take()));
            records.extend(reading.and_then(|(counter, _)| counter).map(TapRecord::Counter));
            records.extend(ended.then_some(TapRecord::Ended));
            let lost = self.queue.take_lost();
            if !records.is_empty() || lost > 0 {
                let rank = self.session.holder.rank;
                listeners.iter().for_each(|listener| listener.take(rank, lost, &records));
                records.clear();
            }
            if ended {
                return;
            }
            // A sleeping meter must not keep a listener alive.
            drop(listeners);
            thread::sleep(reading.map_or(QUIET_PERIOD, |(_, look_at_ns)| {
                Duration::from_nanos(look_at_ns.saturating_sub(now_ns()))
            }));
        }
    }
}

/// Reads the GPU. Returns what is new, and when to read again.
fn look(reader: &CounterReader, refresh: &Mutex<Refresh>) -> (Option<CounterReading>, u64) {
    let probe = reader.probe();
    let (asked_ns, formerly_ns) = (now_ns(), probe.asked.paid_at_ns());
    let (counter, throttled_ns) = reader.counters();
    let got_ns = now_ns();
    let counts_all = throttled_ns.counters().iter().all(Option::is_some);
    let condition = |at_ns, energy_j| CounterReading {
        at_ns,
        energy_j,
        read_ns: got_ns,
        sm_clock: probe.sm_clock(),
        throttled_ns,
        throttle_reasons: if counts_all { 0 } else { probe.throttle_reasons() },
    };
    let Some(energy_j) = counter else {
        let next_ns = got_ns.saturating_add(PERIOD_NS).max(probe.asked.paid_at_ns());
        return (Some(condition(got_ns, None)), next_ns);
    };
    let mut refresh = lock(refresh);
    let reading = match refresh.looked(asked_ns, got_ns, energy_j) {
        Look::Same => None,
        Look::Changed => Some(condition(got_ns, None)),
        Look::Refreshed(knot) => Some(condition(knot.at_ns, Some(knot.energy_j))),
    };
    let [owed_ns, before_ns] =
        [probe.asked.paid_at_ns(), formerly_ns].map(|ns| ns.saturating_sub(got_ns));
    (reading, refresh.look_at_ns(got_ns, owed_ns, owed_ns.saturating_sub(before_ns)))
}

/// A meter without a thread, for tests.
#[cfg(test)]
pub(super) fn example_meter(session: &Arc<Session>) -> Arc<Meter> {
    Arc::new(Meter { shared: Arc::new(Shared::of(Arc::clone(session), Arc::default())) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::example_session as session;

    #[test]
    fn a_listener_that_comes_after_the_end_of_the_session_learns_of_it() {
        let meter = example_meter(&session("j", 0));
        let (early, gone, late) = <(Arc<Outbox>, Arc<Outbox>, Arc<Outbox>)>::default();
        meter.add(&early);
        meter.add(&gone);
        drop(gone);
        assert_eq!(meter.shared.present(false).len(), 1);
        assert_eq!(meter.shared.present(true).len(), 1, "it gets the last records");
        meter.add(&late);
        assert_eq!(late.take_batches()[0].records, [TapRecord::Ended]);
        assert_eq!(early.take_batches(), [], "the meter hands over the end itself");
    }

    #[test]
    fn a_rank_puts_no_more_records_when_its_meter_is_dropped() {
        let session = session("j", 0);
        let meter = example_meter(&session);
        let shared = Arc::clone(&meter.shared);
        drop(meter);
        assert!(shared.stop.load(Relaxed));
        session.progress.tap.put(|| panic!("nobody wants it any more"));
    }
}
