//! A GPU for tests, here and in other crates.

use pfo_vocabulary::{Mhz, Milliwatts};

use crate::gpu::GpuFacts;
use crate::power_limit::LimitRange;

/// A GPU for tests.
#[doc(hidden)]
#[must_use]
pub fn example_gpu() -> GpuFacts {
    GpuFacts {
        index: 0,
        uuid: "GPU-1".parse().unwrap(),
        pci_bus_id: "00000000:0A:00.0".parse().unwrap(),
        model: "A100".into(),
        sm_clocks: [210, 900, 1200, 1410].map(Mhz).into(),
        memory_clock: Some(Mhz(1215)),
        power_limits: Some(LimitRange {
            lowest: Milliwatts::of_watts(100),
            highest: Milliwatts::of_watts(400),
        }),
        default_power_limit: Some(Milliwatts::of_watts(400)),
        minor: Some(0),
    }
}
