//! What a rank reports while it trains: the begin and end of steps and instructions.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::Unit;

use crate::codec::{self, CodecError};
use crate::frame::{FrameError, HEADER_BYTES, Header, Kind};

/// What begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mark {
    /// A training iteration begins. The rank numbers its steps; the numbers grow.
    StepBegin(u64),
    /// The training iteration with that number ends.
    StepEnd(u64),
    /// An instruction begins.
    InstructionBegin(Unit),
    /// The instruction that began last ends.
    InstructionEnd(Unit),
    /// So many calls of the process have counted when the host made them so far, though they were to
    /// count when the GPU gets to them. Only for a daemon that [takes it](Mark::is_taken_by).
    Untimed(u64),
}

impl Mark {
    /// Whether a daemon understands this mark, by its name in [`Welcome`](crate::Welcome): `pfod` of release
    /// 0.1 ends the session at a mark that it does not know.
    #[must_use]
    pub fn is_taken_by(&self, daemon: &str) -> bool {
        let release = || {
            let (major, rest) = daemon.strip_prefix("pfod ")?.split_once('.')?;
            let (minor, _) = rest.split_once('.')?;
            Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
        };
        !matches!(self, Self::Untimed(_)) || release().is_some_and(|release| release >= (0, 2))
    }
}

/// One event of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts every event of the session from 0, also those that could not be sent: a gap shows
    /// the daemon that it missed something.
    pub sequence: u64,
    /// When it happened, `CLOCK_MONOTONIC` of the node in nanoseconds.
    pub client_ns: u64,
    /// What happened.
    pub mark: Mark,
}

/// Bytes of the largest event frame, header included.
pub const EVENT_FRAME_BYTES: usize = HEADER_BYTES + Kind::Event.max_payload();

impl Event {
    /// Writes the event as a whole frame without allocating; returns the frame's length.
    ///
    /// # Errors
    /// None for an event of this version, whose size is bounded by its type.
    pub fn write_frame(&self, out: &mut [u8; EVENT_FRAME_BYTES]) -> Result<usize, CodecError> {
        let length = codec::encode_into(self, &mut out[HEADER_BYTES..])?;
        out[..HEADER_BYTES].copy_from_slice(&Header { kind: Kind::Event, length }.to_bytes());
        Ok(HEADER_BYTES.saturating_add(length))
    }

    /// Reads an event from the payload of an event frame.
    ///
    /// # Errors
    /// If the payload is not exactly one event.
    #[inline]
    pub fn from_payload(payload: &[u8]) -> Result<Self, FrameError> {
        codec::decode(payload).map_err(|source| FrameError::Payload { kind: Kind::Event, source })
    }
}

#[cfg(test)]
mod tests {
    use pfo_vocabulary::{Chunk, Instruction, Microbatch};
    use proptest::prelude::*;

    use super::*;
    use crate::frame::Frame;

    fn frame(event: Event) -> Vec<u8> {
        let mut out = [0; EVENT_FRAME_BYTES];
        let length = event.write_frame(&mut out).unwrap();
        out[..length].to_vec()
    }

    #[test]
    fn the_bytes_of_an_instruction_begin_are_the_documented_ones() {
        let unit = Unit {
            instruction: Instruction::Backward,
            chunk: Chunk(3),
            microbatch: Microbatch(258),
        };
        let event =
            Event { sequence: 7, client_ns: 0x0102_0304, mark: Mark::InstructionBegin(unit) };
        #[rustfmt::skip]
        assert_eq!(frame(event), [
            30, 0, 0, 0,  1, 0,  2, 0,          // length, version, kind
            7, 0, 0, 0, 0, 0, 0, 0,             // sequence
            4, 3, 2, 1, 0, 0, 0, 0,             // client_ns
            2, 0, 0, 0,                         // instruction begin
            1, 0, 0, 0,  3, 0,  2, 1, 0, 0,     // backward, chunk, microbatch
        ]);
    }

    #[test]
    fn the_bytes_of_a_step_end_are_the_documented_ones() {
        let event = Event { sequence: 1, client_ns: 2, mark: Mark::StepEnd(3) };
        #[rustfmt::skip]
        assert_eq!(frame(event), [
            28, 0, 0, 0,  1, 0,  2, 0,
            1, 0, 0, 0, 0, 0, 0, 0,
            2, 0, 0, 0, 0, 0, 0, 0,
            1, 0, 0, 0,
            3, 0, 0, 0, 0, 0, 0, 0,
        ]);
    }

    #[test]
    fn the_bytes_of_a_count_of_untimed_calls_are_the_documented_ones() {
        let event = Event { sequence: 1, client_ns: 2, mark: Mark::Untimed(3) };
        #[rustfmt::skip]
        assert_eq!(frame(event), [
            28, 0, 0, 0,  1, 0,  2, 0,
            1, 0, 0, 0, 0, 0, 0, 0,
            2, 0, 0, 0, 0, 0, 0, 0,
            4, 0, 0, 0,
            3, 0, 0, 0, 0, 0, 0, 0,
        ]);
    }

    #[test]
    fn a_daemon_that_does_not_know_a_mark_is_known_by_its_release() {
        for daemon in
            ["pfod 0.1.0", "pfod 0.1.17", "pfod", "pfod 0", "pfod x.y.z", "else 0.2.0", ""]
        {
            assert!(!Mark::Untimed(1).is_taken_by(daemon), "{daemon}");
            assert!(Mark::StepEnd(1).is_taken_by(daemon), "{daemon}");
        }
        for daemon in ["pfod 0.2.0", "pfod 0.10.1", "pfod 1.0.0", "pfod 0.2.0-rc.1"] {
            assert!(Mark::Untimed(1).is_taken_by(daemon), "{daemon}");
        }
    }

    #[test]
    fn the_largest_event_fits_into_its_frame() {
        let unit = Unit {
            instruction: Instruction::Other,
            chunk: Chunk(u16::MAX),
            microbatch: Microbatch(u32::MAX),
        };
        for mark in [Mark::StepEnd(u64::MAX), Mark::InstructionEnd(unit)] {
            let event = Event { sequence: u64::MAX, client_ns: u64::MAX, mark };
            assert!(frame(event).len() <= EVENT_FRAME_BYTES);
        }
    }

    #[test]
    fn an_instruction_without_a_name_is_refused_with_its_number() {
        let unit = Unit::new(Instruction::Other, 0);
        let event = Event { sequence: 0, client_ns: 0, mark: Mark::InstructionBegin(unit) };
        let mut bytes = frame(event);
        bytes[HEADER_BYTES + 20] = 11;
        let error = Event::from_payload(&bytes[HEADER_BYTES..]).unwrap_err().to_string();
        assert!(error.contains("no instruction has number 11"), "{error}");
    }

    fn any_mark() -> impl Strategy<Value = Mark> {
        let unit =
            (0..11u32, any::<u16>(), any::<u32>()).prop_map(|(number, chunk, microbatch)| Unit {
                instruction: Instruction::from_number(number).unwrap(),
                chunk: Chunk(chunk),
                microbatch: Microbatch(microbatch),
            });
        prop_oneof![
            any::<u64>().prop_map(Mark::StepBegin),
            any::<u64>().prop_map(Mark::StepEnd),
            any::<u64>().prop_map(Mark::Untimed),
            unit.clone().prop_map(Mark::InstructionBegin),
            unit.prop_map(Mark::InstructionEnd),
        ]
    }

    proptest! {
        #[test]
        fn every_event_survives_the_wire(sequence: u64, client_ns: u64, mark in any_mark()) {
            let event = Event { sequence, client_ns, mark };
            let bytes = frame(event);
            let frame = Frame::first_of(&bytes).unwrap().unwrap();
            prop_assert_eq!(frame.kind, Kind::Event);
            prop_assert_eq!(frame.total_bytes(), bytes.len());
            prop_assert_eq!(Event::from_payload(frame.payload).unwrap(), event);
        }

        #[test]
        fn a_payload_that_is_an_event_is_written_the_same(
            payload in prop::collection::vec(any::<u8>(), 0..64)
        ) {
            if let Ok(event) = Event::from_payload(&payload) {
                prop_assert_eq!(&frame(event)[HEADER_BYTES..], &payload);
            }
        }
    }
}
