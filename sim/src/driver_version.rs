//! Which driver the machine has: what tools ask for, and how it numbers its fields.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use crate::error::SimError;

/// The three numbers of a driver's version.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct DriverVersion(u32, u32, u32);

impl DriverVersion {
    /// The first one that numbers some of its fields anew, as `nvml.h` of CUDA 13.0 Update 1 does.
    const RENUMBERED: Self = Self(580, 82, 0);

    pub(crate) fn renumbers_fields(self) -> bool {
        self >= Self::RENUMBERED
    }

    /// The CUDA that came with it, as `nvmlSystemGetCudaDriverVersion` tells it.
    pub(crate) fn cuda(self) -> i32 {
        if self.0 >= 580 { 13_000 } else { 12_080 }
    }

    pub(crate) fn to_word(self) -> u32 {
        self.0 * 1_000_000 + self.1 * 1_000 + self.2
    }

    pub(crate) fn from_word(word: u32) -> Self {
        Self(word / 1_000_000, word / 1_000 % 1_000, word % 1_000)
    }
}

/// A version that data centres run.
impl Default for DriverVersion {
    fn default() -> Self {
        Self(580, 95, 5)
    }
}

impl Display for DriverVersion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}.{:02}", self.0, self.1, self.2)
    }
}

impl FromStr for DriverVersion {
    type Err = SimError;

    fn from_str(text: &str) -> Result<Self, SimError> {
        let unusable = || SimError::DriverVersion { version: text.to_owned() };
        let numbers: Result<Vec<u32>, _> = text.split('.').map(str::parse).collect();
        match *numbers.map_err(|_| unusable())?.as_slice() {
            [branch @ 1..=3999, minor @ ..=999, patch @ ..=999] => Ok(Self(branch, minor, patch)),
            [branch @ 1..=3999, minor @ ..=999] => Ok(Self(branch, minor, 0)),
            _ => Err(unusable()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_as_the_driver_writes_it() {
        for text in ["570.86.15", "580.95.05", "580.126.09"] {
            let version: DriverVersion = text.parse().unwrap();
            assert_eq!(DriverVersion::from_word(version.to_word()), version);
            assert_eq!(version.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for text in ["", "580", "580.x.1", "580.95.05.1", "0.1.2", "580.1000.1", "4000.1.1"] {
            let error = text.parse::<DriverVersion>().unwrap_err().to_string();
            assert!(error.contains("580.95.05"), "{error}");
        }
    }

    #[test]
    fn fields_have_other_numbers_since_580_82() {
        let renumbers = |text: &str| text.parse::<DriverVersion>().unwrap().renumbers_fields();
        assert_eq!(
            ["570.86.15", "580.65.06", "580.82.07", "590.01.01"].map(renumbers),
            [false, false, true, true]
        );
    }
}
