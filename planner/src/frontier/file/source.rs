//! The decompressed stream of a frontier file. Every error names what could not be read.

use std::io::Read;

use flate2::bufread::GzDecoder;

use crate::error::PlanError;
use crate::frontier::file::error::FrontierFileError;

pub(super) struct Source<'a>(GzDecoder<&'a [u8]>);

impl<'a> Source<'a> {
    pub(super) fn new(stream: &'a [u8]) -> Self {
        Self(GzDecoder::new(stream))
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8], what: &str) -> Result<(), PlanError> {
        self.0.read_exact(bytes).map_err(|error| damaged(&format!("cannot read {what}: {error}")))
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], PlanError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(super) fn text(&mut self, what: &str) -> Result<String, PlanError> {
        let [length] = self.array(what)?;
        let mut bytes = vec![0; usize::from(length)];
        self.fill(&mut bytes, what)?;
        String::from_utf8(bytes).map_err(|_| damaged(&format!("{what} is not text")))
    }

    /// A finite number above 0.
    pub(super) fn quantity(&mut self, what: &str) -> Result<f64, PlanError> {
        let value = f64::from_le_bytes(self.array(what)?);
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(damaged(&format!("{what} is {value}")))
        }
    }

    /// Reads to the end, which verifies the checksum.
    pub(super) fn end(mut self) -> Result<(), PlanError> {
        match self.0.read(&mut [0]) {
            Ok(0) if self.0.into_inner().is_empty() => Ok(()),
            Ok(_) => Err(damaged("there is more after its last plan")),
            Err(error) => Err(damaged(&error.to_string())),
        }
    }
}

pub(super) fn damaged(problem: &str) -> PlanError {
    FrontierFileError::Damaged(problem.to_owned()).into()
}

pub(super) fn foreign(problem: String) -> PlanError {
    FrontierFileError::Foreign(problem).into()
}
