//! How to reach etcd, and with which credentials.

use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use pfo_fleet::Node;
use rustls_pki_types::UnixTime;

use super::certificate::OwnCertificate;
use super::members::Members;
use crate::error::StoreError;

/// How long etcd may take to connect, and to answer. What is asked while its leader is gone is not
/// answered at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(2000);

/// How often a silent connection is asked whether it is still there, and how long that may take.
const PING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

/// How to reach etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSettings {
    /// The members, as `https://HOST:PORT`.
    pub endpoints: Vec<String>,
    /// The name of this node, which is the common name of its certificate.
    pub node: Node,
    /// Seconds after which a node that is cut off has left its jobs. etcd's least is 2 at its
    /// defaults.
    pub lease_s: u16,
    /// Seconds after which what is kept of a job is deleted, when no node takes part in it any more.
    pub keep_s: u16,
    /// None only where etcd listens without TLS: for tests.
    pub credentials: Option<Credentials>,
}

/// Files in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The certificate of the authority that has signed etcd's.
    pub ca: PathBuf,
    /// The certificate of this node.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// The members, and the certificate that is shown to them.
pub(super) async fn members(
    settings: &EtcdSettings,
) -> Result<(Members, Option<OwnCertificate>), StoreError> {
    let mut own = None;
    let mut options = ConnectOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout(ANSWER_TIMEOUT)
        .with_keep_alive(PING.0, PING.1)
        .with_keep_alive_while_idle(true)
        .with_require_leader(true);
    if let Some(files) = &settings.credentials {
        let (pem, authority) = (read(&files.certificate)?, read(&files.ca)?);
        own = OwnCertificate::read(files, &pem, &authority);
        let identity = Identity::from_pem(pem, read(&files.key)?);
        let ca = Certificate::from_pem(authority);
        options = options.with_tls(TlsOptions::new().ca_certificate(ca).identity(identity));
    }
    let opened = Members::open(&settings.endpoints, options).await.map_err(StoreError::from);
    let members = opened.map_err(|error| explained(own.as_ref(), error))?;
    Ok((members, own))
}

/// An error with its reason, if that is a certificate.
pub(super) fn explained(own: Option<&OwnCertificate>, error: StoreError) -> StoreError {
    match own {
        Some(own) => own.explain(error, UnixTime::now()),
        None => error,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    std::fs::read(path)
        .map_err(|error| StoreError::Credentials(format!("{}: {error}", path.display())))
}
