//! Notifications to systemd. Without systemd they do nothing, which is not an error.

use std::time::Duration;

use sd_notify::{NotifyState, notify, watchdog_enabled};
use tokio::time::sleep;

/// States of this process as a service.
#[derive(Clone, Copy, Debug)]
pub struct Service;

impl Service {
    /// The service serves.
    pub fn ready(self) {
        let _ = notify(&[NotifyState::Ready]);
    }

    /// The service stops.
    pub fn stopping(self) {
        let _ = notify(&[NotifyState::Stopping]);
    }

    /// The service reads its configuration again, until [`reloaded`](Self::reloaded).
    pub fn reloading(self) {
        // With the time, systemd distinguishes this reload from an earlier one.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            let _ = notify(&[NotifyState::Reloading, now]);
        }
    }

    /// The service serves again; `status` is what `systemctl status` shows.
    pub fn reloaded(self, status: &str) {
        let _ = notify(&[NotifyState::Ready, NotifyState::Status(status)]);
    }
}

/// Keeps systemd's watchdog quiet for as long as the runtime runs, if there is a watchdog.
pub async fn feed_watchdog() {
    let Some(period) = watchdog_enabled().filter(|period| *period > Duration::ZERO) else { return };
    loop {
        let _ = notify(&[NotifyState::Watchdog]);
        sleep(period.mul_f64(0.5)).await;
    }
}
