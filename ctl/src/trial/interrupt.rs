//! Ctrl-C while a job is measured: the connection that holds the job ends, the wait for its
//! response ends with it, and what was measured so far can still be written.

use std::net::Shutdown;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use interprocess::TryClone;
use interprocess::os::unix::uds_local_socket::Stream;
use pfo_protocol::JobName;

use super::TrialError;
use crate::daemons::{Connection, ConnectionError, Daemon, Daemons};
use crate::error::Error;
use crate::exit::Exit;
use crate::signals::{self, SignalError};

/// Whether a signal has come that ends the process, and the stream that it ends first.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    has_come: bool,
    stream: Option<Stream>,
}

impl Interrupt {
    /// From here on no such signal ends the process at once, but a second one does. Threads that
    /// start later take part; there must not be any yet.
    pub(crate) fn prepare() -> Result<Self, SignalError> {
        let signals = signals::ending();
        signals::block(signals)?;
        let interrupt = Self(Arc::default());
        let taken = interrupt.clone();
        thread::spawn(move || {
            if signals.wait().is_ok() {
                taken.come();
            }
            if signals.wait().is_ok() {
                std::process::exit(Exit::Interrupted as i32);
            }
        });
        Ok(interrupt)
    }

    fn come(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.has_come = true;
        if let Some(stream) = &state.stream {
            let _ = stream.inner().shutdown(Shutdown::Both);
        }
    }

    /// Opens a connection that it ends, in place of the one before.
    pub(crate) fn connect<D: Daemon>(&self, daemons: &Daemons) -> Result<Connection<D>, Error> {
        let connection: Result<Connection<D>, ConnectionError> = daemons.open();
        let connection = connection?;
        self.ends(connection.stream().try_clone()?);
        Ok(connection)
    }

    fn ends(&self, stream: Stream) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.has_come {
            let _ = stream.inner().shutdown(Shutdown::Both);
        }
        state.stream = Some(stream);
    }

    /// The answer about a job or, once it has come, the interruption as the reason for none.
    pub(crate) fn or<T>(&self, job: &JobName, answer: Result<T, Error>) -> Result<T, Error> {
        match self.has_come() {
            true => Err(TrialError::Interrupted { job: job.clone() }.into()),
            false => answer,
        }
    }

    fn has_come(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).has_come
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn whoever_waits_for_an_answer_goes_on_whether_it_waited_already_or_not() {
        let interrupt = Interrupt(Arc::default());
        for _ in 0..2 {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            interrupt.ends(ours.try_clone().unwrap().into());
            interrupt.come();
            assert_eq!((&ours).read(&mut [0]).unwrap(), 0);
            assert!(interrupt.has_come());
        }
    }
}
