//! For how long a GPU's clock was kept down.

use serde::{Deserialize, Serialize};

/// NVML's counters `NVML_FI_DEV_CLOCKS_EVENT_REASON_…`: for how long each reason has kept a GPU's
/// clock down since its driver was loaded, in nanoseconds. What a driver does not count is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThrottledNs {
    /// Its power limit.
    pub sw_power_cap: Option<u64>,
    /// The slowest GPU of its group.
    pub sync_boost: Option<u64>,
    /// Heat, as the driver sees it.
    pub sw_thermal: Option<u64>,
    /// Heat, as the hardware sees it.
    pub hw_thermal: Option<u64>,
    /// An external brake, such as a power supply's.
    pub hw_power_brake: Option<u64>,
}

impl ThrottledNs {
    /// These counters, in the order of the fields.
    #[must_use]
    pub fn of(counters: [Option<u64>; 5]) -> Self {
        let [sw_power_cap, sync_boost, sw_thermal, hw_thermal, hw_power_brake] = counters;
        Self { sw_power_cap, sync_boost, sw_thermal, hw_thermal, hw_power_brake }
    }

    /// The counters, in the order of the fields.
    #[must_use]
    pub fn counters(self) -> [Option<u64>; 5] {
        let Self { sw_power_cap, sync_boost, sw_thermal, hw_thermal, hw_power_brake } = self;
        [sw_power_cap, sync_boost, sw_thermal, hw_thermal, hw_power_brake]
    }
}
