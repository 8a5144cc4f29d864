//! The device file of a GPU. Who has it open was given the GPU: the kernel's device cgroup, which
//! Slurm, Kubernetes and container runtimes set, decides on every open.

use std::path::{Path, PathBuf};

use pfo_keeper::GpuFacts;
use pfo_service::FileIdentity;

/// Whether the device file of a GPU is among files that a client has open.
pub(crate) fn is_open(gpu: &GpuFacts, devices: &Path, open: &[FileIdentity]) -> bool {
    let identity = path(gpu, devices).and_then(|path| FileIdentity::of(&path).ok());
    identity.is_some_and(|identity| open.contains(&identity))
}

/// What a client has to pass, and what to do so that it can.
pub(crate) fn in_words(gpu: &GpuFacts, devices: &Path) -> (String, String) {
    const IN_THE_STEP: &str = "run within the job step that was given this GPU, with libpfo 0.2 or \
                               later; an administrator may use `pfoctl grant`, or set require_device = false";
    let GpuFacts { uuid, model, .. } = gpu;
    let Some((minor, path)) = gpu.minor.zip(path(gpu, devices)) else {
        let what =
            format!("a device file of GPU {uuid} ({model}), for which the driver names none");
        return (what, IN_THE_STEP.to_owned());
    };
    let (missing, remedy) = if path.exists() {
        ("", IN_THE_STEP.to_owned())
    } else {
        let remedy = format!(
            "an administrator makes it with `nvidia-modprobe -c {minor}`, or with `systemctl enable \
             --now nvidia-persistenced` at each start"
        );
        (", which does not exist here", remedy)
    };
    let path = path.display();
    (format!("an open descriptor of {path}{missing}, the device file of GPU {uuid}"), remedy)
}

/// Where the driver puts the device file of a GPU; `None` if it has none.
fn path(gpu: &GpuFacts, devices: &Path) -> Option<PathBuf> {
    Some(devices.join(format!("nvidia{}", gpu.minor?)))
}

#[cfg(test)]
mod tests {
    use pfo_keeper::example_gpu;

    use super::*;

    #[test]
    fn a_gpu_is_open_through_its_own_device_file_only() {
        let directory = tempfile::tempdir().unwrap();
        let device = |minor: u32| {
            let path = directory.path().join(format!("nvidia{minor}"));
            std::fs::write(&path, "").unwrap();
            FileIdentity::of(&path).unwrap()
        };
        let [own, other] = [0, 1].map(device);
        let is_open = |gpu: &GpuFacts, open: &[_]| is_open(gpu, directory.path(), open);
        assert!(is_open(&example_gpu(), &[other, own]));
        assert!(!is_open(&example_gpu(), &[other]) && !is_open(&example_gpu(), &[]));
        let gone = GpuFacts { minor: Some(2), ..example_gpu() };
        let without = GpuFacts { minor: None, ..example_gpu() };
        assert!(!is_open(&gone, &[own, other]) && !is_open(&without, &[own, other]));
        let in_words = |gpu: &GpuFacts| in_words(gpu, directory.path());
        assert!(!in_words(&example_gpu()).0.contains("not exist"));
        assert!(in_words(&without).0.contains("the driver names none"));
        let (what, remedy) = in_words(&gone);
        assert!(what.contains("/nvidia2, which does not exist here"), "{what}");
        assert!(remedy.contains("`nvidia-modprobe -c 2`"), "{remedy}");
    }
}
