//! What systemd is told. Without systemd there is nobody to tell, which is no error.

use systemd::daemon;

use crate::monotonic::now_ns;

/// Tells a state, such as `READY`.
pub fn tell(state: &str) {
    let _ = daemon::notify([(state, "1")].iter());
}

/// Says that another configuration is being read, which ends with [`reloaded`].
pub fn reloading() {
    // With the time, systemd tells this reload from an earlier one.
    let microseconds = (now_ns() / 1000).to_string();
    let _ = daemon::notify([("RELOADING", "1"), ("MONOTONIC_USEC", &microseconds)].iter());
}

/// Says that the daemon serves again, and what `systemctl status` is to show.
pub fn reloaded(status: &str) {
    let _ = daemon::notify([("READY", "1"), ("STATUS", status)].iter());
}
