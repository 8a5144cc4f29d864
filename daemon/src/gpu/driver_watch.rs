//! Looks, whenever a GPU was lost, whether the whole driver is gone; then everything that relies on it ends.

use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::ClosingReason;
use tokio::time::{sleep, timeout};

use crate::journal;
use crate::late_driver::Health;
use crate::node::Node;

/// How soon after a look it is looked again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches for as long as the daemon runs.
pub async fn watch_driver(node: Arc<Node>) {
    loop {
        node.driver.lost.notified().await;
        while look(&node).await == Health::Unclear {
            sleep(LOOK_EVERY).await;
        }
        sleep(LOOK_EVERY).await;
        // Those that the looking itself has woken.
        let _ = timeout(Duration::ZERO, node.driver.lost.notified()).await;
    }
}

async fn look(node: &Arc<Node>) -> Health {
    let worker = Arc::clone(node);
    let health = tokio::task::spawn_blocking(move || worker.driver.health()).await;
    let health = health.unwrap_or(Health::Unclear);
    if let Health::Gone(why) = &health {
        tracing::error!(name: journal::GPU_LOST, "the driver is gone: {why}; waiting for it");
        node.driver.let_go(why);
        for session in node.leases.sessions() {
            session.end(ClosingReason::GpuLost, format!("the driver is gone: {why}"));
        }
    }
    health
}
