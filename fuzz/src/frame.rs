//! A stream of frames, as either side reads it. What can be read has only one way to be written.
use pfo_protocol::{ClientMessage, DaemonMessage, Frame, HEADER_BYTES};

/// The target.
pub fn frame(stream: &[u8]) {
    let mut rest = stream;
    while let Ok(Some(frame)) = Frame::first_of(rest) {
        if let Ok(message) = ClientMessage::from_payload(frame.kind, frame.payload) {
            assert_eq!(message.to_frame().unwrap()[HEADER_BYTES..], *frame.payload);
        }
        if let Ok(message) = DaemonMessage::from_payload(frame.kind, frame.payload) {
            assert_eq!(message.to_frame().unwrap()[HEADER_BYTES..], *frame.payload);
        }
        rest = &rest[frame.total_bytes()..];
    }
}
