//! The GPU device files that this process can open. Passed to the daemon, they prove which GPUs it
//! was given: the kernel's device cgroup decides about every open, in Slurm's job steps and in
//! containers.

use std::fs::{File, OpenOptions, read_dir};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::fork::ClosedInChildren;

/// The daemon takes no more with one message.
const MOST: usize = 64;

/// An open device file.
pub(crate) struct Device {
    // Before the file: fields are dropped in this order.
    _closed_in_children: ClosedInChildren,
    file: File,
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Opens every `nvidiaN` of a directory that can be opened; none if there is no directory.
pub(crate) fn open(directory: &Path) -> Vec<Device> {
    let Ok(entries) = read_dir(directory) else { return Vec::new() };
    let number = |name: &str| name.strip_prefix("nvidia")?.parse::<u32>().ok();
    let mut found: Vec<_> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| Some((number(entry.file_name().to_str()?)?, entry.path())))
        .collect();
    found.sort();
    found.iter().filter_map(|(_, path)| Device::open(path)).take(MOST).collect()
}

impl Device {
    /// Opens a device file without waiting for a GPU that sleeps.
    fn open(path: &Path) -> Option<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(path).ok()?;
        Some(Self { _closed_in_children: ClosedInChildren::register(file.as_raw_fd()), file })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_device_files_of_gpus_are_opened_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia", "xnvidia1"] {
            fs::write(directory.path().join(name), name).unwrap();
        }
        // A directory cannot be opened for writing, not even by root.
        fs::create_dir(directory.path().join("nvidia3")).unwrap();
        let opened = open(directory.path());
        let names = opened.iter().map(|device| {
            let link = format!("/proc/self/fd/{}", device.as_fd().as_raw_fd());
            let path = fs::read_link(link).unwrap();
            path.file_name().unwrap().to_str().unwrap().to_owned()
        });
        assert!(names.eq(["nvidia0", "nvidia12"]));
    }

    #[test]
    fn a_directory_that_is_not_there_has_no_devices_and_a_full_one_has_a_limit() {
        assert!(open(Path::new("/no/such/directory")).is_empty());
        let directory = tempfile::tempdir().unwrap();
        for number in 0..MOST + 9 {
            fs::write(directory.path().join(format!("nvidia{number}")), "").unwrap();
        }
        assert_eq!(open(directory.path()).len(), MOST);
    }
}
