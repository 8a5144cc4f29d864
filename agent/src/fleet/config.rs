//! `[fleet]` of the configuration.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use pfo_fleet::{Node, OnPartition, Settings};
use pfo_service::Within;
use pfo_store::{Credentials, EtcdSettings};
use serde::Deserialize;

/// Where systemd puts what `LoadCredential=` names.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Seconds for which the store keeps what a job ran when none of its nodes is there: long enough for
/// a training to be started anew.
const KEEP_S: u16 = 3600;

/// The name of the host.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// `[fleet]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FleetConfig {
    /// The members of etcd; with none, the node is in no fleet.
    endpoints: Vec<Endpoint>,
    /// The name of the fleet, which its signed budgets contain.
    pub(super) name: FleetName,
    /// The name of this node; none is that of the host.
    #[serde(deserialize_with = "name_or_none")]
    node: Option<Node>,
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    /// Seconds without the store after which other nodes take this one for gone.
    lease_s: Within<2, 3600>,
    on_store_loss: OnStoreLoss,
    /// Seconds without the store after which `on_store_loss` is done.
    store_loss_s: Within<3, 86_400>,
}

/// What a fleet is called; empty is a name, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct FleetName(pub(super) String);

/// Where a member of etcd listens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Endpoint(String);

/// What a node does when the store has not answered for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum OnStoreLoss {
    Keep,
    DefaultClocks,
}

impl Default for FleetConfig {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            name: FleetName::default(),
            node: None,
            ca: "fleet-ca.pem".into(),
            certificate: "fleet.pem".into(),
            key: "fleet.key".into(),
            lease_s: Within::of::<15>(),
            on_store_loss: OnStoreLoss::Keep,
            store_loss_s: Within::of::<45>(),
        }
    }
}

impl TryFrom<String> for FleetName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let may_be = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        if text.len() <= 64 && text.chars().all(may_be) {
            return Ok(Self(text));
        }
        Err(format!(
            "{text:?} is no name of a fleet: give at most 64 letters, digits, dots, hyphens and underscores"
        ))
    }
}

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let place = text.strip_prefix("https://").and_then(|rest| rest.rsplit_once(':'));
        let is_well = place.is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains(['/', '@']) && port.parse::<u16>().is_ok()
        });
        if is_well {
            return Ok(Self(text));
        }
        Err(format!("{text:?} is no endpoint of etcd: give https://HOST:PORT"))
    }
}

fn name_or_none<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Node>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let parsed = (!name.is_empty()).then(|| name.parse()).transpose();
    parsed.map_err(serde::de::Error::custom)
}

impl FleetConfig {
    /// Whether the node is in a fleet.
    pub(crate) fn is_set(&self) -> bool {
        !self.endpoints.is_empty()
    }

    /// What is wrong beyond single values.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let (lease_s, loss_s) = (self.lease_s.get(), self.store_loss_s.get());
        let changes = self.on_store_loss == OnStoreLoss::DefaultClocks;
        (changes && loss_s <= lease_s).then(|| {
            format!(
                "fleet.store_loss_s is {loss_s} and fleet.lease_s {lease_s}: a node has to be known \
                 to be away before it changes; give store_loss_s more than {lease_s}"
            )
        })
    }

    /// How the node takes part in jobs.
    pub(super) fn settings(&self) -> Settings {
        let after_ms = u64::from(self.store_loss_s.get()).saturating_mul(1000);
        let on_partition = match self.on_store_loss {
            OnStoreLoss::Keep => OnPartition::Keep,
            OnStoreLoss::DefaultClocks => OnPartition::DefaultClocks(after_ms),
        };
        Settings { on_partition, ..Settings::default() }
    }

    /// How the node reaches etcd.
    ///
    /// # Errors
    /// If the name of the host is no name of a node.
    pub(super) fn store(&self) -> Result<EtcdSettings, String> {
        let host_name = || {
            let name =
                fs::read_to_string(HOST_NAME).map_err(|error: io::Error| error.to_string())?;
            let named = name.trim().parse::<Node>().map_err(|error| error.to_string());
            named.map_err(|error| format!("the name of the host: {error}; set fleet.node"))
        };
        let directory = env::var_os(CREDENTIALS).map(PathBuf::from).unwrap_or_default();
        let path = |file: &Path| directory.join(file);
        Ok(EtcdSettings {
            endpoints: self.endpoints.iter().map(|Endpoint(endpoint)| endpoint.clone()).collect(),
            node: self.node.clone().map_or_else(host_name, Ok)?,
            lease_s: u16::try_from(self.lease_s.get()).unwrap_or(u16::MAX),
            keep_s: KEEP_S,
            credentials: Some(Credentials {
                ca: path(&self.ca),
                certificate: path(&self.certificate),
                key: path(&self.key),
            }),
        })
    }
}
