//! The only user of `bincode`: payloads to bytes and back.
//!
//! The layout is little-endian with fixed-width integers (see the crate's documentation) and held
//! by golden byte tests, so that any crate that writes the same bytes could take its place.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use bincode::error::DecodeError;
use serde::{Serialize, de::DeserializeOwned};

use crate::frame::LARGEST_PAYLOAD;

const LAYOUT: Configuration<LittleEndian, Fixint, Limit<LARGEST_PAYLOAD>> =
    bincode::config::standard()
        .with_little_endian()
        .with_fixed_int_encoding()
        .with_limit::<LARGEST_PAYLOAD>();

/// Why a payload could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The bytes are not a value of the expected type.
    #[error("{0}")]
    Invalid(String),
    /// The value ends before its frame does.
    #[error(
        "the payload has {extra} bytes after its end; length in the header and content disagree"
    )]
    TrailingBytes {
        /// How many bytes were left over.
        extra: usize,
    },
    /// The value does not fit into its frame.
    #[error("the message does not fit into a frame: {0}")]
    TooLarge(#[from] bincode::error::EncodeError),
}

pub(crate) fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, CodecError> {
    let (value, read) =
        bincode::serde::decode_from_slice(payload, LAYOUT).map_err(|error| match error {
            DecodeError::OtherString(message) => CodecError::Invalid(message),
            other => CodecError::Invalid(format!("the payload is not a valid message: {other}")),
        })?;
    match payload.len().saturating_sub(read) {
        0 => Ok(value),
        extra => Err(CodecError::TrailingBytes { extra }),
    }
}

pub(crate) fn encode_into<T: Serialize>(value: &T, out: &mut [u8]) -> Result<usize, CodecError> {
    Ok(bincode::serde::encode_into_slice(value, out, LAYOUT)?)
}

pub(crate) fn append<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
    bincode::serde::encode_into_std_write(value, out, LAYOUT)?;
    Ok(())
}
