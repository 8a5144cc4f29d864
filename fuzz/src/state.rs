//! What else the former daemon left on disk: what is revoked, and the records of jobs.

/// The boot that the seeds are of.
pub const BOOT: &str = "b";

/// The target.
pub fn state(bytes: &[u8]) {
    let _ = pfod::fuzzing::kept_files(bytes, BOOT);
}
