//! The loop of a rank's thread: it waits for events, takes in what was read, and finds out how the
//! session ends.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use pfo_keeper::ClockError;
use pfo_protocol::{ClosingReason, CodecError, Event, Frame, FrameError, Kind, Mark};
use pfo_service::{Flood, ThreadClocks, computed_ns, now_ns};

use super::urgency::Urgency;
use super::{BUFFER_BYTES, End, Rank};
use crate::lease::Ending;

/// A step number above this is invalid: no step takes less than a microsecond.
const LAST_STEP: u64 = 1 << 50;

/// An event may be this far in the future, in nanoseconds.
const LATEST_NS: u64 = 60_000_000_000;

impl Rank {
    /// Serves the rank until its session ends. The socket's read timeout is the idle limit.
    pub(crate) fn serve(&mut self) -> End {
        let end = self.follow_events();
        self.account();
        end
    }

    fn follow_events(&mut self) -> End {
        let session = Arc::clone(&self.session);
        let _reading = session.read_by_this_thread();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut filled = 0;
        let clocks = || ThreadClocks { now_ns: now_ns(), computed_ns: computed_ns() };
        let mut flood = Flood::new(clocks());
        let mut urgency = Urgency::new();
        loop {
            match self.wait_ahead().and_then(|()| session.stream().read(&mut buffer[filled..])) {
                Ok(0) => return self.asked_to_end(filled).unwrap_or(End::HungUp),
                Ok(read) => {
                    filled = filled.saturating_add(read);
                    self.wake();
                }
                Err(error) => match self.silence(error.kind(), filled) {
                    Some(end) => return end,
                    None => continue,
                },
            }
            let taken = match self.take(&buffer[..filled]) {
                Ok(taken) => taken,
                Err(end) => return end,
            };
            if let Some(pause) = flood.read(filled == buffer.len(), clocks) {
                urgency.gives_way();
                std::thread::sleep(pause);
            }
            urgency.prepare(self.following.cursor.is_before_a_change(), now_ns());
            buffer.copy_within(taken..filled, 0);
            filled = filled.saturating_sub(taken);
            if let Some(end) = self.asked_to_end(filled) {
                return end;
            }
        }
    }

    /// Takes in what was read, and does what follows from it. Returns the bytes that were taken.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let taken = match self.take_in(bytes) {
            Ok(Some(taken)) => taken,
            Ok(None) => return Err(End::Goodbye),
            Err(error) => return Err(End::Closed(ClosingReason::Malformed, error.to_string())),
        };
        let set = self.set_clock().and_then(|()| self.set_power_limit());
        if let Err(error) = set.and_then(|()| self.set_memory()) {
            return Err(End::Closed(ClosingReason::GpuLost, error.to_string()));
        }
        self.account();
        Ok(taken)
    }

    /// How the daemon ends the session, if it does, after `unread` bytes of a frame.
    pub(crate) fn asked_to_end(&self, unread: usize) -> Option<End> {
        match self.session.ending()? {
            Ending::Closed(closing) => Some(End::Closed(closing.reason, closing.message.clone())),
            // The next daemon could not parse the rest of a frame.
            Ending::HandedOver => (unread == 0).then_some(End::HandedOver),
        }
    }

    /// Waits until the rank sends something, and asks meanwhile for the clock of the next
    /// instruction if that must be asked for before this one, or the wait, ends.
    fn wait_ahead(&mut self) -> io::Result<()> {
        let ask_at_ns = || match self.following.ahead.ask_back_at_ns {
            Some(at_ns) => self.following.cursor.is_before_a_change().then_some(at_ns),
            None => {
                let next = self.following.cursor.next_change()?;
                self.following.ahead.ask_at_ns(next, self.settle_ns(next.to))
            }
        };
        let Some(ask_at_ns) = ask_at_ns() else { return Ok(()) };
        let left = Duration::from_nanos(ask_at_ns.saturating_sub(now_ns()));
        let mut events = [PollFd::new(self.session.stream().as_fd(), PollFlags::POLLIN)];
        if ppoll(&mut events, Some(left.into()), None)? == 0 {
            self.setting.own_lock = self.setting.clocks.locked();
            self.following.cursor.look_ahead();
            // A GPU that is lost is noticed when the instruction ends.
            let _ = self.set_clock();
        }
        Ok(())
    }

    /// What a read that returned nothing means, after `unread` bytes of a frame.
    #[cold]
    fn silence(&mut self, kind: ErrorKind, unread: usize) -> Option<End> {
        let asked = self.asked_to_end(unread);
        match kind {
            ErrorKind::Interrupted => {
                self.session.noticed_interruption();
                let lost =
                    |error: ClockError| End::Closed(ClosingReason::GpuLost, error.to_string());
                asked.or_else(|| self.set_power_limit().err().map(lost))
            }
            ErrorKind::WouldBlock if self.session.ending().is_none() => {
                if self.session.has_device() && self.rest() {
                    return None;
                }
                let message = "no event came within the idle limit".into();
                Some(End::Closed(ClosingReason::Idle, message))
            }
            _ => asked.or(Some(End::HungUp)),
        }
    }

    /// Takes every whole frame; returns the bytes taken, or `None` after a goodbye.
    fn take_in(&mut self, bytes: &[u8]) -> Result<Option<usize>, FrameError> {
        let mut taken = 0;
        let latest_ns = now_ns().saturating_add(LATEST_NS);
        while let Some(frame) = Frame::first_of(&bytes[taken..])? {
            match frame.kind {
                Kind::Event => {
                    let event = Event::from_payload(frame.payload)?;
                    check(&event, latest_ns)?;
                    self.event(&event);
                }
                Kind::Goodbye => return Ok(None),
                other => return Err(FrameError::Unexpected(other)),
            }
            taken = taken.saturating_add(frame.total_bytes());
        }
        Ok(Some(taken))
    }
}

/// Checks the numbers of an event before anything is computed from them.
fn check(event: &Event, latest_ns: u64) -> Result<(), FrameError> {
    let wrong = match event.mark {
        _ if event.client_ns > latest_ns => {
            format!("an event at {} ns is more than a minute ahead", event.client_ns)
        }
        Mark::StepBegin(step) | Mark::StepEnd(step) if step > LAST_STEP => {
            format!("step {step} is beyond {LAST_STEP}, the last one possible")
        }
        _ => return Ok(()),
    };
    Err(FrameError::Payload { kind: Kind::Event, source: CodecError::Invalid(wrong) })
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Instruction, Unit};

    use super::*;
    use crate::job::Swap;
    use crate::lease::Progress;

    const LATEST: u64 = 1_000;

    fn checked(mark: Mark, client_ns: u64) -> Result<(), String> {
        check(&Event { sequence: u64::MAX, client_ns, mark }, LATEST).map_err(|e| e.to_string())
    }

    fn marks(step: u64) -> [Mark; 2] {
        [Mark::StepBegin(step), Mark::StepEnd(step)]
    }

    #[test]
    fn a_step_beyond_the_last_one_possible_is_malformed_and_named() {
        for mark in marks(LAST_STEP) {
            assert_eq!(checked(mark, LATEST), Ok(()));
        }
        for step in [LAST_STEP + 1, u64::MAX - 1, u64::MAX] {
            for mark in marks(step) {
                let error = checked(mark, 0).unwrap_err();
                assert!(error.contains(&format!("step {step} is beyond")), "{error}");
            }
        }
    }

    #[test]
    fn a_time_more_than_a_minute_ahead_is_malformed_whatever_the_event_marks() {
        let unit = Unit::new(Instruction::Forward, u32::MAX);
        let marks =
            marks(0).into_iter().chain([Mark::InstructionBegin(unit), Mark::InstructionEnd(unit)]);
        for mark in marks {
            assert_eq!(checked(mark, LATEST), Ok(()));
            assert_eq!(checked(mark, 0), Ok(()));
            for client_ns in [LATEST + 1, u64::MAX] {
                let error = checked(mark, client_ns).unwrap_err();
                assert!(error.contains(&format!("an event at {client_ns} ns")), "{error}");
            }
        }
    }

    #[test]
    fn what_is_wrong_with_an_event_is_an_error_of_its_frame() {
        let event = Event { sequence: 0, client_ns: 0, mark: Mark::StepBegin(u64::MAX) };
        let error = check(&event, LATEST).unwrap_err();
        assert!(matches!(error, FrameError::Payload { kind: Kind::Event, .. }), "{error:?}");
    }

    #[test]
    fn the_last_step_possible_leaves_room_for_a_swap_and_a_trial_after_it() {
        let progress = Arc::new(Progress::default());
        progress.begin_step(LAST_STEP);
        let swap = Swap::new(1, None, None, vec![progress]);
        assert_eq!(swap.step(), LAST_STEP + 1);
        assert!(swap.step().checked_add(u32::MAX.into()).is_some_and(|step| step < u64::MAX / 2));
    }
}
