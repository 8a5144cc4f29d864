//! The payload of one frame, as the daemon, the agent and their clients decode it. The first byte
//! chooses the kind. What can be read has only one way to be written.
use pfo_protocol::{ClientMessage, DaemonMessage, HEADER_BYTES, Kind, Request};

/// The target.
pub fn message(bytes: &[u8]) {
    let Some((number, payload)) = bytes.split_first() else { return };
    let kind = Kind::ALL[usize::from(*number) % Kind::ALL.len()];
    if let Ok(message) = ClientMessage::from_payload(kind, payload) {
        assert_eq!(message.to_frame().unwrap()[HEADER_BYTES..], *payload);
        match message {
            ClientMessage::Hello(hello) if hello.position.check().is_ok() => {
                assert!(hello.position.rank.0 < 1 << 20);
            }
            ClientMessage::Request(Request::PlanLoad { table, .. }) => {
                pfod::fuzzing::table(&table);
            }
            _ => {}
        }
    }
    if let Ok(message) = DaemonMessage::from_payload(kind, payload) {
        assert_eq!(message.to_frame().unwrap()[HEADER_BYTES..], *payload);
    }
}
