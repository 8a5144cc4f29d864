//! How a simulated GPU is named: UUID, PCI bus id, serial number.

use std::fmt;
use std::str::FromStr;

use crate::random::SplitMix;

/// A GPU's UUID, written as NVML does: `GPU-` and a UUID of version 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuUuid {
    pub(crate) high: u64,
    pub(crate) low: u64,
}

/// Where a GPU is on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciBusId {
    /// Domain.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
}

impl GpuUuid {
    /// The UUID of a GPU of a state made with a seed: the same each time, another for each GPU.
    pub(crate) fn of(seed: u64, gpu: usize) -> Self {
        let mut random = SplitMix::new(seed ^ (gpu as u64 + 1).wrapping_mul(0xA24B_AED4_963E_E407));
        let (high, low) = (random.next_u64(), random.next_u64());
        Self {
            high: high & 0xFFFF_FFFF_FFFF_0FFF | 0x4000,
            low: low & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000,
        }
    }

    /// The serial number of a board: thirteen digits, as on data centre boards.
    pub(crate) fn serial(self) -> u64 {
        1_320_000_000_000 + self.low % 10_000_000_000
    }
}

/// The minor number of a GPU's device file, among so many GPUs. As on many boards, it is not the index.
pub(crate) fn minor(gpu: usize, count: usize) -> u32 {
    ((gpu + 1) % count) as u32
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (high, low) = (self.high, self.low);
        write!(
            f,
            "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xFFFF,
            high & 0xFFFF,
            low >> 48,
            low & 0xFFFF_FFFF_FFFF
        )
    }
}

impl PciBusId {
    /// The place of a GPU among so many. Buses descend, so that no order of places is that of indices.
    pub(crate) fn of(gpu: usize, count: usize) -> Self {
        const PER_DOMAIN: usize = 16;
        let place = count - 1 - gpu;
        let bus = 7 + 8 * (place % PER_DOMAIN) as u8;
        Self { domain: (place / PER_DOMAIN) as u16, bus, device: 0 }
    }

    /// With a domain of four digits, as older interfaces write it.
    pub fn short(self) -> String {
        format!("{:04X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    pub(crate) fn to_word(self) -> u32 {
        u32::from(self.domain) << 16 | u32::from(self.bus) << 8 | u32::from(self.device)
    }

    pub(crate) fn from_word(word: u32) -> Self {
        Self { domain: (word >> 16) as u16, bus: (word >> 8) as u8, device: word as u8 }
    }
}

impl fmt::Display for PciBusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }
}

/// The text is not a PCI bus id.
#[derive(Debug, PartialEq, Eq)]
pub struct NotABusId;

impl FromStr for PciBusId {
    type Err = NotABusId;

    /// Reads `[domain:]bus:device[.function]` in hexadecimal.
    fn from_str(text: &str) -> Result<Self, NotABusId> {
        let (text, function) = text.split_once('.').unwrap_or((text, "0"));
        let fields: Vec<_> = text.split(':').collect();
        let (domain, bus, device) = match fields[..] {
            [bus, device] => ("0", bus, device),
            [domain, bus, device] => (domain, bus, device),
            _ => return Err(NotABusId),
        };
        let field = |text: &str, highest: u32| {
            let value = u32::from_str_radix(text, 16).map_err(|_| NotABusId)?;
            if value <= highest { Ok(value) } else { Err(NotABusId) }
        };
        field(function, 0)?;
        Ok(Self {
            domain: field(domain, 0xFFFF)? as u16,
            bus: field(bus, 0xFF)? as u8,
            device: field(device, 0x1F)? as u8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn uuids_are_the_same_each_time_and_differ_between_gpus_and_seeds() {
        let uuid = |seed, gpu| GpuUuid::of(seed, gpu).to_string();
        assert_eq!(uuid(0, 0), uuid(0, 0));
        let all: HashSet<_> = (0..64).flat_map(|gpu| (0..8).map(move |seed| (seed, gpu))).collect();
        let names: HashSet<_> = all.iter().map(|&(seed, gpu)| uuid(seed, gpu)).collect();
        assert_eq!(names.len(), all.len());
        let name = uuid(0, 0);
        assert_eq!((name.len(), &name[..4], &name[18..19]), (40, "GPU-", "4"), "{name}");
    }

    #[test]
    fn minors_are_a_permutation_that_is_no_index_nor_its_own_inverse() {
        let minors = |count| (0..count).map(|gpu| minor(gpu, count)).collect::<Vec<_>>();
        assert_eq!((minors(1), minors(2), minors(4)), (vec![0], vec![1, 0], vec![1, 2, 3, 0]));
    }

    #[test]
    fn bus_ids_descend_and_are_read_back_in_all_their_forms() {
        assert_eq!(PciBusId::of(1, 2).to_string(), "00000000:07:00.0");
        assert_eq!(PciBusId::of(0, 2).to_string(), "00000000:0F:00.0");
        assert_eq!(PciBusId::of(0, 17).to_string(), "00000001:07:00.0");
        for gpu in 0..64 {
            let id = PciBusId::of(gpu, 64);
            assert_eq!(id.to_string().to_lowercase().parse(), Ok(id));
            assert_eq!(id.short().parse(), Ok(id));
            assert_eq!(PciBusId::from_word(id.to_word()), id);
        }
        assert_eq!("0f:00".parse(), Ok(PciBusId::of(0, 2)));
        for text in ["", "7", "0:7:0.1", "0:7:0:0", "0:100:0", "x:7:0"] {
            assert_eq!(text.parse::<PciBusId>(), Err(NotABusId), "{text}");
        }
    }
}
