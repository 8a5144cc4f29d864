//! The hardware's side: a process that works on a GPU, and what it makes the GPU do.
//!
//! This is what stands in for CUDA. When the process dies, by whatever means, its GPU becomes idle
//! as soon as somebody looks.

use std::fs::File;
use std::process;
use std::sync::Arc;

use crate::curve::{CurveIndex, PowerCurve};
use crate::driver::{Driver, Gpu};
use crate::error::SimError;
use crate::gpu_state::{Activity, GpuProcess, GpuState};
use crate::state::layout::PROCESSES_PER_GPU;
use crate::state::lock::{self, LockedThing};
use crate::units::{Mhz, MonotonicNs};

/// This process, at work on a GPU until this is dropped.
pub struct Attachment {
    driver: Arc<Driver>,
    gpu: usize,
    slot: usize,
    /// Carries the lock that shows that this process lives.
    _life: File,
}

/// The clock from some moment on, as far as it is decided yet.
#[derive(Clone, Debug, PartialEq)]
pub struct ClockForecast {
    /// Clocks, each from its moment until the next one's; the last one for good.
    pub pieces: Vec<(MonotonicNs, Mhz)>,
    /// Until here no call that is yet to come can change it.
    pub known_until: MonotonicNs,
    /// How much longer work takes for another reason than the clock.
    pub longer: f64,
}

/// Work that a GPU was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkUnderWay {
    activity: Activity,
    /// When it began.
    pub began: MonotonicNs,
    /// When it will be done, if no call that is yet to come changes the clock before that.
    pub done: MonotonicNs,
    /// Until here none can.
    pub known_until: MonotonicNs,
}

impl Attachment {
    /// Puts this process on a GPU.
    pub fn new(driver: Arc<Driver>, gpu: usize) -> Result<Self, SimError> {
        let life = driver.state().reopen()?;
        let handle = driver.gpu(gpu)?;
        let slot = handle.update(|state, now| -> Result<usize, SimError> {
            for slot in 0..PROCESSES_PER_GPU {
                let thing = LockedThing::Process { gpu, slot };
                if lock::keep(&life, thing).map_err(SimError::Lock)? {
                    state.processes[slot] = Some(GpuProcess { pid: process::id(), since: now });
                    return Ok(slot);
                }
            }
            Err(SimError::TooManyProcesses { gpu })
        })??;
        Ok(Self { driver, gpu, slot, _life: life })
    }

    /// The GPU.
    pub fn gpu(&self) -> Gpu<'_> {
        // The index was checked in `new`, and a machine does not lose GPUs.
        self.driver.known_gpu(self.gpu)
    }

    /// Installs a power curve in place of an older one.
    pub fn install_curve(&self, index: CurveIndex, curve: &PowerCurve) -> Result<(), SimError> {
        let gpu = self.gpu();
        gpu.update(|_, _| gpu.block().curves[index.number()].install(curve))
    }

    /// Waits while calls keep the GPU's driver from a transfer to or from a neighbour.
    pub fn wait_for_transfer(&self) {
        self.gpu().wait_for_transfer();
    }

    /// Makes the GPU do something else; returns from when on.
    pub fn set_activity(&self, activity: Activity) -> Result<MonotonicNs, SimError> {
        self.gpu().update(|state, now| {
            state.begin(activity, (activity != Activity::Idle).then_some(self.slot));
            now
        })
    }

    /// Gives the GPU work that is done when `done` says, and after which it only waits for more.
    pub fn begin_work(
        &self,
        activity: Activity,
        done: impl FnOnce(&ClockForecast) -> MonotonicNs,
    ) -> Result<WorkUnderWay, SimError> {
        let gpu = self.gpu();
        gpu.update(|state, began| {
            state.begin(activity, Some(self.slot));
            let forecast = self.forecast(state, began, activity, began);
            let done = done(&forecast);
            state.done = Some(done);
            WorkUnderWay { activity, began, done, known_until: forecast.known_until }
        })
    }

    /// Looks again when the work will be done, for the clock may have changed since.
    pub fn look_at_work(
        &self,
        work: &mut WorkUnderWay,
        done: impl FnOnce(&ClockForecast) -> MonotonicNs,
    ) -> Result<(), SimError> {
        let now = MonotonicNs::now();
        let forecast = self.forecast(&self.gpu().last_change(), work.began, work.activity, now);
        work.known_until = forecast.known_until;
        let done = done(&forecast);
        if std::mem::replace(&mut work.done, done) != done {
            self.gpu().update(|state, _| {
                state.begin(work.activity, Some(self.slot));
                state.done = Some(done);
            })?;
        }
        Ok(())
    }

    /// The clocks at which work was done that has just ended, in MHz, and for how long each, in
    /// nanoseconds.
    pub fn clocks_of(&self, work: &WorkUnderWay, done: MonotonicNs) -> Vec<(u32, u64)> {
        let forecast = self.forecast(&self.gpu().last_change(), work.began, work.activity, done);
        let ends = forecast.pieces.iter().skip(1).map(|(from, _)| *from).chain([done]);
        let pieces = forecast.pieces.iter().zip(ends);
        let pieces = pieces.filter(|((from, _), _)| *from < done);
        pieces.map(|((from, clock), end)| (clock.0, end.min(done).since(*from))).collect()
    }

    /// The clock from a moment on if the GPU goes on with an activity, as far as it is decided
    /// `now`.
    fn forecast(
        &self,
        state: &GpuState,
        from: MonotonicNs,
        activity: Activity,
        now: MonotonicNs,
    ) -> ClockForecast {
        let board = self.gpu().board();
        let silicon = board.silicon;
        let clock_at = |time| board.clock(state.timeline.at(time), activity, state.warmth);
        let mut pieces = vec![(from, clock_at(from))];
        let mut time = from;
        while let Some(next) = state.timeline.next_change(time) {
            pieces.push((next, clock_at(next)));
            time = next;
        }
        let slows = state.memory_lock.map_or(0, |_| silicon.memory_lock_slows_permille);
        ClockForecast {
            pieces,
            known_until: MonotonicNs(now.0 + silicon.settling.least_ns()),
            longer: 1.0 + slows as f64 / 1e3,
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // If this fails the lock goes away all the same, and the next one who looks cleans up.
        let _ = self.gpu().update(|state, _| {
            state.processes[self.slot] = None;
            if state.active_process == Some(self.slot) {
                state.begin(Activity::Idle, None);
            }
        });
    }
}
