//! What a rank sends in a session, in any order: the clock that it leads to is one of its plan, the
//! highest or the default.
use pfo_protocol::{ClientMessage, Frame};

/// The target.
pub fn events(stream: &[u8]) {
    let mut rest = stream;
    let frames = std::iter::from_fn(|| {
        let frame = Frame::first_of(rest).ok()??;
        rest = &rest[frame.total_bytes()..];
        Some(ClientMessage::from_payload(frame.kind, frame.payload))
    });
    pfod::fuzzing::events(frames.filter_map(|message| match message {
        Ok(ClientMessage::Event(event)) => Some(event),
        _ => None,
    }));
}
