//! The eight-byte header that every frame starts with, and the bound on what may follow it.
//!
//! This layout never changes, so that an old and a new side can report to each other that they speak
//! different versions.

use crate::codec::CodecError;

/// The version of everything behind the header.
pub const VERSION: u16 = 1;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 8;

/// The largest payload of any frame, in bytes: a plan of a very large step.
pub const LARGEST_PAYLOAD: usize = 8 * 1024 * 1024;

/// What a frame carries. The numbers are on the wire and never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum Kind {
    /// [`Hello`](crate::Hello), a rank asks for a session.
    Hello = 1,
    /// [`Event`](crate::Event), fire and forget.
    Event = 2,
    /// No payload: the rank ends its session in order.
    Goodbye = 3,
    /// Asks which GPUs the node has, answered by one `GpuList`: four bytes 0, all that is left of
    /// the requests of release 0.1, because its libpfo sends them to find the GPU of a CUDA
    /// ordinal.
    ListGpus = 4,
    /// [`AgentRequest`](crate::AgentRequest), answered by one `AgentResponse`. Only the agent takes
    /// it.
    AgentRequest = 5,
    /// [`Request`](crate::Request), answered by one `Response`.
    Request = 6,
    /// [`Welcome`](crate::Welcome), the session holds its lease.
    Welcome = 129,
    /// [`Refusal`](crate::Refusal), there is no session; the connection ends.
    Refusal = 130,
    /// [`Closing`](crate::Closing), the daemon ends a session.
    Closing = 131,
    /// [`GpuListing`](crate::GpuListing)s or a refusal, the answer to `ListGpus`.
    GpuList = 132,
    /// [`Unsupported`](crate::Unsupported), of every version of this protocol.
    Unsupported = 133,
    /// [`AgentResponse`](crate::AgentResponse) to a request.
    AgentResponse = 134,
    /// [`TapBatch`](crate::TapBatch), to a connection that asked for a tap.
    Tap = 135,
    /// [`Notice`](crate::Notice), to a connection that asked for notices.
    Notice = 136,
    /// [`Response`](crate::Response) to a request.
    Response = 137,
}

impl Kind {
    /// Every kind, by number.
    pub const ALL: [Self; 15] = [
        Self::Hello,
        Self::Event,
        Self::Goodbye,
        Self::ListGpus,
        Self::AgentRequest,
        Self::Request,
        Self::Welcome,
        Self::Refusal,
        Self::Closing,
        Self::GpuList,
        Self::Unsupported,
        Self::AgentResponse,
        Self::Tap,
        Self::Notice,
        Self::Response,
    ];

    #[inline]
    fn from_wire(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }

    /// The largest payload that a frame of this kind may have, in bytes.
    #[must_use]
    pub const fn max_payload(self) -> usize {
        match self {
            Self::Event => 40,
            Self::Goodbye => 0,
            Self::Hello | Self::Welcome | Self::Refusal | Self::Closing => 4096,
            Self::Request | Self::Response | Self::AgentRequest | Self::AgentResponse => {
                LARGEST_PAYLOAD
            }
            Self::Tap => 256 * 1024,
            Self::GpuList => 64 * 1024,
            Self::ListGpus | Self::Unsupported | Self::Notice => 4,
        }
    }
}

/// Why bytes are not a frame of this protocol. After any of these the stream cannot be trusted to
/// be in step any more, so the connection ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The other side speaks another version.
    #[error(
        "the peer speaks version {0} of the protocol, this side version {VERSION}; \
             install the same release of pfod, pfoctl and libpfo"
    )]
    Version(u16),
    /// A request or an answer of release 0.1 other than for GPUs.
    #[error(
        "frames of kind {0} carry requests and answers of release 0.1, of which only the list of GPUs \
         is still served; install the same release of pfod and pfoctl"
    )]
    Retired(u16),
    /// No frame of this version has that kind.
    #[error("no frame has kind {0}")]
    Kind(u16),
    /// A frame that this side does not expect here.
    #[error("a {0:?} frame is not expected here")]
    Unexpected(Kind),
    /// The header announces more than a frame of its kind may carry.
    #[error("a {kind:?} frame of {length} bytes is larger than the {} allowed", .kind.max_payload())]
    Oversized {
        /// The kind announced.
        kind: Kind,
        /// The payload length announced.
        length: usize,
    },
    /// The stream ended inside a frame.
    #[error("the connection ended inside a frame")]
    Truncated,
    /// The payload is not what its kind promises.
    #[error("{kind:?} frame: {source}")]
    Payload {
        /// The kind of the frame.
        kind: Kind,
        /// What is wrong with the payload.
        source: CodecError,
    },
    /// Reading or writing failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl FrameError {
    /// The meaning of an I/O error while a whole frame was awaited.
    #[must_use]
    pub fn reading(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Io(error),
        }
    }
}

/// A frame's header, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the payload is.
    pub kind: Kind,
    /// How many bytes of payload follow.
    pub length: usize,
}

impl Header {
    /// Reads a header and checks it before a byte of the payload is read.
    ///
    /// # Errors
    /// Another version (except for `Unsupported`, which every version reads), an unknown kind, or
    /// a payload larger than its kind may have.
    #[inline]
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let [l0, l1, l2, l3, v0, v1, k0, k1] = bytes;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let version = u16::from_le_bytes([v0, v1]);
        let number = u16::from_le_bytes([k0, k1]);
        if version != VERSION && number != Kind::Unsupported as u16 {
            return Err(FrameError::Version(version));
        }
        let kind = Kind::from_wire(number).ok_or(FrameError::Kind(number))?;
        match kind {
            _ if length <= kind.max_payload() => Ok(Self { kind, length }),
            Kind::ListGpus => Err(FrameError::Retired(number)),
            _ => Err(FrameError::Oversized { kind, length }),
        }
    }

    /// The header as it crosses the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        // Every payload is at most `LARGEST_PAYLOAD`, far below `u32::MAX`.
        bytes[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes
    }
}

/// A whole frame within a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What the payload is.
    pub kind: Kind,
    /// The bytes behind the header.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The first frame of `bytes`, or `None` if it is not there as a whole yet.
    ///
    /// # Errors
    /// As [`Header::parse`].
    #[inline]
    pub fn first_of(bytes: &'a [u8]) -> Result<Option<Self>, FrameError> {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let Header { kind, length } = Header::parse(*header)?;
        let payload = bytes.get(HEADER_BYTES..HEADER_BYTES.saturating_add(length));
        Ok(payload.map(|payload| Self { kind, payload }))
    }

    /// Bytes of the frame, header included.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        HEADER_BYTES.saturating_add(self.payload.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_header_survives_the_wire() {
        let header = Header { kind: Kind::Event, length: 32 };
        assert_eq!(header.to_bytes(), [32, 0, 0, 0, 1, 0, 2, 0]);
        assert_eq!(Header::parse(header.to_bytes()).unwrap(), header);
    }

    #[test]
    fn an_oversized_frame_is_refused_from_its_header_alone() {
        let error = Header::parse([0xff, 0xff, 0xff, 0x7f, 1, 0, 2, 0]).unwrap_err().to_string();
        assert!(error.contains("2147483647 bytes is larger than the 40 allowed"), "{error}");
    }

    #[test]
    fn another_version_is_named_and_unsupported_is_read_from_any() {
        let error = Header::parse([0, 0, 0, 0, 9, 0, 1, 0]).unwrap_err().to_string();
        assert!(error.contains("version 9"), "{error}");
        assert_eq!(Header::parse([4, 0, 0, 0, 9, 0, 133, 0]).unwrap().kind, Kind::Unsupported);
    }

    #[test]
    fn an_unknown_kind_is_named() {
        assert!(matches!(Header::parse([0, 0, 0, 0, 1, 0, 77, 0]), Err(FrameError::Kind(77))));
    }

    #[test]
    fn every_kind_takes_exactly_its_largest_payload() {
        for kind in Kind::ALL {
            let header = Header { kind, length: kind.max_payload() };
            assert_eq!(Header::parse(header.to_bytes()).unwrap(), header);
            let larger = Header { kind, length: kind.max_payload() + 1 };
            assert!(Header::parse(larger.to_bytes()).is_err(), "{kind:?}");
        }
    }

    #[test]
    fn a_large_request_of_release_0_1_is_refused_as_such() {
        let error = Header::parse([0, 0, 1, 0, 1, 0, 4, 0]).unwrap_err();
        assert!(matches!(error, FrameError::Retired(4)), "{error}");
        assert!(error.to_string().contains("install the same release of pfod and pfoctl"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_search_for_a_frame_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..64)
        ) {
            if let Ok(Some(frame)) = Frame::first_of(&bytes) {
                prop_assert!(frame.total_bytes() <= bytes.len());
            }
        }

        #[test]
        fn a_header_that_is_read_is_written_the_same(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = Header::parse(bytes) {
                // `Unsupported` is read from every version and written with this one's.
                let (read, written) = (bytes, header.to_bytes());
                prop_assert_eq!(read[..4].to_vec(), written[..4].to_vec());
                prop_assert_eq!(read[6..].to_vec(), written[6..].to_vec());
            }
        }
    }

    #[test]
    fn a_frame_is_split_off_only_when_it_is_whole() {
        let mut bytes = Header { kind: Kind::Event, length: 3 }.to_bytes().to_vec();
        for length in 0..8 {
            assert!(Frame::first_of(&bytes[..length]).unwrap().is_none());
        }
        bytes.extend([7, 8]);
        assert!(Frame::first_of(&bytes).unwrap().is_none());
        bytes.extend([9, 10]);
        let frame = Frame::first_of(&bytes).unwrap().unwrap();
        assert_eq!((frame.payload, frame.total_bytes()), (&[7, 8, 9][..], 11));
    }
}
