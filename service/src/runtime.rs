//! The runtime of a daemon: one thread, which serves everybody and must wait for nobody.
//!
//! Whoever reads from a Unix socket, or closes it, drops the descriptors in it that nobody takes.
//! The last one of a TCP connection that lingers makes that thread wait in the kernel for as long
//! as the sender has chosen, unless a signal comes. So one comes whenever the thread is busy for
//! long.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::gettid;
use tokio::runtime::Builder;

use crate::sys;

/// The thread gets the signal when it has been busy for this long, and again each time. No call
/// that it makes takes as long, unless a peer delays it.
const BUSY: Duration = Duration::from_millis(1);

/// It is ignored unless there is a handler, so a late one harms nobody.
const SIGNAL: Signal = Signal::SIGURG;

thread_local! {
    static TIMER: RefCell<Option<Timer>> = RefCell::new(timer().ok());
}

/// Serves on this thread. Work that may block has threads of its own, of which those that are left
/// at the end get `patience`.
///
/// # Errors
/// If the kernel refuses a runtime.
pub fn serve<T>(
    blocking_threads: usize,
    patience: Duration,
    service: impl Future<Output = T>,
) -> io::Result<T> {
    sys::notice(SIGNAL)?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking_threads)
        .thread_keep_alive(Duration::from_secs(1))
        .on_thread_unpark(|| interrupt_every(BUSY))
        // An idle daemon is not woken.
        .on_thread_park(|| interrupt_every(Duration::ZERO))
        .build()?;
    let result = runtime.block_on(service);
    interrupt_every(Duration::ZERO);
    runtime.shutdown_timeout(patience);
    Ok(result)
}

/// Sends this thread the signal at this interval from now on; never, if it is zero.
fn interrupt_every(interval: Duration) {
    let every = Expiration::IntervalDelayed(interval.into(), interval.into());
    TIMER.with_borrow_mut(|timer| {
        timer.as_mut().map(|timer| timer.set(every, TimerSetTimeFlags::empty()))
    });
}

/// A timer of this thread's own.
fn timer() -> nix::Result<Timer> {
    let thread_id = gettid().as_raw();
    let to = SigevNotify::SigevThreadId { signal: SIGNAL, thread_id, si_value: 0 };
    Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(to))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::time::Instant;

    use nix::libc::linger;
    use nix::sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, setsockopt,
        socketpair, sockopt,
    };

    use super::*;

    /// Longer than any test may take.
    const LINGER_S: i32 = 3600;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).unwrap()
    }

    fn pass(to: &OwnedFd, file: OwnedFd) {
        let (files, part) = ([file.as_raw_fd()], [io::IoSlice::new(b"x")]);
        let passed = [ControlMessage::ScmRights(&files)];
        sendmsg::<()>(to.as_raw_fd(), &part, &passed, MsgFlags::empty(), None).unwrap();
        drop(file);
    }

    /// A connection that whoever drops it last waits for, and its other end.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 65_536]).is_ok() {}
        stream.set_nonblocking(false).unwrap();
        setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: LINGER_S }).unwrap();
        (stream.into(), other)
    }

    #[test]
    fn what_is_dropped_unseen_delays_the_thread_for_a_moment_at_most() {
        let started = Instant::now();
        serve(1, Duration::ZERO, async {
            // The timer runs from the first wait on.
            tokio::time::sleep(BUSY).await;
            let (read, sends) = pair();
            let (file, _other) = lingering();
            pass(&sends, file);
            assert_eq!(std::fs::File::from(read).read(&mut [0; 2]).unwrap(), 1);
            let (closed, sends) = pair();
            let others = [0; 3].map(|_| {
                let (file, other) = lingering();
                pass(&sends, file);
                other
            });
            drop((closed, others));
            // In a socket that is in flight itself.
            let (outer, sends) = pair();
            let (inner, sends_inner) = pair();
            let (file, _other) = lingering();
            pass(&sends_inner, file);
            pass(&sends, inner);
            drop((sends_inner, outer));
        })
        .unwrap();
        assert!(started.elapsed() < Duration::from_secs(LINGER_S as u64));
    }

    #[test]
    fn an_idle_thread_is_not_woken() {
        let waits = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line =
                status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.unwrap().trim().parse::<u64>().unwrap()
        };
        let woken = serve(1, Duration::ZERO, async {
            tokio::time::sleep(BUSY).await;
            let before = waits();
            tokio::time::sleep(200 * BUSY).await;
            waits() - before
        });
        assert!(woken.unwrap() < 50);
    }
}
