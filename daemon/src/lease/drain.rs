//! Maintenance: while the node is drained, nobody gets a lease. The record is beside the ledger,
//! and outlives the daemon.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use pfo_protocol::{Drained, Refusal, RefusalCode, Uid};
use pfo_service::{lock, read_versioned, replace};
use serde::{Deserialize, Serialize};

const FORMAT: &str = "pfo-drained/1";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: String,
    drained: Drained,
}

/// Whether the node is drained.
#[derive(Debug)]
pub(crate) struct Drain {
    path: PathBuf,
    standing: Mutex<Option<Drained>>,
}

impl Drain {
    /// As the previous daemon left it. A record that cannot be read drains the node, too.
    pub(crate) fn beside(ledger: &Path) -> Self {
        let path = ledger.with_file_name("drained.json");
        let standing = match read_versioned(&path, FORMAT) {
            Ok(found) => found.map(|OnDisk { drained, .. }| drained),
            Err(why) => Some(Drained {
                reason: format!("{} cannot be read: {why}", path.display()),
                by_uid: Uid::ROOT,
                since_unix_s: 0,
                driver_released: false,
            }),
        };
        Self { path, standing: Mutex::new(standing) }
    }

    /// Who drained the node, and why.
    pub(crate) fn standing(&self) -> Option<Drained> {
        lock(&self.standing).clone()
    }

    /// Refuses every lease from now on.
    ///
    /// # Errors
    /// If that cannot be recorded; nothing has changed then.
    pub(crate) fn begin(&self, drained: Drained) -> io::Result<()> {
        let content = OnDisk { format: FORMAT.into(), drained: drained.clone() };
        let mut standing = lock(&self.standing);
        replace(&self.path, &serde_json::to_vec_pretty(&content)?)?;
        *standing = Some(drained);
        Ok(())
    }

    /// Allows leases again.
    ///
    /// # Errors
    /// If the record cannot be removed; nothing has changed then.
    pub(crate) fn end(&self) -> io::Result<()> {
        let mut standing = lock(&self.standing);
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => *standing = None,
        }
        Ok(())
    }

    /// Checks that leases are to be had.
    ///
    /// # Errors
    /// A refusal with the reason why not.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let Some(drained) = self.standing() else { return Ok(()) };
        let message = format!("this node is drained: {}", drained.reason);
        let remedy = "the session opens when an administrator undrains the node";
        Err(Refusal::new(RefusalCode::ShuttingDown, message, remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained() -> Drained {
        let (reason, by_uid) = ("a fan".to_owned(), Uid(7));
        Drained { reason, by_uid, since_unix_s: 1000, driver_released: true }
    }

    #[test]
    fn a_drained_node_is_drained_for_the_next_daemon_too_until_it_is_undrained() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger.json");
        assert!(Drain::beside(&ledger).check().is_ok());
        Drain::beside(&ledger).begin(drained()).unwrap();
        let next = Drain::beside(&ledger);
        assert_eq!(next.standing(), Some(drained()));
        assert!(next.check().unwrap_err().message.ends_with("drained: a fan"));
        next.end().unwrap();
        next.end().unwrap();
        assert!(next.check().is_ok() && Drain::beside(&ledger).check().is_ok());
    }

    #[test]
    fn a_record_that_cannot_be_read_drains_the_node_and_can_be_ended() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger.json");
        for content in ["", "{", r#"{"format": "pfo-drained/2"}"#] {
            fs::write(ledger.with_file_name("drained.json"), content).unwrap();
            let drain = Drain::beside(&ledger);
            assert!(drain.check().unwrap_err().message.contains("cannot be read"), "{content}");
            drain.end().unwrap();
            assert!(drain.check().is_ok());
        }
    }

    #[test]
    fn what_cannot_be_recorded_changes_nothing() {
        let drain = Drain::beside("/no/such/directory/ledger.json".as_ref());
        drain.begin(drained()).unwrap_err();
        assert!(drain.check().is_ok());
    }
}
