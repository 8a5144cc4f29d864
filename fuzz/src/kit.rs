//! The recorded frames of the protocol, as seeds: one of every kind and variant that a client sends.

use serde_json::Value;

const FILES: [&str; 2] = [
    include_str!("../../protocol/frames/session.json"),
    include_str!("../../protocol/frames/requests.json"),
];

/// A recorded frame.
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn frames() -> Vec<Recorded> {
    FILES.into_iter().flat_map(frames_of).collect()
}

/// The frames that a rank sends in the recorded session.
pub(crate) fn session() -> Vec<Vec<u8>> {
    let is_of_session = |frame: &Recorded| {
        ["hello", "goodbye"].contains(&frame.name.as_str()) || frame.name.starts_with("event-")
    };
    frames().into_iter().filter(is_of_session).map(|frame| frame.bytes).collect()
}

fn frames_of(file: &str) -> Vec<Recorded> {
    let kit: Value = serde_json::from_str(file).expect("the file is JSON");
    let text = |frame: &Value, field: &str| frame[field].as_str().expect("a text").to_owned();
    let recorded =
        |frame: &Value| Recorded { name: text(frame, "name"), bytes: unhex(&text(frame, "bytes")) };
    kit["frames"].as_array().expect("a list").iter().map(recorded).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits");
    (0..text.len()).step_by(2).map(byte).collect()
}
