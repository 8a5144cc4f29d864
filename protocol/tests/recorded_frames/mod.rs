//! The recorded frames in `frames/`, which clients in any language may replay, are what this crate
//! writes and reads.
//!
//! `frames/session.json` was written by release 0.1: a frame in it that changes is a session that
//! is no longer served. `PFO_WRITE_FRAMES=1` writes the other file anew; it never touches this one.

mod requests;
mod session;
mod values;

use std::path::{Path, PathBuf};

use pfo_protocol::{ClientMessage, DaemonMessage, Frame, HEADER_BYTES, Kind};
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop, prop_assert_eq, prop_oneof, proptest,
};
use serde_json::{Value, json};

#[derive(Debug, PartialEq)]
enum Message {
    ToDaemon(ClientMessage),
    ToClient(DaemonMessage),
}

/// A frame, as the kit shows it.
struct Recorded {
    name: String,
    meaning: String,
    message: Message,
}

fn to_daemon(name: &str, meaning: &str, message: ClientMessage) -> Recorded {
    Recorded { name: name.into(), meaning: meaning.into(), message: Message::ToDaemon(message) }
}

fn to_client(name: &str, meaning: &str, message: DaemonMessage) -> Recorded {
    Recorded { name: name.into(), meaning: meaning.into(), message: Message::ToClient(message) }
}

impl Recorded {
    fn bytes(&self) -> Vec<u8> {
        match &self.message {
            Message::ToDaemon(message) => message.to_frame().unwrap(),
            Message::ToClient(message) => message.to_frame().unwrap(),
        }
    }

    fn entry(&self) -> Value {
        let bytes = self.bytes();
        let direction = match self.message {
            Message::ToDaemon(_) => "to daemon",
            Message::ToClient(_) => "to client",
        };
        json!({
            "name": self.name,
            "direction": direction,
            "kind": u16::from_le_bytes([bytes[6], bytes[7]]),
            "bytes": hex(&bytes),
            "meaning": self.meaning,
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    assert_eq!(text.len() % 2, 0, "{text}");
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("frames").join(file)
}

fn recorded(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path(file)).unwrap();
    let kit: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(kit["format"], "pfo-frames/1");
    kit["frames"].as_array().unwrap().clone()
}

fn line(entry: &Value) -> String {
    let fields = ["name", "direction", "kind", "meaning", "bytes"]
        .map(|field| format!("\"{field}\": {}", entry[field]));
    format!("    {{{}}}", fields.join(", "))
}

/// One frame a line, so that a change of one is a change of one line.
fn write(file: &str, about: &str, frames: &[Recorded]) {
    let lines: Vec<_> = frames.iter().map(|frame| line(&frame.entry())).collect();
    let about = Value::from(about);
    let text = format!(
        "{{\n  \"format\": \"pfo-frames/1\",\n  \"about\": {about},\n  \"frames\": [\n{}\n  ]\n}}\n",
        lines.join(",\n")
    );
    std::fs::write(path(file), text).unwrap();
}

fn assert_are_recorded(file: &str, frames: &[Recorded]) {
    let recorded = recorded(file);
    for (frame, recorded) in frames.iter().zip(&recorded) {
        assert_eq!(frame.entry(), *recorded, "what is written is not what {file} holds");
        let bytes = unhex(recorded["bytes"].as_str().unwrap());
        let read = Frame::first_of(&bytes).unwrap().unwrap();
        assert_eq!(read.payload.len() + HEADER_BYTES, bytes.len());
        let message = match frame.message {
            Message::ToDaemon(_) => {
                Message::ToDaemon(ClientMessage::from_payload(read.kind, read.payload).unwrap())
            }
            Message::ToClient(_) => {
                Message::ToClient(DaemonMessage::from_payload(read.kind, read.payload).unwrap())
            }
        };
        assert_eq!(message, frame.message);
    }
    assert_eq!(frames.len(), recorded.len(), "the frames of {file} and of its test differ");
}

#[test]
fn a_session_recorded_from_release_0_1_is_read_and_written_byte_by_byte() {
    assert_are_recorded("session.json", &session::frames());
}

#[test]
fn requests_are_read_and_written_as_they_are_recorded() {
    let frames = requests::frames();
    if std::env::var_os("PFO_WRITE_FRAMES").is_some() {
        let about =
            "Requests to pfod and pfo-agent and answers of theirs, as this release writes them.";
        write("requests.json", about, &frames);
    }
    assert_are_recorded("requests.json", &frames);
}

#[test]
fn frames_of_every_kind_are_recorded_under_names_of_their_own() {
    let frames = [recorded("session.json"), recorded("requests.json")].concat();
    for kind in Kind::ALL {
        assert!(frames.iter().any(|frame| frame["kind"] == kind as u16), "{kind:?}");
    }
    let mut names: Vec<_> = frames.iter().map(|frame| frame["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn a_client_in_another_language_builds_the_frames_of_the_recorded_session() {
    let checked =
        std::process::Command::new("python3").arg(path("replay.py")).arg("--check").output();
    let output = checked.expect("python3 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Bytes that replace others of a frame, and where: far enough into it for its numbers and texts to
/// be hit, not only its header.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    let byte = prop_oneof![any::<u8>(), 0u8..20, Just(0xff)];
    prop::collection::vec((any::<prop::sample::Index>(), byte), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn no_change_of_a_recorded_frame_makes_a_decoder_panic(
        frame in any::<prop::sample::Index>(), changes in changes(), cut in 0usize..4
    ) {
        let frames: Vec<_> =
            session::frames().into_iter().chain(requests::frames()).collect();
        let whole = frame.get(&frames).bytes();
        let kind = Frame::first_of(&whole).unwrap().unwrap().kind;
        let mut payload = whole[HEADER_BYTES..].to_vec();
        payload.truncate(payload.len().saturating_sub(cut));
        for (place, byte) in changes {
            if !payload.is_empty() {
                let place = place.index(payload.len());
                payload[place] = byte;
            }
        }
        if let Ok(message) = ClientMessage::from_payload(kind, &payload) {
            prop_assert_eq!(&message.to_frame().unwrap()[HEADER_BYTES..], &payload);
        }
        if let Ok(message) = DaemonMessage::from_payload(kind, &payload) {
            prop_assert_eq!(&message.to_frame().unwrap()[HEADER_BYTES..], &payload);
        }
    }
}
