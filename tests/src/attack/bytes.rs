//! Frames that nobody should send.

use std::fs::File;
use std::io::{self, Read, Write};
use std::thread::sleep;
use std::time::Duration;

use pfo_protocol::{ClientMessage, LARGEST_PAYLOAD, Request};
use serde_json::Value;

use super::{Target, frame};
use crate::client::{hello, send_with};

/// One frame of every kind and variant.
const RECORDED: [&str; 2] = [
    include_str!("../../../protocol/frames/session.json"),
    include_str!("../../../protocol/frames/requests.json"),
];

/// The most descriptors that the kernel passes with one message (`SCM_MAX_FD`).
const MOST_PASSED: usize = 253;

fn recorded() -> Vec<Vec<u8>> {
    let bytes = |frame: &Value| {
        let text = frame["bytes"].as_str().unwrap();
        let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(byte).collect()
    };
    let frames = RECORDED.iter().flat_map(|file| {
        let kit: Value = serde_json::from_str(file).unwrap();
        kit["frames"].as_array().unwrap().iter().map(bytes).collect::<Vec<_>>()
    });
    frames.collect()
}

/// Some bytes other, mostly in numbers; seldom a byte more or less.
fn spoilt(mut frame: Vec<u8>) -> Vec<u8> {
    const ODD: [u8; 5] = [0, 1, 0x7f, 0x80, 0xff];
    for _ in 0..fastrand::usize(0..4) {
        let at = fastrand::usize(..frame.len());
        match fastrand::u8(..8) {
            0 => frame.truncate(at.max(1)),
            1 => frame.insert(at, fastrand::u8(..)),
            2 | 3 => frame[at] = fastrand::u8(..),
            _ => {
                let end = frame.len().min(at + fastrand::usize(1..9));
                frame[at..end].fill(fastrand::choice(ODD).unwrap_or(0));
            }
        }
    }
    frame
}

pub(super) fn spoil(target: &Target) -> io::Result<()> {
    let agent = target.agent.as_ref().map(std::os::unix::net::UnixStream::connect);
    for bytes in recorded() {
        let mut stream = match fastrand::u8(..4) {
            0 => target.begin(hello("spoilt", 0, 1, target.gpu()?))?,
            _ => target.connect()?,
        };
        for _ in 0..4 {
            stream.write_all(&spoilt(bytes.clone()))?;
        }
        if let Some(Ok(mut agent)) = agent.as_ref().map(|agent| agent.as_ref()) {
            let _ = agent.write_all(&spoilt(bytes));
        }
        stream.set_read_timeout(Some(Duration::from_millis(50)))?;
        let _ = stream.read(&mut [0; 4096]);
    }
    Ok(())
}

pub(super) fn halves(target: &Target) -> io::Result<()> {
    let part = vec![0; 64 * 1024];
    let mut open = Vec::new();
    for length in [LARGEST_PAYLOAD, LARGEST_PAYLOAD / 2, 65_537, u32::MAX as usize] {
        let mut stream = target.connect()?;
        stream.write_all(&(length as u32).to_le_bytes())?;
        stream.write_all(&[1, 0, 6, 0])?;
        for _ in 0..fastrand::usize(0..LARGEST_PAYLOAD / part.len()) {
            if stream.write_all(&part).is_err() {
                break;
            }
        }
        open.push(stream);
    }
    sleep(Duration::from_secs(1));
    Ok(())
}

pub(super) fn pass(target: &Target) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let files: Vec<_> = (0..MOST_PASSED).map(|_| null.try_clone()).collect::<Result<_, _>>()?;
    let stream = target.connect()?;
    let requests = [ClientMessage::ListGpus, ClientMessage::Request(Request::Status)];
    for _ in 0..20 {
        for request in &requests {
            let bytes = frame(request)?;
            let middle = bytes.len() / 2;
            send_with(&stream, &bytes[..middle], &files)?;
            send_with(&stream, &bytes[middle..], &files)?;
        }
    }
    super::answer(&stream).map(drop)
}
