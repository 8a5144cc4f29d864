//! Whether a node has what it needs to be in the fleet, found by using it: its certificate, and at keys
//! that mean nothing what it may read and write.

use etcd_client::{GetOptions, Txn, TxnOp};
use rustls_pki_types::UnixTime;

use super::{Etcd, keys};
use crate::error::StoreError;

impl Etcd {
    /// Checks the certificate that this node shows, by this node's clock.
    ///
    /// # Errors
    /// If it is not valid now, or another node's.
    pub fn check_certificate(&self) -> Result<(), StoreError> {
        let wrong = |own: &super::OwnCertificate| {
            own.invalid_at(UnixTime::now()).or_else(|| own.another_than(&self.me))
        };
        self.certificate
            .as_ref()
            .and_then(wrong)
            .map_or(Ok(()), |why| Err(StoreError::Credentials(why)))
    }

    /// Reads, writes and deletes below everything that an agent uses. A client is connected for this
    /// alone, lest the node's own lease is held by what is dropped afterwards.
    ///
    /// # Errors
    /// If the store does not answer, or with everything that this node may not use.
    pub async fn check_rights(&self) -> Result<(), StoreError> {
        let mut refused = Vec::new();
        for kind in keys::kinds() {
            match self.use_key_of(&kind).await {
                Err(StoreError::Refused(why)) => refused.push(why),
                other => other?,
            }
        }
        if refused.is_empty() { Ok(()) } else { Err(StoreError::Refused(refused.join("; "))) }
    }

    async fn use_key_of(&self, kind: &str) -> Result<(), StoreError> {
        // The whole of it is read, as an agent does.
        let any = GetOptions::new().with_prefix().with_limit(1).with_keys_only();
        self.read(kind, Some(any)).await?;
        let key = keys::checked(kind, &self.me);
        self.put_leased(key.clone(), Vec::new()).await?;
        let delete = Txn::new().and_then([TxnOp::delete(key.as_str(), None)]);
        self.commit(delete).await.map(drop).map_err(super::at(&key))
    }
}
