//! The list of GPUs as every libpfo since release 0.1 asks for it, to find the GPU of a CUDA
//! ordinal.
//!
//! The frames are the request for GPUs of release 0.1 and its answer; they are served as long as
//! version 1 of the protocol is.

use serde::Serialize;

use crate::codec::{self, CodecError};
use crate::frame::{FrameError, Kind};
use crate::request::GpuListing;
use crate::session::Refusal;

/// The payload of the request: the first variant of release 0.1's requests.
pub(crate) const REQUEST: u32 = 0;

/// The variants of release 0.1's responses that answer it.
const GPUS: u32 = 0;
const REFUSED: u32 = 5;

pub(crate) fn check_request(payload: &[u8]) -> Result<(), FrameError> {
    match payload == REQUEST.to_le_bytes() {
        true => Ok(()),
        false => Err(FrameError::Retired(Kind::ListGpus as u16)),
    }
}

pub(crate) fn decode(payload: &[u8]) -> Result<Result<Vec<GpuListing>, Refusal>, FrameError> {
    let variant = payload.first_chunk().map(|number| u32::from_le_bytes(*number));
    let decoded = match variant {
        Some(GPUS) => codec::decode::<(u32, _)>(payload).map(|(_, gpus)| Ok(gpus)),
        Some(REFUSED) => codec::decode::<(u32, _)>(payload).map(|(_, refusal)| Err(refusal)),
        _ => return Err(FrameError::Retired(Kind::GpuList as u16)),
    };
    decoded.map_err(|source| FrameError::Payload { kind: Kind::GpuList, source })
}

pub(crate) fn append(
    answer: &Result<Vec<GpuListing>, Refusal>,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    fn put(variant: u32, value: &impl Serialize, out: &mut Vec<u8>) -> Result<(), CodecError> {
        codec::append(&(variant, value), out)
    }
    match answer {
        Ok(gpus) => put(GPUS, gpus, out),
        Err(refusal) => put(REFUSED, refusal, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ClientMessage, DaemonMessage};
    use crate::session::RefusalCode;

    #[test]
    fn the_bytes_of_the_request_and_its_answers_are_those_of_release_0_1() {
        assert_eq!(
            ClientMessage::ListGpus.to_frame().unwrap(),
            [4, 0, 0, 0, 1, 0, 4, 0, 0, 0, 0, 0]
        );
        let gpu = GpuListing {
            uuid: "GPU-a".parse().unwrap(),
            pci_bus_id: "0:1".parse().unwrap(),
            model: "m".into(),
        };
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::GpuList(Ok(vec![gpu])).to_frame().unwrap(), [
            45, 0, 0, 0,  1, 0,  132, 0,
            0, 0, 0, 0,                                     // GPUs
            1, 0, 0, 0, 0, 0, 0, 0,                         // one
            5, 0, 0, 0, 0, 0, 0, 0, b'G', b'P', b'U', b'-', b'a',
            3, 0, 0, 0, 0, 0, 0, 0, b'0', b':', b'1',
            1, 0, 0, 0, 0, 0, 0, 0, b'm',
        ]);
        let refusal = Refusal::new(RefusalCode::DriverUnavailable, "m", "");
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::GpuList(Err(refusal)).to_frame().unwrap(), [
            25, 0, 0, 0,  1, 0,  132, 0,
            5, 0, 0, 0,                                     // refused
            6, 0, 0, 0,                                     // driver unavailable
            1, 0, 0, 0, 0, 0, 0, 0, b'm',
            0, 0, 0, 0, 0, 0, 0, 0,
        ]);
    }

    #[test]
    fn every_other_request_and_answer_of_release_0_1_is_refused_as_such() {
        let status = ClientMessage::from_payload(Kind::ListGpus, &[1, 0, 0, 0]);
        assert!(matches!(status, Err(FrameError::Retired(4))), "{status:?}");
        for payload in [&[1, 0, 0, 0][..], &[], &[6, 0, 0, 0, 9]] {
            let answer = DaemonMessage::from_payload(Kind::GpuList, payload);
            assert!(matches!(answer, Err(FrameError::Retired(132))), "{answer:?}");
        }
    }

    #[test]
    fn the_gpus_of_a_large_node_fit_into_the_answer() {
        let gpu = GpuListing {
            uuid: "x".repeat(80).parse().unwrap(),
            pci_bus_id: "0".repeat(32).parse().unwrap(),
            model: "m".repeat(96),
        };
        assert!(DaemonMessage::GpuList(Ok(vec![gpu; 256])).to_frame().is_ok());
    }
}
