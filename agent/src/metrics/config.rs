//! `[metrics]` of the configuration.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;

use pfo_service::Within;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// `[metrics]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MetricsConfig {
    /// The Unix socket to serve them on when systemd hands over none.
    #[serde(deserialize_with = "socket")]
    pub(super) socket: Option<PathBuf>,
    /// The TCP address to serve them on.
    #[serde(deserialize_with = "address")]
    pub(super) listen: Option<SocketAddr>,
    /// The file to write them to.
    #[serde(deserialize_with = "textfile")]
    pub(super) textfile: Option<PathBuf>,
    /// Seconds from one writing of that file to the next.
    pub(super) textfile_every_s: Within<1, 3600>,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self { socket: None, listen: None, textfile: None, textfile_every_s: Within::of::<15>() }
    }
}

/// What a text means; nothing if it is empty.
fn unless_empty<'de, D: Deserializer<'de>, T, E: Display>(
    deserializer: D,
    parse: impl FnOnce(String) -> Result<T, E>,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parsed = (!text.is_empty()).then(|| parse(text)).transpose();
    parsed.map_err(D::Error::custom)
}

fn socket<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    unless_empty(deserializer, |text| absolute(text, "/run/pfo/metrics.sock"))
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    unless_empty(deserializer, |text| {
        let wrong = || format!("{text:?} is no address: give IP:PORT, such as 127.0.0.1:9420");
        text.parse().ok().filter(|address: &SocketAddr| address.port() > 0).ok_or_else(wrong)
    })
}

fn textfile<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    unless_empty(deserializer, |text| {
        let path = absolute(text, "/var/lib/prometheus/node-exporter/pfo.prom")?;
        if path.extension().is_some_and(|extension| extension == "prom") {
            return Ok(path);
        }
        let shown = path.display();
        Err(format!("the node exporter does not read {shown}: give a name that ends with .prom"))
    })
}

fn absolute(text: String, example: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        return Ok(path);
    }
    Err(format!("{path:?} is no absolute path: give one such as {example}"))
}
