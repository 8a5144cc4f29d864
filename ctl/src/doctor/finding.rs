//! What a check found, and what to do about it.

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// It cannot be found out from here.
    Unknown,
    /// Worth a look; pfo works.
    Warning,
    /// pfo does not work as it should.
    Wrong,
}

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Which check; a name that stays.
    pub(crate) check: &'static str,
    /// How bad it is.
    pub(crate) level: Level,
    /// What was found.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) remedy: Option<String>,
}

impl Finding {
    /// All is well.
    pub(crate) fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, message: message.into(), remedy: None }
    }

    /// It cannot be found out.
    pub(crate) fn unknown(
        check: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { check, level: Level::Unknown, message: message.into(), remedy: Some(remedy.into()) }
    }

    /// Worth a look.
    pub(crate) fn warning(
        check: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { check, level: Level::Warning, message: message.into(), remedy: Some(remedy.into()) }
    }

    /// To be put right.
    pub(crate) fn wrong(
        check: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { check, level: Level::Wrong, message: message.into(), remedy: Some(remedy.into()) }
    }
}
