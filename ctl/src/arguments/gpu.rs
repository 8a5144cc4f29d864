//! A GPU as people name it: by UUID or the beginning of one, PCI bus id, or index.
//!
//! The protocol knows no index, because `CUDA_VISIBLE_DEVICES` renumbers GPUs. A person reads
//! indices in `pfoctl status`, and they are resolved here, in the driver's order.

use std::str::FromStr;

use pfo_protocol::{GpuListing, GpuName, GpuUuid, NameError};

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
    /// Its place in the driver's order.
    Index(usize),
    /// A whole name, or a part of one.
    Name(GpuName),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum GpuArgumentError {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("this node has no GPU {index}: its {count} GPUs are numbered from 0")]
    NoSuchIndex { index: usize, count: usize },
    #[error("{number} is neither a job nor a GPU: this node's {count} GPUs are numbered from 0")]
    Neither { number: usize, count: usize },
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
            Self::Neither { .. } => {
                Some("`pfoctl status` shows the jobs and the GPUs of this node".to_owned())
            }
            Self::Both { number } => Some(format!("say job:{number} or gpu:{number}")),
        }
    }
}

impl FromStr for GpuArgument {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if let Ok(index) = text.parse() {
            return Ok(Self::Index(index));
        }
        text.trim_start_matches('…').parse().map(Self::Name)
    }
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
            part => part.find(&pfod.gpus()?),
        }
    }

    /// The GPU's UUID, for what takes no other name.
    pub(crate) fn uuid(&self, pfod: &mut Connection<Pfod>) -> Result<GpuUuid, GpuArgumentError> {
        self.uuid_among(&pfod.gpus()?)
    }

    /// The UUID of the one that is meant among these GPUs.
    pub(crate) fn uuid_among(&self, gpus: &[GpuListing]) -> Result<GpuUuid, GpuArgumentError> {
        let name = self.find(gpus)?;
        let is_meant = |gpu: &&GpuListing| match &name {
            GpuName::Uuid(uuid) => gpu.uuid == *uuid,
            GpuName::PciBusId(id) => gpu.pci_bus_id == *id,
        };
        let found = gpus.iter().find(is_meant).map(|gpu| gpu.uuid.clone());
        found.ok_or(GpuArgumentError::Unknown { name })
    }

    fn find(&self, gpus: &[GpuListing]) -> Result<GpuName, GpuArgumentError> {
        let named = |gpu: &GpuListing| GpuName::Uuid(gpu.uuid.clone());
        let part = match self {
            Self::Index(index) => {
                let (index, count) = (*index, gpus.len());
                let found = gpus.get(index).map(named);
                return found.ok_or(GpuArgumentError::NoSuchIndex { index, count });
            }
            Self::Name(name) => name,
        };
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
            [gpu] => Ok(named(gpu)),
            _ => Err(GpuArgumentError::Ambiguous { part: text, count: meant.len() }),
        }
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
        argument.find(&gpus).map(|name| name.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_gpu_is_found_by_index_and_by_a_unique_part_of_its_uuid() {
        assert_eq!(found("2").unwrap(), "GPU-77aa11aa-03");
        assert_eq!(found("GPU-77aa11aa").unwrap(), "GPU-77aa11aa-03");
        assert_eq!(found("GPU-5").unwrap(), "GPU-5");
        assert_eq!(found("…c11aa-02").unwrap(), "GPU-6f2c11aa-02");
    }

    #[test]
    fn what_names_several_gpus_or_none_is_refused_with_what_there_is() {
        let refused = ["GPU-6f2c11aa", "4"].map(|name| found(name).unwrap_err());
        insta::assert_snapshot!(refused.join("\n"));
    }

    #[test]
    fn a_part_that_is_too_short_or_unknown_is_left_to_pfod_to_refuse() {
        assert_eq!(found("GPU-77aa11a").unwrap(), "GPU-77aa11a");
        assert_eq!(found("GPU-00000000").unwrap(), "GPU-00000000");
    }
}
