//! What the certificate of this node says: whose it is, and when it is valid. etcd hangs up on one that is
//! not, and does not say why.

use std::time::Duration;

use pfo_fleet::Node;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage};

use super::connect::Credentials;
use crate::error::StoreError;

/// The certificate that a client was made with.
#[derive(Debug)]
pub(super) struct OwnCertificate {
    files: Credentials,
    /// Whether the authority that `files` names has signed it, as far as the names say.
    is_of_authority: bool,
    /// The user that etcd takes this node for, if it is readable.
    name: Option<String>,
    /// In seconds since 1970.
    valid_from: u64,
    valid_until: u64,
}

impl OwnCertificate {
    /// None if it is not readable as a certificate, which is for the client to say.
    pub(super) fn read(files: &Credentials, pem: &[u8], authority: &[u8]) -> Option<Self> {
        let certificate = CertificateDer::from_pem_slice(pem).ok()?;
        let certificate = EndEntityCert::try_from(&certificate).ok()?;
        // Whether it is valid then is looked at first.
        let at = |since: Duration| {
            let (for_clients, time) = (KeyUsage::client_auth(), UnixTime::since_unix_epoch(since));
            certificate.verify_for_usage(&[], &[], &[], time, for_clients, None, None).err()
        };
        let Some(Error::CertExpired { not_after, .. }) = at(NEVER) else { return None };
        let valid_from = match at(Duration::ZERO) {
            Some(Error::CertNotValidYet { not_before, .. }) => not_before.as_secs(),
            _ => 0,
        };
        let is_issuer = |authority: CertificateDer<'_>| {
            let anchor = webpki::anchor_from_trusted_cert(&authority);
            anchor.is_ok_and(|anchor| *anchor.subject == *certificate.issuer())
        };
        let is_of_authority = CertificateDer::pem_slice_iter(authority).flatten().any(is_issuer);
        let (files, name) = (files.clone(), common_name(certificate.subject()).map(str::to_owned));
        Some(Self { files, is_of_authority, name, valid_from, valid_until: not_after.as_secs() })
    }

    /// Why it is not valid at a time.
    pub(super) fn invalid_at(&self, now: UnixTime) -> Option<String> {
        let now_s = now.as_secs();
        let after_s = now_s.saturating_sub(self.valid_until);
        let before_s = self.valid_from.saturating_sub(now_s);
        let when = match (after_s, before_s) {
            (0, 0) => return None,
            (_, 0) => format!("expired {} ago", span(after_s)),
            _ => format!("is valid only in {}", span(before_s)),
        };
        Some(format!(
            "{}: the certificate {when} by the clock of this node; renew it and restart pfo-agent or, if \
             `date` is wrong here, set the clock",
            self.files.certificate.display()
        ))
    }

    /// What is wrong if it is not the certificate of a node.
    pub(super) fn another_than(&self, node: &Node) -> Option<String> {
        let name = self.name.as_deref().filter(|name| *name != node.as_str())?;
        Some(format!(
            "{}: the certificate is that of {name}, and this is node {node}: etcd takes one for the other; \
             give the node its own, or set fleet.node in agent.toml",
            self.files.certificate.display()
        ))
    }

    /// The reason for an error at a time, if that is a certificate.
    pub(super) fn explain(&self, error: StoreError, now: UnixTime) -> StoreError {
        let StoreError::Away(why) = error else { return error };
        let Credentials { ca, certificate, key } = &self.files;
        let (ca, certificate, key) = (ca.display(), certificate.display(), key.display());
        let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
        let reason = if says(&["KeyMismatch"]) {
            format!("{key} is not the key of {certificate}")
        } else if says(&["UnknownIssuer"]) {
            format!("the authority of {ca} has not signed the certificate of etcd")
        } else if says(&["not valid for name"]) {
            "the certificate of etcd does not name this address: its subjectAltName has to".into()
        } else if says(&["certificate expired", "not valid yet"]) {
            "the certificate of etcd is not valid by the clock of this node; renew it or, if `date` is \
             wrong here, set the clock"
                .into()
        } else if let Some(invalid) = self.invalid_at(now) {
            invalid
        } else if says(&HUNG_UP) && !self.is_of_authority {
            format!(
                "{certificate} is not signed by the authority of {ca}, and etcd hangs up: it does not \
                 trust that one's"
            )
        } else {
            return StoreError::Away(why);
        };
        StoreError::Credentials(format!("{reason} ({why})"))
    }
}

/// What it is called that etcd ends a connection, which is all that it does about a certificate.
const HUNG_UP: [&str; 5] = ["connection closed", "canceled", "roken pipe", "reset", "fatal alert"];

/// Later than any certificate is valid: they end with the year 9999.
const NEVER: Duration = Duration::from_secs(1 << 40);

/// The last common name of a subject in DER: the identifier 2.5.4.3, then a string with its length.
fn common_name(subject: &[u8]) -> Option<&str> {
    const IDENTIFIER: [u8; 5] = [6, 3, 0x55, 4, 3];
    let at = subject.windows(IDENTIFIER.len()).rposition(|bytes| bytes == IDENTIFIER)?;
    let [_, length, text @ ..] = subject.get(at.checked_add(IDENTIFIER.len())?..)? else {
        return None;
    };
    std::str::from_utf8(text.get(..usize::from(*length))?).ok()
}

/// A time in words.
fn span(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let unit = UNITS.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    unit.map_or_else(|| format!("{seconds} s"), |(unit, name)| format!("{} {name}", seconds / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of node-a, from 2026-01-02 to 2026-01-04, signed by nobody who matters.
    const PEM: &[u8] = include_bytes!("../../tests/node-a.pem");
    const FROM_S: u64 = 1_767_312_000;
    const UNTIL_S: u64 = FROM_S + 2 * 86_400;

    fn own() -> OwnCertificate {
        let [ca, certificate, key] = ["ca.pem", "node-a.pem", "node-a.key"].map(Into::into);
        OwnCertificate::read(&Credentials { ca, certificate, key }, PEM, PEM).unwrap()
    }

    fn invalid_at(time_s: u64) -> Option<String> {
        own().invalid_at(UnixTime::since_unix_epoch(Duration::from_secs(time_s)))
    }

    #[test]
    fn a_clock_that_is_wrong_is_a_reason_for_which_a_certificate_is_not_valid() {
        assert_eq!(invalid_at(FROM_S), None);
        assert_eq!(invalid_at(UNTIL_S), None);
        let expired = invalid_at(UNTIL_S + 10 * 86_400).unwrap();
        assert!(expired.contains("node-a.pem: the certificate expired 10 days ago"), "{expired}");
        assert!(expired.ends_with("if `date` is wrong here, set the clock"), "{expired}");
        let early = invalid_at(FROM_S - 7200).unwrap();
        assert!(early.contains("the certificate is valid only in 2 hours"), "{early}");
    }

    #[test]
    fn the_name_in_a_certificate_is_read_and_what_is_cut_off_is_none() {
        assert_eq!(own().name.as_deref(), Some("node-a"));
        assert_eq!(common_name(&[6, 3, 0x55, 4, 3, 12, 2, b'n', b'1']), Some("n1"));
        assert_eq!(common_name(&[6, 3, 0x55, 4, 3, 12, 3, b'n', b'1']), None);
        assert_eq!(common_name(&[6, 3, 0x55, 4, 3]), None);
        assert_eq!(common_name(&[]), None);
    }
}
