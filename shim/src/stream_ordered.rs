//! A session whose calls count when the GPU gets to them, for hosts that run ahead of their GPU.
//!
//! A call records a CUDA event in the stream that its work goes to; a thread waits for the events
//! in the order of the calls and tells the session of each as it is reached, with the time at which the
//! GPU got there. The host never waits, and the stream neither: an event costs the GPU no gap, as a host
//! function in the stream would.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::call::Call;
use crate::cuda_events::{CudaEvents, Event, NotRecorded, Stream, cuda_is_loaded};
use crate::fork;
use crate::gpu_clock::{GpuClock, Reached};
use crate::line::monotonic_ns;
use crate::session::Session;
use crate::thread;

/// A session whose calls count when the GPU gets to them.
///
/// As long as the process has no CUDA context on the leased GPU, they count when they are made. Whether
/// there is one is looked for whenever a step begins.
///
/// Dropping it ends the session once the GPU has got to everything that was said.
#[derive(Debug)]
pub struct StreamOrdered {
    session: Arc<Session>,
    queue: OnceLock<Arc<Queue>>,
    /// Whether the process had loaded CUDA when it was last looked for: without it, there is nothing to time.
    has_cuda: AtomicBool,
    /// Whether a call counted when it was made.
    has_told: AtomicBool,
    captured: AtomicU64,
}

/// When a call counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// When the GPU gets to it.
    ByGpu,
    /// At once, or as soon as those before it do.
    AtOnce,
    /// The same, although the process has loaded CUDA: it has no context on the session's GPU, or the stream is one
    /// of another GPU.
    Untimed,
    /// Never: its stream is being captured into a CUDA graph. The work happens when the graph is launched, any
    /// number of times, and a launch says nothing here.
    Captured,
}

/// What has been said and not reached yet.
#[derive(Debug)]
struct Queue {
    cuda: CudaEvents,
    /// Held while an event is recorded, so that calls of several threads are in the order of their events.
    /// CUDA may take the time of a kernel for it when its launch queue is full, as for any launch: the
    /// thread that waits for events must not need it.
    recording: Mutex<()>,
    state: Mutex<State>,
    generation: u32,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Not bounded here: CUDA itself lets no host run ahead by more than about a thousand launches.
    pending: VecDeque<Pending>,
    spare: Vec<Event>,
    closed: bool,
}

/// A call that the session does not know of yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    call: Call,
    /// Without an event, a call is reached as soon as those before it are.
    event: Option<Event>,
    /// The time from which it counts, where the caller knows it.
    at_ns: Option<u64>,
}

impl StreamOrdered {
    /// Takes over a session.
    #[must_use]
    pub fn new(session: Session) -> Self {
        Self {
            session: Arc::new(session),
            queue: OnceLock::new(),
            has_cuda: AtomicBool::new(false),
            has_told: AtomicBool::new(false),
            captured: AtomicU64::new(0),
        }
    }

    /// The session, to ask it for its problem and counters.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Makes a call that counts when the GPU reaches this point of a stream: the one that
    /// the work after it goes to, or the work before it went to. Which it is, is asked only if
    /// there is a CUDA context.
    pub fn tell(&self, call: Call, stream: impl FnOnce() -> Stream) -> Told {
        let stream = self.is_timed(call).then(stream);
        self.tell_on(call, stream)
    }

    /// As [`tell`](Self::tell), on a stream that is there if [`is_timed`](Self::is_timed) has asked for it.
    pub fn tell_on(&self, call: Call, stream: Option<Stream>) -> Told {
        if !self.session.is_ours() {
            return Told::ByGpu;
        }
        let told = match (self.queue.get(), stream) {
            (Some(queue), Some(stream)) => queue.push(call, stream),
            (Some(queue), None) => queue.enqueue(Pending { call, event: None, at_ns: None }),
            (None, _) => {
                self.has_told.store(true, Ordering::Relaxed);
                self.session.tell(call);
                Told::AtOnce
            }
        };
        match told {
            Told::AtOnce if self.has_cuda.load(Ordering::Relaxed) => {
                self.session.count_untimed();
                return Told::Untimed;
            }
            Told::ByGpu | Told::AtOnce | Told::Untimed => {}
            Told::Captured => drop(self.captured.fetch_add(1, Ordering::Relaxed)),
        }
        told
    }

    /// Makes a call that counts from this time on (`CLOCK_MONOTONIC`, ns), as [`Session::tell_at`] does, in
    /// the order of the calls.
    pub fn tell_at(&self, call: Call, at_ns: u64) {
        if !self.session.is_ours() {
            return;
        }
        match self.queue.get() {
            Some(queue) => drop(queue.enqueue(Pending { call, event: None, at_ns: Some(at_ns) })),
            None => self.session.tell_at(call, at_ns),
        }
    }

    /// Whether a call needs the stream that its work goes to.
    #[must_use]
    pub fn is_timed(&self, call: Call) -> bool {
        if self.session.is_ours() && call == Call::StepBegin && self.queue.get().is_none() {
            self.look_for_cuda();
        }
        self.queue.get().is_some()
    }

    /// Calls that counted when they were made: there was no CUDA context on the session's GPU, or their
    /// stream is one of another GPU. None as long as the process has not loaded CUDA.
    #[must_use]
    pub fn untimed(&self) -> u64 {
        self.session.counters().untimed
    }

    /// Calls that count for nothing, because their stream was being captured into a CUDA graph.
    #[must_use]
    pub fn captured(&self) -> u64 {
        self.captured.load(Ordering::Relaxed)
    }

    /// The CUDA ordinal of the GPU in whose context the calls are timed, if that is known.
    #[must_use]
    pub fn ordinal(&self) -> Option<u32> {
        self.queue.get()?.cuda.ordinal()
    }

    /// When a call that is made now counts, in words, with the reason.
    #[must_use]
    pub fn timing(&self) -> String {
        let on = |ordinal: Option<u32>| match ordinal {
            Some(ordinal) => format!("stream on cuda:{ordinal}"),
            None => "stream".to_owned(),
        };
        if let Some(queue) = self.queue.get() {
            return on(queue.cuda.ordinal());
        }
        match context_ordinal(&self.session) {
            Err(why) => format!("cpu: {why}"),
            // A context is looked for when a step begins.
            Ok(ordinal) if self.has_told.load(Ordering::Relaxed) => {
                format!("cpu until the next step begins, then {}", on(ordinal))
            }
            Ok(ordinal) => on(ordinal),
        }
    }

    fn look_for_cuda(&self) {
        self.has_cuda.store(cuda_is_loaded(), Ordering::Relaxed);
        let Ok(cuda) = cuda_events(&self.session) else {
            return;
        };
        let queue = Arc::new(Queue {
            cuda,
            recording: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            generation: fork::generation(),
        });
        let (waiting, session) = (Arc::clone(&queue), Arc::clone(&self.session));
        let builder = Builder::new().name("pfo-stream".into());
        // Without a thread, calls go on to count when they are made.
        if thread::start(builder, move || waiting.run(&session)).is_ok()
            && let Err(second) = self.queue.set(queue)
        {
            second.close();
        }
        if let Some(queue) = self.queue.get() {
            let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
            queues.retain(|queue| queue.strong_count() > 0);
            queues.push(Arc::downgrade(queue));
        }
    }

    /// Waits until the GPU has got to everything that was said, but not longer than this.
    pub fn wait(&self, patience: Duration) {
        if self.session.is_ours()
            && let Some(queue) = self.queue.get()
        {
            queue.wait_until_reached(patience);
        }
    }
}

/// The CUDA ordinal of a session's GPU, if that is known and this process has a context on it; else why it has
/// none.
///
/// # Errors
/// If there is no lease, or no context.
pub fn context_ordinal(session: &Session) -> Result<Option<u32>, String> {
    cuda_events(session).map(|cuda| cuda.ordinal())
}

/// Of the GPU that is leased: an event on another says nothing about it.
fn cuda_events(session: &Session) -> Result<CudaEvents, String> {
    let lease = session.lease().ok_or("there is no lease")?;
    CudaEvents::of(&lease.gpu_uuid)
}

/// Those of all sessions of the process.
static QUEUES: Mutex<Vec<Weak<Queue>>> = Mutex::new(Vec::new());

/// Waits until the GPU has got to everything that was said in any session of this process, also in one that
/// is closed, but not longer than this: for a process that is about to end.
pub fn wait_for_gpu(patience: Duration) {
    let began = Instant::now();
    let queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for queue in queues.iter().filter_map(Weak::upgrade) {
        if queue.generation == fork::generation() {
            queue.wait_until_reached(patience.saturating_sub(began.elapsed()));
        }
    }
}

impl Drop for StreamOrdered {
    fn drop(&mut self) {
        if self.session.is_ours()
            && let Some(queue) = self.queue.get()
        {
            queue.close();
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, call: Call, stream: Stream) -> Told {
        let _recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = self.lock().spare.pop();
        match self.cuda.record(stream, spare) {
            Ok(event) => self.enqueue(Pending { call, event: Some(event), at_ns: None }),
            Err(NotRecorded::Captured(spare)) => {
                self.lock().spare.extend(spare);
                Told::Captured
            }
            Err(NotRecorded::Failed(spare)) => {
                self.lock().spare.extend(spare);
                self.enqueue(Pending { call, event: None, at_ns: None })
            }
        }
    }

    fn enqueue(&self, pending: Pending) -> Told {
        self.lock().pending.push_back(pending);
        self.changed.notify_all();
        if pending.event.is_some() { Told::ByGpu } else { Told::AtOnce }
    }

    fn wait_until_reached(&self, patience: Duration) {
        let behind = |state: &mut State| !state.pending.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), patience, behind));
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Tells the session of everything as it is reached, until all is and the queue is closed.
    fn run(&self, session: &Session) {
        self.cuda.wait_on_this_thread();
        let mut clock = GpuClock::default();
        while let Some(Pending { call, event, at_ns }) = self.first() {
            let reached = event.map(|event| self.wait_for(event, &mut clock));
            match reached.as_ref().map(|reached| reached.at_ns).or(at_ns) {
                Some(at_ns) => session.tell_at(call, at_ns),
                None => session.tell(call),
            }
            let mut state = self.lock();
            state.pending.pop_front();
            state.spare.extend(reached.into_iter().flat_map(|reached| reached.spare).flatten());
            self.changed.notify_all();
        }
        for event in self.lock().spare.drain(..).chain(clock.base()) {
            self.cuda.destroy(event);
        }
    }

    fn wait_for(&self, event: Event, clock: &mut GpuClock<Event>) -> Reached<Event> {
        self.cuda.wait(event);
        clock.reached(event, monotonic_ns(), |base, event| self.cuda.elapsed_ns(base, event))
    }

    /// The first call that the session does not know of; none when there will be none any more.
    fn first(&self) -> Option<Pending> {
        let idle = |state: &mut State| state.pending.is_empty() && !state.closed;
        let state = self.changed.wait_while(self.lock(), idle);
        state.unwrap_or_else(PoisonError::into_inner).pending.front().copied()
    }
}
