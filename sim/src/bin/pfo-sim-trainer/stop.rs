//! Being asked to stop, by SIGTERM or Ctrl-C.
//!
//! The signals are blocked and one thread waits for them, so that no handler interrupts anything.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{SigSet, Signal};

use crate::socket::Socket;

/// The signals that ask to stop.
fn stop_signals() -> SigSet {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals
}

/// Calls `asked` each time that this process is asked to stop. To be called before any other thread
/// starts, for they must not receive the signals.
pub(crate) fn on_request(mut asked: impl FnMut() + Send + 'static) -> io::Result<()> {
    let signals = stop_signals();
    signals.thread_block()?;
    thread::Builder::new().name("stop".into()).spawn(move || {
        while signals.wait().is_ok() {
            asked();
        }
    })?;
    Ok(())
}

/// Whether a rank was asked to stop.
#[derive(Clone)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// A flag that rises when this process is asked to stop. The sockets end then, so that nobody
    /// waits on them any longer.
    pub(crate) fn new(sockets: Vec<Socket>) -> io::Result<Self> {
        let flag = Self(Arc::default());
        let risen = flag.clone();
        on_request(move || {
            risen.0.store(true, Ordering::Release);
            for socket in &sockets {
                // It may have ended by itself.
                let _ = socket.shutdown();
            }
        })?;
        Ok(flag)
    }

    pub(crate) fn is_risen(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
