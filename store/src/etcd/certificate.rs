//! Until when the certificate of this node is valid: etcd hangs up on one that has expired, and does not
//! say why.

use std::path::PathBuf;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage};

use crate::error::StoreError;

/// The certificate that a client was made with.
#[derive(Debug)]
pub(super) struct OwnCertificate {
    path: PathBuf,
    /// In seconds since 1970.
    valid_until: u64,
}

impl OwnCertificate {
    /// None if it is not readable as a certificate, which is for the client to say.
    pub(super) fn read(path: PathBuf, pem: &[u8]) -> Option<Self> {
        let certificate = CertificateDer::from_pem_slice(pem).ok()?;
        let certificate = EndEntityCert::try_from(&certificate).ok()?;
        // Whether it is valid then is looked at first.
        let (for_clients, never) = (KeyUsage::client_auth(), UnixTime::since_unix_epoch(NEVER));
        let verified = certificate.verify_for_usage(&[], &[], &[], never, for_clients, None, None);
        let Err(Error::CertExpired { not_after, .. }) = verified else { return None };
        Some(Self { path, valid_until: not_after.as_secs() })
    }

    /// The reason for an error, if that is that the certificate has expired.
    pub(super) fn explain(&self, error: StoreError) -> StoreError {
        let expired_s = UnixTime::now().as_secs().saturating_sub(self.valid_until);
        match error {
            StoreError::Away(why) if expired_s > 0 => StoreError::Credentials(format!(
                "{}: the certificate expired {expired_s} s ago, and the store no longer lets this node in \
                 ({why}); renew it, then restart pfo-agent",
                self.path.display()
            )),
            other => other,
        }
    }
}

/// Later than any certificate is valid: they end with the year 9999.
const NEVER: std::time::Duration = std::time::Duration::from_secs(1 << 40);
