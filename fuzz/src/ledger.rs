//! What the last daemon left on disk: the ledger, what is revoked and the records of jobs. A record
//! that is one makes a job, or is refused; it never makes one that cannot be kept again.
use pfod::job_record::JobRecord;
use pfod::{job_file, ledger, revocation_file};

const BOOT: &str = "b";

/// The target.
pub fn ledger(bytes: &[u8]) {
    let _ = ledger::parse(bytes, BOOT);
    let _ = revocation_file::parse(bytes, BOOT);
    if let Ok(record) = job_file::parse(bytes, BOOT)
        && let Ok(job) = record.restore(&[], None)
    {
        let again = JobRecord::of(&job, true);
        assert!(again.is_some() || job.members().swaps.is_empty());
        let _ = job.swap(&pfo_protocol::SwapTarget::Previous, 0);
    }
}
