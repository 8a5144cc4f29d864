//! How a trainer names its GPU.

use std::fmt;
use std::str::FromStr;

use pfo_protocol::{GpuUuid, NameError, PciBusId};

/// The GPU that a rank drives.
///
/// Read from text as a UUID (`GPU-6f2c…`), a PCI bus id (`0000:07:00.0`, in any of the usual
/// widths), or a CUDA ordinal (`cuda:1` or just `1`):
///
/// ```
/// # fn main() -> Result<(), pfo::GpuError> {
/// let gpu: pfo::Gpu = "0000:0a:00.0".parse()?;
/// assert_eq!(gpu.to_string(), "00000000:0A:00.0");
/// assert_eq!("cuda:1".parse::<pfo::Gpu>()?, pfo::Gpu::CudaOrdinal(1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpu {
    /// By its UUID as the driver gives it.
    Uuid(GpuUuid),
    /// By its PCI bus id as the driver gives it.
    PciBusId(PciBusId),
    /// By its number within this process, as CUDA counts. The session finds out which GPU that is:
    /// it asks CUDA if the process has initialized it, else it reads `CUDA_VISIBLE_DEVICES` and the
    /// daemon's list of GPUs, and has a [`Problem`](crate::Problem) where those leave any doubt.
    CudaOrdinal(u32),
}

/// Why a text names no GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The text is not in any form that names a GPU.
    #[error(
        "{0:?} names no GPU; give a UUID (GPU-…), a PCI bus id (0000:07:00.0) or a CUDA ordinal (cuda:0)"
    )]
    Unknown(String),
    /// It names a MIG instance.
    #[error(
        "{0:?} is a MIG instance, whose clocks belong to all instances of its GPU; \
         pfo needs a whole GPU"
    )]
    Mig(String),
    /// It has a character or a length that a name may not have.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl FromStr for Gpu {
    type Err = GpuError;

    fn from_str(text: &str) -> Result<Self, GpuError> {
        let text = text.trim();
        let unknown = || GpuError::Unknown(text.to_owned());
        if text.starts_with("MIG-") {
            return Err(GpuError::Mig(text.to_owned()));
        }
        if text.starts_with("GPU-") {
            return Ok(Self::Uuid(text.parse()?));
        }
        let ordinal = text.strip_prefix("cuda:").unwrap_or(text);
        if !ordinal.is_empty() && ordinal.bytes().all(|b| b.is_ascii_digit()) {
            return ordinal.parse().map(Self::CudaOrdinal).map_err(|_| unknown());
        }
        let bus_id = nvml_bus_id(text).ok_or_else(unknown)?;
        Ok(Self::PciBusId(bus_id.parse()?))
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => uuid.fmt(f),
            Self::PciBusId(id) => id.fmt(f),
            Self::CudaOrdinal(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// A bus id in the way that NVML prints it, `00000000:0A:00.0`. The kernel writes a domain of four
/// digits, CUDA and `lspci` lower-case digits, and `lspci` often no domain at all.
fn nvml_bus_id(text: &str) -> Option<String> {
    let (address, function) = text.rsplit_once('.')?;
    let (rest, device) = address.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    let hex = |digits: &str, widest: usize| {
        let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
        let number = (plain && digits.len() <= widest).then(|| u32::from_str_radix(digits, 16));
        number.and_then(Result::ok)
    };
    Some(format!(
        "{:08X}:{:02X}:{:02X}.{:X}",
        hex(domain, 8)?,
        hex(bus, 2)?,
        hex(device, 2)?,
        hex(function, 1)?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usual_way_to_write_a_bus_id_becomes_the_drivers_way() {
        for text in ["00000000:0A:00.0", "0000:0a:00.0", "0a:00.0", " 0000:0a:0.0 "] {
            let gpu: Gpu = text.parse().unwrap();
            assert_eq!(gpu, Gpu::PciBusId("00000000:0A:00.0".parse().unwrap()));
        }
        let gpu: Gpu = "00010000:c1:00.0".parse().unwrap();
        assert_eq!(gpu.to_string(), "00010000:C1:00.0");
    }

    #[test]
    fn an_ordinal_is_read_with_and_without_its_prefix() {
        assert_eq!("cuda:3".parse(), Ok(Gpu::CudaOrdinal(3)));
        assert_eq!("12".parse(), Ok(Gpu::CudaOrdinal(12)));
    }

    #[test]
    fn what_names_no_gpu_is_refused_with_the_ways_that_do() {
        for text in
            ["", "cuda:", "cuda:x", "-1", "nvidia0", "00:1.", ":.", "1:2:3:4.5", "99999999999"]
        {
            let error = text.parse::<Gpu>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} names no GPU")), "{error}");
            assert!(error.contains("CUDA ordinal"), "{error}");
        }
    }

    #[test]
    fn a_mig_instance_is_refused_with_the_reason() {
        let error = "MIG-1234".parse::<Gpu>().unwrap_err().to_string();
        assert!(error.contains("whole GPU"), "{error}");
    }

    #[test]
    fn a_uuid_with_a_stray_character_is_refused() {
        let error = "GPU-12 34".parse::<Gpu>().unwrap_err().to_string();
        assert!(error.contains("' '"), "{error}");
    }
}
