//! The frames of each direction as one type each, and their way over a blocking stream.

use std::io::{Read, Write};

use serde::Serialize;

use crate::agent::request::{AgentRequest, AgentResponse};
use crate::codec::{self, CodecError};
use crate::event::Event;
use crate::frame::{FrameError, HEADER_BYTES, Header, Kind};
use crate::gpu_list;
use crate::request::{GpuListing, Request, Response};
use crate::session::{Closing, Hello, Refusal, Unsupported, Welcome};
use crate::tap::{Notice, TapBatch};

/// What a client sends.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientMessage {
    /// Asks for a session.
    Hello(Hello),
    /// Fire and forget.
    Event(Event),
    /// Ends the session.
    Goodbye,
    /// Asks which GPUs the node has, to find the one of a CUDA ordinal.
    ListGpus,
    /// Asks `pfod` for a response.
    Request(Request),
    /// Asks the agent for a response.
    AgentRequest(AgentRequest),
}

/// What `pfod` and the agent send.
#[derive(Clone, Debug, PartialEq)]
pub enum DaemonMessage {
    /// The session is open.
    Welcome(Welcome),
    /// There is no session.
    Refusal(Refusal),
    /// The session ends.
    Closing(Closing),
    /// The GPUs of the node in the driver's order, or why they are not listed.
    GpuList(Result<Vec<GpuListing>, Refusal>),
    /// The answer of `pfod` to a request.
    Response(Response),
    /// The answer of the agent to a request.
    AgentResponse(AgentResponse),
    /// Records of a tap.
    Tap(TapBatch),
    /// Something changed.
    Notice(Notice),
    /// The client's version is not spoken here.
    Unsupported(Unsupported),
}

fn payload<T: serde::de::DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, FrameError> {
    codec::decode(bytes).map_err(|source| FrameError::Payload { kind, source })
}

fn frame<T: Serialize>(kind: Kind, value: &T) -> Result<Vec<u8>, FrameError> {
    frame_with(kind, |bytes| codec::append(value, bytes))
}

fn frame_with(
    kind: Kind,
    append: impl FnOnce(&mut Vec<u8>) -> Result<(), CodecError>,
) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; HEADER_BYTES];
    append(&mut bytes).map_err(|source| FrameError::Payload { kind, source })?;
    let length = bytes.len().saturating_sub(HEADER_BYTES);
    if length > kind.max_payload() {
        return Err(FrameError::Oversized { kind, length });
    }
    bytes[..HEADER_BYTES].copy_from_slice(&Header { kind, length }.to_bytes());
    Ok(bytes)
}

impl ClientMessage {
    /// Reads a message from the payload of a frame.
    ///
    /// # Errors
    /// If the kind is one that only the daemon sends, or the payload is not what the kind promises.
    pub fn from_payload(kind: Kind, bytes: &[u8]) -> Result<Self, FrameError> {
        match kind {
            Kind::Hello => payload(kind, bytes).map(Self::Hello),
            Kind::Event => Event::from_payload(bytes).map(Self::Event),
            Kind::Goodbye => payload(kind, bytes).map(|()| Self::Goodbye),
            Kind::ListGpus => gpu_list::check_request(bytes).map(|()| Self::ListGpus),
            Kind::Request => payload(kind, bytes).map(Self::Request),
            Kind::AgentRequest => payload(kind, bytes).map(Self::AgentRequest),
            other => Err(FrameError::Unexpected(other)),
        }
    }

    /// The message as a whole frame.
    ///
    /// # Errors
    /// If it is larger than a frame of its kind may be.
    pub fn to_frame(&self) -> Result<Vec<u8>, FrameError> {
        match self {
            Self::Hello(hello) => frame(Kind::Hello, hello),
            Self::Event(event) => frame(Kind::Event, event),
            Self::Goodbye => frame(Kind::Goodbye, &()),
            Self::ListGpus => frame(Kind::ListGpus, &gpu_list::REQUEST),
            Self::Request(request) => frame(Kind::Request, request),
            Self::AgentRequest(request) => frame(Kind::AgentRequest, request),
        }
    }

    /// Sends the message over a blocking stream.
    ///
    /// # Errors
    /// If the message is too large or the stream fails.
    pub fn write_to(&self, stream: &mut impl Write) -> Result<(), FrameError> {
        Ok(stream.write_all(&self.to_frame()?)?)
    }
}

impl DaemonMessage {
    /// Reads a message from the payload of a frame.
    ///
    /// # Errors
    /// If the kind is one that only clients send, or the payload is not what the kind promises.
    pub fn from_payload(kind: Kind, bytes: &[u8]) -> Result<Self, FrameError> {
        match kind {
            Kind::Welcome => payload(kind, bytes).map(Self::Welcome),
            Kind::Refusal => payload(kind, bytes).map(Self::Refusal),
            Kind::Closing => payload(kind, bytes).map(Self::Closing),
            Kind::GpuList => gpu_list::decode(bytes).map(Self::GpuList),
            Kind::Response => payload(kind, bytes).map(Self::Response),
            Kind::AgentResponse => payload(kind, bytes).map(Self::AgentResponse),
            Kind::Tap => payload(kind, bytes).map(Self::Tap),
            Kind::Notice => payload(kind, bytes).map(Self::Notice),
            Kind::Unsupported => payload(kind, bytes).map(Self::Unsupported),
            other => Err(FrameError::Unexpected(other)),
        }
    }

    /// The message as a whole frame.
    ///
    /// # Errors
    /// If it is larger than a frame of its kind may be.
    pub fn to_frame(&self) -> Result<Vec<u8>, FrameError> {
        match self {
            Self::Welcome(welcome) => frame(Kind::Welcome, welcome),
            Self::Refusal(refusal) => frame(Kind::Refusal, refusal),
            Self::Closing(closing) => frame(Kind::Closing, closing),
            Self::GpuList(answer) => {
                frame_with(Kind::GpuList, |bytes| gpu_list::append(answer, bytes))
            }
            Self::Response(response) => frame(Kind::Response, response),
            Self::AgentResponse(response) => frame(Kind::AgentResponse, response),
            Self::Tap(batch) => frame(Kind::Tap, batch),
            Self::Notice(notice) => frame(Kind::Notice, notice),
            Self::Unsupported(unsupported) => frame(Kind::Unsupported, unsupported),
        }
    }

    /// Reads the next message from a blocking stream.
    ///
    /// # Errors
    /// If the stream fails or ends, or its bytes are not a frame that a daemon sends.
    pub fn read_from(stream: &mut impl Read) -> Result<Self, FrameError> {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).map_err(FrameError::reading)?;
        let header = Header::parse(header)?;
        let mut bytes = vec![0; header.length];
        stream.read_exact(&mut bytes).map_err(FrameError::reading)?;
        Self::from_payload(header.kind, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_of_the_shortest_frames_are_the_documented_ones() {
        assert_eq!(ClientMessage::Goodbye.to_frame().unwrap(), [0, 0, 0, 0, 1, 0, 3, 0]);
        let unsupported = Unsupported { oldest: 1, newest: 2 };
        assert_eq!(
            DaemonMessage::Unsupported(unsupported).to_frame().unwrap(),
            [4, 0, 0, 0, 1, 0, 133, 0, 1, 0, 2, 0]
        );
        assert_eq!(
            DaemonMessage::Notice(Notice::JobsChanged).to_frame().unwrap(),
            [4, 0, 0, 0, 1, 0, 136, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn bytes_after_the_end_of_a_message_are_an_error() {
        let bytes = ClientMessage::Request(Request::Status).to_frame().unwrap();
        let longer = [&bytes[HEADER_BYTES..], &[0]].concat();
        let error = ClientMessage::from_payload(Kind::Request, &longer).unwrap_err().to_string();
        assert!(error.contains("1 bytes after its end"), "{error}");
        let error = ClientMessage::from_payload(Kind::Goodbye, &[0]).unwrap_err().to_string();
        assert!(error.contains("1 bytes after its end"), "{error}");
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_is_distinguished_from_one_that_failed() {
        let bytes = DaemonMessage::Unsupported(Unsupported { oldest: 1, newest: 1 });
        let bytes = bytes.to_frame().unwrap();
        for length in 0..bytes.len() {
            let error = DaemonMessage::read_from(&mut &bytes[..length]).unwrap_err();
            assert!(matches!(error, FrameError::Truncated), "{error}");
        }
        assert!(DaemonMessage::read_from(&mut &bytes[..]).is_ok());
    }

    #[test]
    fn each_kind_is_read_by_exactly_one_side() {
        for kind in Kind::ALL {
            let refused_by_daemon =
                matches!(ClientMessage::from_payload(kind, &[]), Err(FrameError::Unexpected(_)));
            let refused_by_client =
                matches!(DaemonMessage::from_payload(kind, &[]), Err(FrameError::Unexpected(_)));
            assert_ne!(refused_by_daemon, refused_by_client, "{kind:?}");
            assert_eq!(refused_by_daemon, kind as u16 > 128, "{kind:?}");
        }
    }

    #[test]
    fn a_length_that_the_payload_does_not_have_is_refused_before_memory_is_taken() {
        let vec_of_2_to_the_60 = [&[0, 0, 0, 0][..], &(1u64 << 60).to_le_bytes()].concat();
        let error = DaemonMessage::from_payload(Kind::GpuList, &vec_of_2_to_the_60).unwrap_err();
        assert!(matches!(error, FrameError::Payload { .. }), "{error}");
    }

    /// Payloads that get far: a variant's number, then mostly small numbers.
    fn payload_like() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![6 => 0u8..4, 1 => any::<u8>(), 1 => Just(b'a')];
        let rest = prop::collection::vec(byte, 0..256);
        let any_bytes = prop::collection::vec(any::<u8>(), 0..256);
        prop_oneof![
            (0u32..24, rest)
                .prop_map(|(variant, rest)| [&variant.to_le_bytes()[..], &rest].concat()),
            any_bytes,
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn no_payload_makes_a_decoder_panic_and_what_it_reads_is_written_the_same(
            kind in prop::sample::select(&Kind::ALL[..]), bytes in payload_like()
        ) {
            if let Ok(message) = ClientMessage::from_payload(kind, &bytes) {
                prop_assert_eq!(&message.to_frame().unwrap()[HEADER_BYTES..], &bytes);
            }
            if let Ok(message) = DaemonMessage::from_payload(kind, &bytes) {
                prop_assert_eq!(&message.to_frame().unwrap()[HEADER_BYTES..], &bytes);
            }
        }

        #[test]
        fn no_stream_makes_its_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = DaemonMessage::read_from(&mut &bytes[..]);
        }
    }
}
