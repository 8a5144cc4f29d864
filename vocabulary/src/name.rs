//! Names that cross the wire, checked when they are read: a message with a bad one is not a message.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty or longer than allowed.
    #[error("a {what} has 1 to {max} bytes, this one has {length}")]
    Length {
        /// Which name.
        what: &'static str,
        /// The longest allowed, in bytes.
        max: usize,
        /// The length found, in bytes.
        length: usize,
    },
    /// A character that would garble a log line, a table or a path.
    #[error(
        "the {what} {text:?} contains {character:?}; only letters, digits and {allowed} are allowed"
    )]
    Character {
        /// Which name.
        what: &'static str,
        /// The text.
        text: String,
        /// The character.
        character: char,
        /// The punctuation that is allowed.
        allowed: &'static str,
    },
}

fn check(
    what: &'static str,
    text: &str,
    max: usize,
    allowed: &'static str,
) -> Result<(), NameError> {
    if text.is_empty() || text.len() > max {
        return Err(NameError::Length { what, max, length: text.len() });
    }
    match text.chars().find(|c| !c.is_ascii_alphanumeric() && !allowed.contains(*c)) {
        Some(character) => {
            Err(NameError::Character { what, text: text.to_owned(), character, allowed })
        }
        None => Ok(()),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal, $allowed:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                check($what, &text, $max, $allowed)?;
                Ok(Self(text))
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                text.to_owned().try_into()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// The name of a job, unique among the jobs of one user on a node.
    JobName, "job name", 128, "._:+,=@%/-"
);
name!(
    /// The name of a partition of a scheduler.
    PartitionName, "partition name", 128, "._:+,=@%/-"
);
name!(
    /// The UUID of a GPU as NVML gives it, such as `GPU-6f2c…`.
    GpuUuid, "GPU UUID", 80, "-"
);
name!(
    /// The PCI bus id of a GPU, such as `00000000:07:00.0`.
    PciBusId, "PCI bus id", 32, ":."
);

/// How a rank names its GPU. Never by an index: `CUDA_VISIBLE_DEVICES` renumbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuName {
    /// By UUID.
    Uuid(GpuUuid),
    /// By PCI bus id.
    PciBusId(PciBusId),
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => uuid.fmt(f),
            Self::PciBusId(id) => id.fmt(f),
        }
    }
}

impl std::str::FromStr for GpuName {
    type Err = NameError;

    /// Text with a colon is a PCI bus id, any other a UUID.
    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.contains(':') {
            text.parse().map(Self::PciBusId)
        } else {
            text.parse().map(Self::Uuid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_control_character_is_refused_and_named() {
        let error = "job\u{1b}[2J".parse::<JobName>().unwrap_err().to_string();
        assert!(error.contains(r"'\u{1b}'"), "{error}");
    }

    #[test]
    fn an_empty_and_an_overlong_name_are_refused_with_their_length() {
        assert_eq!(
            "".parse::<JobName>(),
            Err(NameError::Length { what: "job name", max: 128, length: 0 })
        );
        assert!("x".repeat(129).parse::<JobName>().is_err());
    }

    #[test]
    fn a_gpu_name_with_a_colon_is_a_bus_id() {
        assert!(matches!("00000000:07:00.0".parse(), Ok(GpuName::PciBusId(_))));
        assert!(matches!("GPU-1234".parse(), Ok(GpuName::Uuid(_))));
    }
}
