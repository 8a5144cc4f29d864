//! Whether a node has what it needs to be in the fleet, found by using it: its certificate, and at keys
//! that mean nothing what it may read and write.

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};
use rustls_pki_types::UnixTime;

use super::{Etcd, keys};
use crate::error::StoreError;

/// No node has this name.
const OTHER: &str = "!";

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

    /// Checks whose certificate this node shows. etcd takes it for that node.
    ///
    /// # Errors
    /// If it is another node's.
    pub fn check_name(&self) -> Result<(), StoreError> {
        let certificate = self.certificate.as_ref();
        let other = certificate.and_then(|own| own.another_than(&self.me));
        other.map_or(Ok(()), |why| Err(StoreError::Credentials(why)))
    }

    /// Checks that this node may not write what is other nodes' alone. Nothing is written.
    ///
    /// # Errors
    /// If the store does not answer, or with everything that it may write.
    pub async fn check_bounds(&self) -> Result<(), StoreError> {
        let mut allowed = Vec::new();
        for prefix in keys::of_one_node() {
            match self.probe(&format!("{prefix}{OTHER}")).await {
                Ok(()) => allowed.push(prefix),
                Err(StoreError::Refused(_)) => {}
                Err(other) => return Err(other),
            }
        }
        if allowed.is_empty() {
            return Ok(());
        }
        Err(StoreError::TooWide(allowed.join(", ")))
    }

    /// Whether this node may write a key. etcd decides that for what a transaction does in neither case, too.
    async fn probe(&self, key: &str) -> Result<(), StoreError> {
        let never = Compare::version(key, CompareOp::Less, 0);
        let put = TxnOp::put(key, Vec::new(), None);
        self.commit(Txn::new().when([never]).and_then([put]))
            .await
            .map(drop)
            .map_err(super::at(key))
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
        for prefix in keys::of_one_node() {
            let any = GetOptions::new().with_prefix().with_limit(1).with_keys_only();
            let read = self.read(prefix, Some(any)).await.map(drop);
            let used = match read {
                Ok(()) => self.probe(&format!("{prefix}{}", self.me)).await,
                unread => unread,
            };
            match used {
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
