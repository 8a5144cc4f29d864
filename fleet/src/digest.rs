use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The SHA-256 of a plan's slice for one stage, which is its name in the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest(pub [u8; 32]);

/// A text that is no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no SHA-256: 64 hexadecimal digits are")]
pub struct NotADigest(String);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let wrong = || NotADigest(text.chars().take(80).collect());
        let digit = |letter: u8| char::from(letter).to_digit(16).map(|digit| digit as u8);
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let [high, low] =
                [pair.first(), pair.last()].map(|letter| letter.copied().and_then(digit));
            *byte = (high.ok_or_else(wrong)? << 4) | low.ok_or_else(wrong)?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = NotADigest;

    fn try_from(text: String) -> Result<Self, NotADigest> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written_and_nothing_else_is_one() {
        let digest = Digest(std::array::from_fn(|index| (index * 9) as u8));
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for wrong in ["", "00", &"g0".repeat(32), &"0".repeat(63), &"é".repeat(32)] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
