//! Checks, whenever a GPU was lost, whether the whole driver is gone; then everything that relies
//! on it ends.

use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::ClosingReason;
use tokio::time::{sleep, timeout};

use super::LateDriver;
use super::late_driver::Health;
use crate::host::journal;
use crate::lease::Leases;

/// Time between two checks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches for as long as the daemon runs.
pub(crate) async fn watch_driver(driver: Arc<LateDriver>, leases: Arc<Leases>) {
    loop {
        driver.lost.notified().await;
        while look(&driver, &leases).await == Health::Unclear {
            sleep(LOOK_EVERY).await;
        }
        sleep(LOOK_EVERY).await;
        // Takes the notification that the check itself has caused.
        let _ = timeout(Duration::ZERO, driver.lost.notified()).await;
    }
}

async fn look(driver: &Arc<LateDriver>, leases: &Leases) -> Health {
    let asked = Arc::clone(driver);
    let health = tokio::task::spawn_blocking(move || asked.health()).await;
    let health = health.unwrap_or(Health::Unclear);
    if let Health::Gone(why) = &health {
        tracing::error!(name: journal::GPU_LOST, "the driver is gone: {why}; waiting for it");
        driver.let_go(why);
        for session in leases.sessions() {
            session.end(ClosingReason::GpuLost, format!("the driver is gone: {why}"));
        }
    }
    health
}
