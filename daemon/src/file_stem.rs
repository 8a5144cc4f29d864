//! What the file of something is called that a user has given a name.

use pfo_protocol::JobName;

/// The beginning of the name of a file or directory, for nothing else of any user. Names may have slashes,
/// but never an exclamation mark.
#[must_use]
pub fn file_stem(uid: u32, name: &JobName) -> String {
    format!("{uid}-{}", name.as_str().replace('/', "!"))
}

/// Whose it is and what it is called, out of [`file_stem`].
#[must_use]
pub fn named_by(stem: &str) -> Option<(u32, JobName)> {
    let (uid, name) = stem.split_once('-')?;
    Some((uid.parse().ok()?, name.replace('!', "/").parse().ok()?))
}
