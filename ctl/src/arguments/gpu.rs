//! A GPU as people name it: by UUID or the beginning of one, PCI bus id, index, or device file.
//!
//! No request takes an index, because `CUDA_VISIBLE_DEVICES` renumbers GPUs. A person reads indices in
//! `pfoctl status`, and they are resolved here. They are the driver's: a lost GPU keeps its own, and
//! the others keep theirs. A scheduler counts device files: the number of one is no index.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use pfo_protocol::{GpuListing, GpuName, GpuStatus, GpuUuid, NameError};

use crate::daemons::{Connection, ConnectionError, Pfod};
use crate::exit::Exit;
use crate::explained::Explained;

/// The fewest characters of a UUID, after `GPU-`, that name a GPU.
const SHORTEST_PREFIX: usize = 8;

/// The length of a whole UUID with its `GPU-`.
const UUID_LENGTH: usize = 40;

/// A GPU that an argument names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GpuArgument {
    /// The driver's index.
    Index(usize),
    /// The device file.
    Device(DeviceFile),
    /// A whole name, or a part of one.
    Name(GpuName),
}

/// The device file of a GPU, by its number: that is all by which pfod and the kernel know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceFile(u32);

/// The text names no GPU.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoGpuName {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("{text:?} is no device file of a GPU, such as /dev/nvidia3")]
    Device { text: String },
}

/// The GPUs that a scheduler names.
#[derive(Args)]
pub(crate) struct GpuArguments {
    /// A GPU, by index, UUID, PCI bus id or device file; may be given several times
    #[arg(long, value_name = "GPU")]
    gpu: Vec<GpuArgument>,

    /// A GPU by its device file, such as /dev/nvidia3. Schedulers number GPUs by these files; the number
    /// may differ from the index that --gpu takes. May be given several times
    #[arg(long, value_name = "FILE")]
    device: Vec<DeviceFile>,
}

impl GpuArguments {
    pub(crate) fn all(&self) -> impl Iterator<Item = GpuArgument> {
        let devices = self.device.iter().copied().map(GpuArgument::Device);
        self.gpu.iter().cloned().chain(devices)
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum GpuArgumentError {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("this node has no GPU {index}: {there}")]
    NoSuchIndex { index: usize, there: Indices },
    #[error("GPU {index} cannot be used: the driver has lost it, or pfod cannot; {there}")]
    Lost { index: usize, there: Indices },
    #[error("no GPU that pfod can use has the device file {device}: {there}")]
    NoSuchDevice { device: DeviceFile, there: String },
    #[error("{number} is neither a job nor a GPU: {there}")]
    Neither { number: usize, there: Indices },
    #[error("{number} is a job and the index of a GPU")]
    Both { number: usize },
    #[error("this node has no GPU {name}")]
    Unknown { name: GpuName },
    #[error("{count} GPUs of this node have a UUID that begins or ends with {part}")]
    Ambiguous { part: String, count: usize },
}

impl Explained for GpuArgumentError {
    fn exit(&self) -> Exit {
        match self {
            Self::Connection(error) => error.exit(),
            Self::NoSuchIndex { .. }
            | Self::Lost { .. }
            | Self::NoSuchDevice { .. }
            | Self::Unknown { .. }
            | Self::Ambiguous { .. }
            | Self::Neither { .. }
            | Self::Both { .. } => Exit::Refused,
        }
    }

    fn remedy(&self) -> Option<String> {
        match self {
            Self::Connection(error) => error.remedy(),
            Self::NoSuchIndex { .. } | Self::Unknown { .. } | Self::Ambiguous { .. } => {
                Some("`pfoctl gpus` lists the GPUs with their whole names".to_owned())
            }
            Self::Lost { .. } | Self::NoSuchDevice { .. } => {
                Some("`pfoctl doctor` says what is wrong with GPUs".to_owned())
            }
            Self::Neither { .. } => {
                Some("`pfoctl status` shows the jobs and the GPUs of this node".to_owned())
            }
            Self::Both { number } => Some(format!("say job:{number} or gpu:{number}")),
        }
    }
}

impl FromStr for GpuArgument {
    type Err = NoGpuName;

    fn from_str(text: &str) -> Result<Self, NoGpuName> {
        if let Ok(index) = text.parse() {
            return Ok(Self::Index(index));
        }
        if text.contains('/') {
            return text.parse().map(Self::Device);
        }
        Ok(Self::Name(text.trim_start_matches('…').parse()?))
    }
}

impl FromStr for DeviceFile {
    type Err = NoGpuName;

    fn from_str(text: &str) -> Result<Self, NoGpuName> {
        let number = text.rsplit_once('/').and_then(|(_, file)| file.strip_prefix("nvidia"));
        let number = number.and_then(|number| number.parse().ok()).map(Self);
        number.ok_or_else(|| NoGpuName::Device { text: text.to_owned() })
    }
}

impl fmt::Display for DeviceFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "/dev/nvidia{}", self.0)
    }
}

impl DeviceFile {
    pub(crate) fn numbered(minor: u32) -> Self {
        Self(minor)
    }

    /// That of a GPU.
    pub(crate) fn of(gpu: &GpuStatus) -> Option<Self> {
        gpu.minor.map(Self)
    }

    /// The UUID of the GPU that has this file.
    fn uuid(self, gpus: &[GpuStatus]) -> Result<GpuUuid, GpuArgumentError> {
        let found = gpus.iter().find(|gpu| gpu.minor == Some(self.0)).map(|gpu| gpu.uuid.clone());
        found.ok_or_else(|| {
            let name = |gpu: &GpuStatus| Some(format!("GPU {} has {}", gpu.index, Self::of(gpu)?));
            let there: Vec<_> = gpus.iter().filter_map(name).collect();
            let there = if there.is_empty() { "none has one".to_owned() } else { there.join(", ") };
            GpuArgumentError::NoSuchDevice { device: self, there }
        })
    }
}

/// The indices that the GPUs of a node have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Indices(Vec<u32>);

impl Indices {
    pub(crate) fn up_to(count: u32) -> Self {
        Self((0..count).collect())
    }

    pub(crate) fn of(gpus: &[GpuStatus]) -> Self {
        Self(gpus.iter().map(|gpu| gpu.index).collect())
    }

    pub(crate) fn contain(&self, index: usize) -> bool {
        self.0.iter().any(|&other| other as usize == index)
    }

    /// Why none of them is this one.
    pub(crate) fn miss(self, index: usize) -> GpuArgumentError {
        let is_between = self.0.iter().any(|&other| other as usize > index);
        match is_between {
            true => GpuArgumentError::Lost { index, there: self },
            false => GpuArgumentError::NoSuchIndex { index, there: self },
        }
    }
}

impl fmt::Display for Indices {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(u32::to_string).collect();
        match &texts[..] {
            [] => formatter.write_str("there is none"),
            [one] => write!(formatter, "there is GPU {one}"),
            [first, .., last]
                if self.0.len() == (self.0[self.0.len() - 1] - self.0[0] + 1) as usize =>
            {
                write!(formatter, "there are GPUs {first} to {last}")
            }
            [others @ .., last] => {
                write!(formatter, "there are GPUs {} and {last}", others.join(", "))
            }
        }
    }
}

/// The UUID of the GPU that has this index of the driver's.
fn indexed(index: usize, gpus: &[GpuStatus]) -> Result<GpuUuid, GpuArgumentError> {
    let found = gpus.iter().find(|gpu| gpu.index as usize == index).map(|gpu| gpu.uuid.clone());
    found.ok_or_else(|| Indices::of(gpus).miss(index))
}

impl GpuArgument {
    /// The GPU's name in the protocol. A whole one is not looked up: `pfod` says it if there is no
    /// such GPU.
    pub(crate) fn resolve(&self, pfod: &mut Connection<Pfod>) -> Result<GpuName, GpuArgumentError> {
        match self {
            Self::Name(name @ GpuName::PciBusId(_)) => Ok(name.clone()),
            Self::Name(name @ GpuName::Uuid(uuid)) if uuid.as_str().len() >= UUID_LENGTH => {
                Ok(name.clone())
            }
            Self::Index(_) | Self::Device(_) => self.uuid(pfod).map(GpuName::Uuid),
            Self::Name(part) => find(part, &pfod.gpus()?),
        }
    }

    /// The GPU's UUID, for what takes no other name.
    pub(crate) fn uuid(&self, pfod: &mut Connection<Pfod>) -> Result<GpuUuid, GpuArgumentError> {
        match self {
            Self::Index(index) => indexed(*index, &pfod.status()?.gpus),
            Self::Device(device) => device.uuid(&pfod.status()?.gpus),
            Self::Name(name) => uuid_among(name, &pfod.gpus()?),
        }
    }
}

/// The UUID of the GPU that is meant among these.
pub(crate) fn uuid_among(part: &GpuName, gpus: &[GpuListing]) -> Result<GpuUuid, GpuArgumentError> {
    let name = find(part, gpus)?;
    let is_meant = |gpu: &&GpuListing| match &name {
        GpuName::Uuid(uuid) => gpu.uuid == *uuid,
        GpuName::PciBusId(id) => gpu.pci_bus_id == *id,
    };
    let found = gpus.iter().find(is_meant).map(|gpu| gpu.uuid.clone());
    found.ok_or(GpuArgumentError::Unknown { name })
}

/// The name that a whole name, or a part of one, stands for.
fn find(part: &GpuName, gpus: &[GpuListing]) -> Result<GpuName, GpuArgumentError> {
    let text = part.to_string();
    let digits = text.strip_prefix("GPU-").unwrap_or(&text).len();
    let is_meant = |gpu: &&GpuListing| {
        let uuid = gpu.uuid.as_str();
        digits >= SHORTEST_PREFIX && (uuid.starts_with(&text) || uuid.ends_with(&text))
    };
    if gpus.iter().any(|gpu| gpu.uuid.as_str() == text) {
        return Ok(part.clone());
    }
    let meant: Vec<_> = gpus.iter().filter(is_meant).collect();
    match meant[..] {
        [] => Ok(part.clone()),
        [gpu] => Ok(GpuName::Uuid(gpu.uuid.clone())),
        _ => Err(GpuArgumentError::Ambiguous { part: text, count: meant.len() }),
    }
}

/// The name in the protocol of a GPU that may have been left out.
pub(crate) fn resolve_option(
    gpu: Option<&GpuArgument>,
    pfod: &mut Connection<Pfod>,
) -> Result<Option<GpuName>, GpuArgumentError> {
    gpu.map(|gpu| gpu.resolve(pfod)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(uuids: &[&str]) -> Vec<GpuListing> {
        let listing = |uuid: &&str| GpuListing {
            uuid: uuid.parse().unwrap(),
            pci_bus_id: "00000000:07:00.0".parse().unwrap(),
            model: "A40".to_owned(),
        };
        uuids.iter().map(listing).collect()
    }

    fn found(text: &str) -> Result<String, String> {
        let gpus = gpus(&["GPU-6f2c11aa-01", "GPU-6f2c11aa-02", "GPU-77aa11aa-03", "GPU-5"]);
        let argument: GpuArgument = text.parse().unwrap();
        let GpuArgument::Name(name) = argument else { panic!("{argument:?} is an index") };
        find(&name, &gpus).map(|name| name.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_gpus_of_a_node_are_listed_by_the_drivers_indices() {
        let said = |indices: &[u32]| Indices(indices.to_vec()).to_string();
        assert_eq!(said(&[]), "there is none");
        assert_eq!(said(&[4]), "there is GPU 4");
        assert_eq!(said(&[0, 1, 2, 3]), "there are GPUs 0 to 3");
        assert_eq!(said(&[0, 2, 3]), "there are GPUs 0, 2 and 3");
    }

    #[test]
    fn an_index_between_those_of_other_gpus_is_a_lost_gpu() {
        let missed = |index| Indices(vec![0, 2, 3]).miss(index).to_string();
        assert_eq!(
            missed(1),
            "GPU 1 cannot be used: the driver has lost it, or pfod cannot; there are GPUs 0, 2 and 3"
        );
        assert_eq!(missed(4), "this node has no GPU 4: there are GPUs 0, 2 and 3");
    }

    #[test]
    fn a_device_file_is_named_by_its_path_and_a_number_is_an_index() {
        let device = |text: &str| text.parse::<DeviceFile>().ok();
        assert_eq!(device("/dev/nvidia3"), Some(DeviceFile(3)));
        for none in ["3", "nvidia3", "/dev/nvidiactl", "/dev/nvidia-1", "/dev/dri/card3"] {
            assert_eq!(device(none), None, "{none}");
        }
        let argument = |text: &str| text.parse::<GpuArgument>().unwrap();
        assert_eq!(argument("3"), GpuArgument::Index(3));
        assert_eq!(argument("/dev/nvidia3"), GpuArgument::Device(DeviceFile(3)));
        let wrong = "/dev/null".parse::<GpuArgument>().unwrap_err().to_string();
        assert_eq!(wrong, "\"/dev/null\" is no device file of a GPU, such as /dev/nvidia3");
    }

    #[test]
    fn a_gpu_is_found_by_a_unique_part_of_its_uuid() {
        assert_eq!(found("GPU-77aa11aa").unwrap(), "GPU-77aa11aa-03");
        assert_eq!(found("GPU-5").unwrap(), "GPU-5");
        assert_eq!(found("…c11aa-02").unwrap(), "GPU-6f2c11aa-02");
    }

    #[test]
    fn what_names_several_gpus_or_none_is_refused_with_what_there_is() {
        insta::assert_snapshot!(found("GPU-6f2c11aa").unwrap_err());
    }

    #[test]
    fn a_part_that_is_too_short_or_unknown_is_left_to_pfod_to_refuse() {
        assert_eq!(found("GPU-77aa11a").unwrap(), "GPU-77aa11a");
        assert_eq!(found("GPU-00000000").unwrap(), "GPU-00000000");
    }
}
