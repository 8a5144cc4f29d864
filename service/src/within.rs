//! A number of the configuration, in the range that it must be in: whatever is out of it is refused
//! where it stands, with its line and column.

use serde::Deserialize;

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "i64")]
pub struct Within<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Within<MIN, MAX> {
    /// A number that the source code vouches for: one that is out of range does not compile.
    #[must_use]
    pub const fn of<const N: u32>() -> Self {
        const { assert!(MIN <= N && N <= MAX) };
        Self(N)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl<const MIN: u32, const MAX: u32> TryFrom<i64> for Within<MIN, MAX> {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        let within = u32::try_from(number).ok().filter(|n| (MIN..=MAX).contains(n));
        within.map(Self).ok_or_else(|| format!("{number} is not between {MIN} and {MAX}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_inside_and_what_is_beyond_is_named() {
        let parse = |number| Within::<2, 9>::try_from(number).map(Within::get);
        assert_eq!((parse(2), parse(9)), (Ok(2), Ok(9)));
        for number in [1, 10, -3, i64::MAX] {
            assert_eq!(parse(number), Err(format!("{number} is not between 2 and 9")));
        }
    }
}
