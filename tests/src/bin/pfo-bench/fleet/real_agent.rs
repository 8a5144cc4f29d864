//! What a real `pfo-agent` takes that is in a fleet, and in no job.

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::thread::sleep;
use std::time::Duration;

use pfo_tests::{EtcdCluster, Node, Setup};

use super::{Figure, figure};
use crate::Result;
use crate::extent::Extent;
use crate::node::Measured;

const NAME: &str = "node-b";

/// Memory, and the time on a core.
pub(super) fn measure(etcd: &EtcdCluster, extent: Extent) -> Result<[Figure; 2]> {
    let mut node = Node::create(&Setup::default());
    let settings = etcd.settings(NAME, Ipv4Addr::LOCALHOST);
    let credentials = settings.credentials.ok_or("etcd has no certificates")?;
    let mut file = File::options().append(true).open(node.agent_config())?;
    writeln!(
        file,
        "[fleet]\nnode = {NAME:?}\nendpoints = {:?}\nca = {:?}\ncertificate = {:?}\nkey = {:?}",
        settings.endpoints, credentials.ca, credentials.certificate, credentials.key
    )?;
    node.start_daemon();
    node.start_agent();
    let agent = Measured::agent(&node).ok_or("there is no agent")?;
    sleep(Duration::from_secs(extent.of(12, 3)));
    let (seconds, before) = (extent.of(30, 3), agent.consumed()?);
    sleep(Duration::from_secs(seconds));
    let ticks = agent.consumed()?.cpu_ticks - before.cpu_ticks;
    let rss_mib = agent.memory()?.rss_kib as f64 / 1024.0;
    let busy_ms = 10.0 * ticks as f64 / seconds as f64;
    Ok([
        figure("pfo-agent, in no job: resident", rss_mib, "MiB", Some(20.0)),
        figure("pfo-agent, in no job: on a core", busy_ms, "ms/s", None),
    ])
}
