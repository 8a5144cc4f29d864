//! The SM clock of a GPU while pfo has locked nothing on it. Written alike in the configuration and
//! in the ledger.

use std::fmt;

use pfo_vocabulary::Mhz;
use serde::{Deserialize, Serialize};

/// What a GPU's SM clock is restored to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum BaseClock {
    /// What the driver chooses.
    #[default]
    Reset,
    /// A lock of the administrator.
    Locked {
        /// Its lower end.
        min: Mhz,
        /// Its upper end.
        max: Mhz,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "give \"reset\", or two clocks in MHz such as [210, 1200]")]
enum Written {
    Word(String),
    Range([u32; 2]),
}

impl BaseClock {
    /// Whether it is the driver's choice.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        *self == Self::Reset
    }
}

impl TryFrom<Written> for BaseClock {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Word(word) if word == "reset" => Ok(Self::Reset),
            Written::Word(word) => Err(format!("{word:?} is neither \"reset\" nor [MIN, MAX]")),
            Written::Range([min, max])
                if Mhz(min).is_plausible() && max >= min && max <= Mhz::MAX.0 =>
            {
                Ok(Self::Locked { min: Mhz(min), max: Mhz(max) })
            }
            Written::Range([min, max]) => {
                Err(format!("[{min}, {max}] are not two clocks in MHz, the lower one first"))
            }
        }
    }
}

impl From<BaseClock> for Written {
    fn from(base: BaseClock) -> Self {
        match base {
            BaseClock::Reset => Self::Word("reset".into()),
            BaseClock::Locked { min, max } => Self::Range([min.0, max.0]),
        }
    }
}

impl fmt::Display for BaseClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset => f.write_str("the driver's default"),
            Self::Locked { min, max } => write!(f, "{min} to {max}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_clock_is_read_as_it_is_written() {
        for text in ["\"reset\"", "[210,1200]", "[900,900]"] {
            let base: BaseClock = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&base).unwrap(), text);
        }
    }

    #[test]
    fn what_is_no_range_of_clocks_is_refused_by_its_value() {
        for (text, said) in [
            ("[1200,210]", "[1200, 210] are not two clocks"),
            ("[0,210]", "[0, 210]"),
            ("[210,99999]", "[210, 99999]"),
            ("\"default\"", "\"default\" is neither"),
            ("7", "give \"reset\""),
            ("[1]", "give \"reset\""),
        ] {
            let error = serde_json::from_str::<BaseClock>(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
