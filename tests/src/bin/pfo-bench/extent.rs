//! How much is measured: all that figures take, or as little as shows that every part still runs.

/// Whether figures count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Long enough for figures that can be repeated.
    #[default]
    Full,
    /// As short as possible. The figures mean little.
    Short,
}

impl Extent {
    /// The one of two values that belongs to this extent.
    pub(crate) fn of<T>(self, full: T, short: T) -> T {
        match self {
            Self::Full => full,
            Self::Short => short,
        }
    }
}
