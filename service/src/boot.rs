//! The current boot of the node: locks do not outlive it, and neither do records of them.

/// The kernel's name of this boot.
#[must_use]
pub fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}
