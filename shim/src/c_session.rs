//! The session of a C caller: calls count when they are made, or when the GPU gets to them in the stream that
//! the caller names.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::call::Call;
use crate::cuda_events::Stream;
use crate::session::Session;
use crate::stream_ordered::StreamOrdered;

/// What `pfo_session` is.
#[derive(Debug)]
pub(crate) struct CSession {
    ordered: StreamOrdered,
    stream: AtomicUsize,
    follows_stream: AtomicBool,
}

impl CSession {
    pub(crate) fn new(session: Session) -> Self {
        Self {
            ordered: StreamOrdered::new(session),
            stream: AtomicUsize::new(0),
            follows_stream: AtomicBool::new(false),
        }
    }

    /// From now on, calls count when the GPU gets to this point of a stream.
    pub(crate) fn use_stream(&self, stream: usize) {
        self.stream.store(stream, Ordering::Relaxed);
        self.follows_stream.store(true, Ordering::Release);
    }

    pub(crate) fn tell(&self, call: Call) {
        if self.follows_stream.load(Ordering::Acquire) {
            self.ordered.tell(call, || Stream(self.stream.load(Ordering::Relaxed)));
        } else {
            self.ordered.session().tell(call);
        }
    }

    pub(crate) fn tell_at(&self, call: Call, at_ns: u64) {
        self.ordered.tell_at(call, at_ns);
    }

    pub(crate) fn ordered(&self) -> &StreamOrdered {
        &self.ordered
    }

    pub(crate) fn session(&self) -> &Session {
        self.ordered.session()
    }
}
