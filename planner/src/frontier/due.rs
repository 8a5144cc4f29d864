//! When a step has to be done, and what follows if it is done earlier.

/// The time that a plan may take, in seconds, and what comes after a step that takes less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Due {
    /// The next step: a plan takes at most this long, and never more energy than a faster one.
    AtMost(f64),
    /// A wait until this time, for a straggler. Every GPU draws the P2P-blocking power meanwhile,
    /// so a slower plan may be worth it even if it takes more energy than a faster one by itself.
    Waiting(f64),
}

impl Due {
    /// The time in seconds.
    pub fn seconds(self) -> f64 {
        match self {
            Self::AtMost(seconds) | Self::Waiting(seconds) => seconds,
        }
    }

    /// The same at another time, in seconds.
    pub(crate) fn at(self, seconds: f64) -> Self {
        match self {
            Self::AtMost(_) => Self::AtMost(seconds),
            Self::Waiting(_) => Self::Waiting(seconds),
        }
    }

    /// The seconds from the start of a step to the start of the next, if the step takes `time_s`.
    pub(crate) fn lasts_s(self, time_s: f64) -> f64 {
        match self {
            Self::AtMost(_) => time_s,
            Self::Waiting(until_s) => until_s.max(time_s),
        }
    }
}
