//! The answers that a tune got, in their order: on disk, so that another agent can run the tune again up to
//! where this one ended.
//!
//! Each entry is a digest of the request, the time at which the answer came, and the answer as its frame.
//! Refusals are answers, too. What comes after a torn entry is left out: it was never used.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use pfo_protocol::{ClientMessage, DaemonMessage, Frame};

/// The agent keeps no more bytes of one tune: what is measured afterwards is measured again after a
/// restart.
const LONGEST: u64 = 16 << 20;

/// The length of a digest and of a time.
const HEAD_BYTES: usize = 16;

/// One answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    /// What the request was.
    pub(super) digest: u64,
    /// When it came, since the tune began.
    pub(super) at: Duration,
    pub(super) message: DaemonMessage,
}

/// The answers of a tune: those of an earlier agent, and a file for new ones.
#[derive(Debug, Default)]
pub(super) struct Answers {
    before: VecDeque<Answer>,
    file: Option<File>,
    written: u64,
}

impl Answers {
    /// Those before, and the file that they came from: `kept` bytes of it.
    pub(super) fn new(before: Vec<Answer>, file: File, kept: u64) -> Self {
        Self { before: before.into(), file: Some(file), written: kept }
    }

    /// Whether there are answers that were not asked for yet.
    pub(super) fn are_left(&self) -> bool {
        !self.before.is_empty()
    }

    /// The answer that this request got before. A request that was not the next one ends what is known.
    pub(super) fn next(&mut self, digest: u64) -> Option<Answer> {
        let answer = self.before.pop_front()?;
        if answer.digest == digest {
            return Some(answer);
        }
        tracing::warn!("an answer in a tune's file is of another request; it is asked again");
        self.before.clear();
        // What is appended would follow answers that nobody asks for: the file is of no use any more.
        self.file = None;
        None
    }

    /// Keeps an answer. What cannot be written is asked again after a restart.
    pub(super) fn keep(&mut self, answer: &Answer) {
        let Some(file) = &mut self.file else { return };
        let written = entry(answer).filter(|entry| {
            self.written = self.written.saturating_add(entry.len() as u64);
            self.written <= LONGEST
        });
        let kept = written.is_some_and(|entry| file.write_all(&entry).is_ok());
        if !kept {
            tracing::warn!("a restart will measure a part of a tune again: cannot write its file");
            self.file = None;
        }
    }
}

fn entry(answer: &Answer) -> Option<Vec<u8>> {
    let at_ns = u64::try_from(answer.at.as_nanos()).ok()?;
    let frame = answer.message.to_frame().ok()?;
    Some([&answer.digest.to_le_bytes()[..], &at_ns.to_le_bytes(), &frame].concat())
}

/// What tells one request from another: FNV-1a of its frame, which no version of a compiler changes.
pub(super) fn digest(request: &ClientMessage) -> u64 {
    let bytes = request.to_frame().unwrap_or_default();
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The whole entries at the beginning of these bytes, and how many bytes they are.
pub(super) fn parse(bytes: &[u8]) -> (Vec<Answer>, usize) {
    let (mut answers, mut read) = (Vec::new(), 0_usize);
    while let Some((answer, length)) = bytes.get(read..).and_then(first_of) {
        answers.push(answer);
        read = read.saturating_add(length);
    }
    (answers, read)
}

fn first_of(bytes: &[u8]) -> Option<(Answer, usize)> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    let (digest, at_ns) = (number(head.get(..8)?)?, number(head.get(8..)?)?);
    let frame = Frame::first_of(rest).ok()??;
    let message = DaemonMessage::from_payload(frame.kind, frame.payload).ok()?;
    let length = HEAD_BYTES.saturating_add(frame.total_bytes());
    Some((Answer { digest, at: Duration::from_nanos(at_ns), message }, length))
}

/// Opens a file to append to, after this many of its bytes.
pub(super) fn open(path: &Path, after: u64) -> std::io::Result<File> {
    let file = OpenOptions::new().append(true).open(path)?;
    file.set_len(after)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{AgentRequest, AgentResponse, Refusal, RefusalCode};

    use super::*;

    fn answer(digest: u64) -> Answer {
        let refusal = Refusal::new(RefusalCode::LimitReached, format!("answer {digest}"), "");
        let message = DaemonMessage::AgentResponse(AgentResponse::Refused(refusal));
        Answer { digest, at: Duration::from_millis(digest), message }
    }

    #[test]
    fn answers_are_read_as_they_were_written_up_to_one_that_is_torn() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tune");
        std::fs::write(&path, b"head").unwrap();
        let mut answers = Answers::new(Vec::new(), open(&path, 4).unwrap(), 4);
        [1, 2, 3].map(answer).iter().for_each(|one| answers.keep(one));
        let bytes = std::fs::read(&path).unwrap();
        let (read, length) = parse(&bytes[4..]);
        assert_eq!((read, length), ([1, 2, 3].map(answer).to_vec(), bytes.len() - 4));
        let (torn, length) = parse(&bytes[4..bytes.len() - 1]);
        assert_eq!(torn, [1, 2].map(answer));
        assert!(length < bytes.len() - 5);
    }

    #[test]
    fn a_request_that_is_not_the_next_one_ends_what_is_known() {
        let mut answers = Answers { before: [1, 2, 3].map(answer).into(), ..Answers::default() };
        assert_eq!(answers.next(1), Some(answer(1)));
        assert_eq!(answers.next(3), None);
        assert!(!answers.are_left());
    }

    #[test]
    fn requests_have_digests_of_their_own() {
        let digests = [AgentRequest::Status, AgentRequest::Sweeps, AgentRequest::Profiles]
            .map(|request| digest(&ClientMessage::AgentRequest(request)));
        assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2]);
        // It is on disk.
        assert_eq!(digests[0], digest(&ClientMessage::AgentRequest(AgentRequest::Status)));
    }
}
