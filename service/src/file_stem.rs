//! File names for what users have named.

use pfo_vocabulary::{JobName, Uid};

/// The stem of a file's name, unique for a user's name of something. Names may contain slashes, but
/// never an exclamation mark.
#[must_use]
pub fn file_stem(uid: Uid, name: &JobName) -> String {
    format!("{uid}-{}", name.as_str().replace('/', "!"))
}

/// The user and the name that [`file_stem`] was made from.
#[must_use]
pub fn named_by(stem: &str) -> Option<(Uid, JobName)> {
    let (uid, name) = stem.split_once('-')?;
    Some((Uid(uid.parse().ok()?), name.replace('!', "/").parse().ok()?))
}
