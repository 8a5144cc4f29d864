//! The thread that records one rank: it watches the energy counter of its GPU, and takes in what the
//! rank tells. It only reads from the driver.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::Clock;
use pfo_planner::Mhz;

use crate::driver::{DriverError, Gpu};
use crate::lease::Session;
use crate::monotonic::now_ns;
use crate::progress::Progress;
use crate::record::digest::Digest;
use crate::record::recorded::Recorded;
use crate::record::refresh::{Look, Refresh};
use crate::record::ring::Ring;
use crate::record::sample::Sample;
use crate::sys::KeptDevice;

/// How often to look at a GPU without an energy counter, and to take in what its rank told.
const PERIOD: Duration = Duration::from_millis(20);

/// Why a rank cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The GPU is gone.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// There cannot be another thread.
    #[error("cannot record: {0}")]
    Thread(#[from] io::Error),
}

/// A rank that is being recorded, until this is dropped.
#[derive(Debug)]
pub struct Recorder {
    session: Arc<Session>,
    ring: Arc<Ring>,
    asked: Arc<Asked>,
    thread: Option<JoinHandle<Recorded>>,
}

/// A GPU, and what its rank has set on it.
struct Sampled {
    device: KeptDevice,
    progress: Arc<Progress>,
}

/// What the thread is to do, and whether it can.
#[derive(Debug, Default)]
struct Asked {
    range: OnceLock<Range<u64>>,
    /// The GPU was looked at, and what its counter shows is known.
    ready: AtomicBool,
    stop: AtomicBool,
}

impl Recorder {
    /// Begins to record a rank. What it does counts when it is known which steps do. So many instructions
    /// are kept by themselves, if any are to be.
    ///
    /// # Errors
    /// If the GPU is gone, or there cannot be another thread.
    pub fn start(
        session: &Arc<Session>,
        gpu: &Gpu,
        samples: Option<usize>,
    ) -> Result<Self, RecordError> {
        let device = gpu.kept_device()?;
        let settle_ns = session.grant.load().rules.settle_ns;
        let ring = session.progress.tap.open();
        let asked = Arc::<Asked>::default();
        let mut recorder = Self { session: Arc::clone(session), ring, asked, thread: None };
        let (ring, asked) = (Arc::clone(&recorder.ring), Arc::clone(&recorder.asked));
        let gpu = Sampled { device, progress: Arc::clone(&session.progress) };
        let thread = thread::Builder::new().name("sampler".into());
        let digest = move |steps| Digest::new(steps, settle_ns, samples);
        recorder.thread = Some(thread.spawn(move || record(&gpu, digest, &ring, &asked))?);
        Ok(recorder)
    }

    /// Says which steps count.
    pub fn count(&self, steps: Range<u64>) {
        let _ = self.asked.range.set(steps);
    }

    /// Whether it would miss nothing of a step that begins now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.asked.ready.load(Relaxed) || self.is_finished()
    }

    /// Whether these steps are over and recorded.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Whether the rank told more than could be taken in.
    #[must_use]
    pub fn has_overflowed(&self) -> bool {
        self.ring.has_overflowed()
    }

    /// What was recorded. Waits for the thread.
    #[must_use]
    pub fn finish(mut self) -> Recorded {
        let recorded = self.thread.take().and_then(|thread| thread.join().ok());
        recorded.unwrap_or_default()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.asked.stop.store(true, Relaxed);
        self.session.progress.tap.close(&self.ring);
    }
}

fn record(
    gpu: &Sampled,
    of_steps: impl Fn(Range<u64>) -> Digest,
    ring: &Ring,
    asked: &Asked,
) -> Recorded {
    let mut refresh = Refresh::default();
    // The newest sample that the digest does not have; before there is one, the newest reading.
    let mut unseen = None;
    let mut digest: Option<Digest> = None;
    while !asked.stop.load(Relaxed) && !digest.as_ref().is_some_and(Digest::is_complete) {
        let (sample, look_at_ns) = gpu.look(&mut refresh);
        if digest.is_none() {
            unseen = sample.filter(|sample| sample.energy_j.is_some()).or(unseen);
            asked.ready.store(unseen.is_some(), Relaxed);
            digest = asked.range.get().cloned().map(&of_steps);
        } else {
            unseen = sample;
        }
        if let Some(digest) = &mut digest {
            while let Some(observed) = ring.take() {
                digest.observe(observed);
            }
            if let Some(sample) = unseen.take() {
                digest.sample(sample);
            }
        }
        thread::sleep(Duration::from_nanos(look_at_ns.saturating_sub(now_ns())));
    }
    digest.map(Digest::finish).unwrap_or_default()
}

impl Sampled {
    /// Looks at the GPU. Returns what is new, and when to look again.
    fn look(&self, refresh: &mut Refresh) -> (Option<Sample>, u64) {
        let asked_ns = now_ns();
        let counter = self.device.get().total_energy_consumption();
        let got_ns = now_ns();
        let Ok(millijoules) = counter else {
            let sample = self.condition(got_ns, None);
            return (Some(sample), got_ns + PERIOD.as_nanos() as u64);
        };
        let sample = match refresh.looked(asked_ns, got_ns, millijoules as f64 / 1e3) {
            Look::Same => None,
            Look::Changed => Some(self.condition(got_ns, None)),
            Look::Refreshed(knot) => Some(self.condition(knot.at_ns, Some(knot.energy_j))),
        };
        (sample, refresh.look_at_ns(got_ns))
    }

    fn condition(&self, at_ns: u64, energy_j: Option<f64>) -> Sample {
        let device = self.device.get();
        Sample {
            at_ns,
            energy_j,
            sm_clock: device.clock_info(Clock::SM).ok().map(Mhz),
            reasons: device.current_throttle_reasons().unwrap_or(ThrottleReasons::empty()),
            power_limited: self.progress.power_limit_w.load(Relaxed) > 0,
        }
    }
}
