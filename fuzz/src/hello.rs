//! The payloads of hellos, each with its length before it, and what becomes of them in a job.
use pfo_protocol::{ClientMessage, Kind};

/// The target.
pub fn hello(mut bytes: &[u8]) {
    let mut hellos = Vec::new();
    while let Some((length, rest)) = bytes.split_first() {
        let (payload, behind) = rest.split_at(rest.len().min(usize::from(*length)));
        if let Ok(ClientMessage::Hello(hello)) = ClientMessage::from_payload(Kind::Hello, payload) {
            hellos.push(hello);
        }
        bytes = behind;
    }
    pfod::fuzzing::hellos(hellos);
}
