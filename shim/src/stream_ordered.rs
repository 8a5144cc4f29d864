//! A session whose calls count when the GPU gets to them, for hosts that run ahead of their GPU.
//!
//! A call records a CUDA event in the stream that its work goes to; a thread waits for the events
//! in the order of the calls and tells the session of each as it is reached. The host never waits,
//! and the stream neither: an event costs the GPU no gap, as a host function in the stream would.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use crate::call::Call;
use crate::cuda_events::{CudaEvents, Event, Stream};
use crate::session::Session;
use crate::thread;

/// A session whose calls count when the GPU gets to them.
///
/// As long as the process has no CUDA context, they count when they are made. Whether there is one
/// is looked for whenever a step begins.
///
/// Dropping it ends the session once the GPU has got to everything that was said.
#[derive(Debug)]
pub struct StreamOrdered {
    session: Arc<Session>,
    queue: OnceLock<Arc<Queue>>,
}

/// What has been said and not reached yet.
#[derive(Debug)]
struct Queue {
    cuda: CudaEvents,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Without an event, a call is reached as soon as those before it are. Not bounded here: CUDA
    /// itself lets no host run ahead by more than about a thousand launches.
    pending: VecDeque<(Call, Option<Event>)>,
    spare: Vec<Event>,
    closed: bool,
}

impl StreamOrdered {
    /// Takes over a session.
    #[must_use]
    pub fn new(session: Session) -> Self {
        Self { session: Arc::new(session), queue: OnceLock::new() }
    }

    /// The session, to ask it for its problem and counters.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Makes a call that counts when the GPU reaches this point of a stream: the one that
    /// the work after it goes to, or the work before it went to. Which it is, is asked only if
    /// there is a CUDA context.
    pub fn tell(&self, call: Call, stream: impl FnOnce() -> Stream) {
        if !self.session.is_ours() {
            return;
        }
        if call == Call::StepBegin && self.queue.get().is_none() {
            self.look_for_cuda();
        }
        match self.queue.get() {
            Some(queue) => queue.push(call, stream()),
            None => self.session.tell(call),
        }
    }

    fn look_for_cuda(&self) {
        let Some(cuda) = CudaEvents::of_this_thread() else {
            return;
        };
        let queue = Arc::new(Queue { cuda, state: Mutex::default(), changed: Condvar::new() });
        let (waiting, session) = (Arc::clone(&queue), Arc::clone(&self.session));
        let builder = Builder::new().name("pfo-stream".into());
        // Without a thread, calls go on to count when they are made.
        if thread::start(builder, move || waiting.run(&session)).is_ok()
            && let Err(second) = self.queue.set(queue)
        {
            second.close();
        }
    }

    /// Waits until the GPU has got to everything that was said, but not longer than this.
    pub fn wait(&self, patience: Duration) {
        if self.session.is_ours()
            && let Some(queue) = self.queue.get()
        {
            let behind = |state: &mut State| !state.pending.is_empty();
            drop(queue.changed.wait_timeout_while(queue.lock(), patience, behind));
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

    fn push(&self, call: Call, stream: Stream) {
        // The lock is held while recording, so that calls of several threads are in the order of
        // their events. CUDA may take the time of a kernel for it when its launch queue is full, as
        // for any launch.
        let mut state = self.lock();
        let event = self.cuda.record(stream, &mut state.spare);
        state.pending.push_back((call, event));
        self.changed.notify_all();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Tells the session of everything as it is reached, until all is and the queue is closed.
    fn run(&self, session: &Session) {
        self.cuda.wait_on_this_thread();
        while let Some((call, event)) = self.first() {
            if let Some(event) = event {
                self.cuda.wait(event);
            }
            session.tell(call);
            let mut state = self.lock();
            state.pending.pop_front();
            state.spare.extend(event);
            self.changed.notify_all();
        }
        for event in self.lock().spare.drain(..) {
            self.cuda.destroy(event);
        }
    }

    /// The first call that the session does not know of; none when there will be none any more.
    fn first(&self) -> Option<(Call, Option<Event>)> {
        let idle = |state: &mut State| state.pending.is_empty() && !state.closed;
        let state = self.changed.wait_while(self.lock(), idle);
        state.unwrap_or_else(PoisonError::into_inner).pending.front().copied()
    }
}
