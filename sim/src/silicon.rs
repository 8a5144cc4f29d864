//! How a GPU and its driver behave beyond the clocks and watts of the data sheet.
//!
//! [`GpuModel::silicon`] is what is published about real ones, or where nothing is, an assumption of
//! the right size; `sim/README.md` names the source of each. [`Silicon::IDEAL`] is the GPU that
//! software would like to have: every clock is held, every call has its time, every joule is
//! counted at once.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::heat::Heat;
use crate::model::GpuModel;
use crate::random::SplitMix;
use crate::sensor::Sensor;
use crate::units::{Mhz, Milliwatts};

const MS: u64 = 1_000_000;

/// A time that differs from one occasion to the next: log-normal, and never beyond bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Half of all are shorter, in ns.
    pub median_ns: u64,
    /// Standard deviation of the logarithm, in thousandths; 0 is always the median.
    pub spread_permille: u64,
}

impl Delay {
    /// The same time on every occasion.
    pub const fn always(ns: u64) -> Self {
        Self { median_ns: ns, spread_permille: 0 }
    }

    /// The time on an occasion.
    pub fn of(self, occasion: u64) -> u64 {
        if self.spread_permille == 0 {
            return self.median_ns;
        }
        let spread = self.spread_permille as f64 / 1e3 * SplitMix::new(occasion).next_normal();
        let (least, most) = (self.least_ns() as f64, self.median_ns as f64 * 6.0);
        (self.median_ns as f64 * spread.exp()).clamp(least, most) as u64
    }

    /// The shortest that it can be.
    pub fn least_ns(self) -> u64 {
        if self.spread_permille == 0 { self.median_ns } else { self.median_ns / 2 }
    }
}

/// How long a call that reads something takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// What the driver knows: clocks, power, temperature.
    pub usual_ns: u64,
    /// The energy counter.
    pub energy: Delay,
    /// What was set: limits and modes.
    pub settings_ns: u64,
    /// The processes on the GPU.
    pub processes_ns: u64,
    /// Whether it is in the way of other calls and of transfers.
    pub keep_the_driver: bool,
}

impl Reads {
    /// Calls that take no time.
    const NONE: Self = Self {
        usual_ns: 0,
        energy: Delay::always(0),
        settings_ns: 0,
        processes_ns: 0,
        keep_the_driver: true,
    };
}

/// What a GPU and its driver are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silicon {
    /// How long a call that sets something blocks.
    pub set_call: Delay,
    /// From the acceptance of a clock to the clock, if it is the model's highest.
    pub settling: Delay,
    /// How much longer that takes the lower the clock is: at 0 MHz by this many thousandths.
    pub settling_to_low_permille: u64,
    /// How long calls take that read something.
    pub reads: Reads,
    /// How often the energy counter is refreshed.
    pub energy_refresh_ns: u64,
    /// How long before a refresh ended what the energy counter shows then.
    pub energy_late_ns: u64,
    /// When the energy counter looks.
    pub sensor: Sensor,
    /// What heat does.
    pub heat: Heat,
    /// Whether work is slowed that would draw more than the default power limit.
    pub power_limit_binds: bool,
    /// Whether some locked clocks are held one step lower.
    pub beside_the_lock: bool,
    /// Whether a GPU that waits draws less at a lower clock.
    pub waits_follow_the_clock: bool,
    /// What the energy counter counts beside the GPU, on a module with a processor.
    pub module: Milliwatts,
    /// How much longer work takes while the memory clock is locked, in thousandths.
    pub memory_lock_slows_permille: u64,
    /// Standard deviation of the time of equal work, in millionths.
    pub time_noise_ppm: u64,
    /// Whether a transfer to a neighbour waits for calls that keep the driver.
    pub transfers_wait: bool,
}

impl Silicon {
    /// What software would like.
    pub const IDEAL: Self = Self {
        set_call: Delay::always(8 * MS),
        settling: Delay::always(15 * MS),
        settling_to_low_permille: 0,
        reads: Reads::NONE,
        energy_refresh_ns: 20 * MS,
        energy_late_ns: 0,
        sensor: Sensor::ALWAYS,
        heat: Heat::NONE,
        power_limit_binds: false,
        beside_the_lock: false,
        waits_follow_the_clock: false,
        module: Milliwatts(0),
        memory_lock_slows_permille: 0,
        time_noise_ppm: 0,
        transfers_wait: false,
    };

    /// A board for a data centre, of the years in which nearly all of them were measured.
    const DATA_CENTRE: Self = Self {
        set_call: Delay { median_ns: 12 * MS, spread_permille: 250 },
        settling: Delay { median_ns: 5 * MS, spread_permille: 200 },
        settling_to_low_permille: 2000,
        reads: Reads {
            usual_ns: 12_000,
            energy: Delay::always(12_000),
            settings_ns: 12_000,
            processes_ns: 4_500_000,
            keep_the_driver: true,
        },
        energy_refresh_ns: 100 * MS,
        energy_late_ns: 0,
        sensor: Sensor::ALWAYS,
        heat: Heat::NONE,
        power_limit_binds: true,
        beside_the_lock: true,
        waits_follow_the_clock: true,
        module: Milliwatts(0),
        memory_lock_slows_permille: 0,
        time_noise_ppm: 4000,
        transfers_wait: true,
    };

    /// When a clock that was accepted on some occasion is reached, in ns.
    pub fn settling_ns(&self, target: Mhz, highest: Mhz, occasion: u64) -> u64 {
        let below = 1.0 - f64::from(target.0.min(highest.0)) / f64::from(highest.0.max(1));
        let longer = 1.0 + self.settling_to_low_permille as f64 / 1e3 * below;
        (self.settling.of(occasion) as f64 * longer) as u64
    }
}

impl GpuModel {
    /// What is published about GPUs of this model and their drivers.
    pub fn silicon(self) -> Silicon {
        let heat = Heat::in_a_server(self.facts().default_power_limit());
        let usual = Silicon { heat, ..Silicon::DATA_CENTRE };
        match self {
            Self::V100 => Silicon { energy_refresh_ns: 20 * MS, ..usual },
            Self::A40 => Silicon { energy_refresh_ns: 20 * MS, transfers_wait: false, ..usual },
            Self::Rtx3090 | Self::A6000 => Silicon {
                energy_refresh_ns: 20 * MS,
                // A workstation board takes several hundred ms to a low clock.
                settling_to_low_permille: 30_000,
                ..usual
            },
            Self::A100 => Silicon { transfers_wait: false, ..usual },
            // As the GPU kit measured both (sim/facts).
            Self::H100 | Self::H200 => Silicon { energy_late_ns: 14 * MS, ..usual },
            Self::B200 => usual,
            Self::Gh200 => {
                Silicon { settling_to_low_permille: 30_000, module: Milliwatts(160_000), ..usual }
            }
        }
    }
}

/// Words of a [`SiliconCell`].
const WORDS: usize = 27;

/// The silicon of a GPU in the state file. Only written before anybody else can open the file.
#[repr(C)]
pub(crate) struct SiliconCell([AtomicU64; WORDS]);

impl SiliconCell {
    pub(crate) fn store(&self, silicon: &Silicon) {
        let Silicon { set_call, settling, reads, sensor, heat, .. } = *silicon;
        let words = [
            set_call.median_ns,
            set_call.spread_permille,
            settling.median_ns,
            settling.spread_permille,
            silicon.settling_to_low_permille,
            reads.usual_ns,
            reads.energy.median_ns,
            reads.energy.spread_permille,
            reads.settings_ns,
            reads.processes_ns,
            reads.keep_the_driver.into(),
            silicon.energy_refresh_ns,
            silicon.energy_late_ns,
            sensor.looks_ns,
            sensor.period_ns,
            heat.around.0,
            heat.millikelvin_per_watt,
            heat.time_constant_ns,
            heat.power_ppm_per_kelvin,
            heat.slows.into(),
            silicon.power_limit_binds.into(),
            silicon.beside_the_lock.into(),
            silicon.waits_follow_the_clock.into(),
            silicon.module.0.into(),
            silicon.memory_lock_slows_permille,
            silicon.time_noise_ppm,
            silicon.transfers_wait.into(),
        ];
        for (shared, word) in self.0.iter().zip(words) {
            shared.store(word, Ordering::Relaxed);
        }
    }

    pub(crate) fn load(&self) -> Silicon {
        let mut words = self.0.iter().map(|word| word.load(Ordering::Relaxed));
        let mut next = || words.next().unwrap_or(0);
        Silicon {
            set_call: Delay { median_ns: next(), spread_permille: next() },
            settling: Delay { median_ns: next(), spread_permille: next() },
            settling_to_low_permille: next(),
            reads: Reads {
                usual_ns: next(),
                energy: Delay { median_ns: next(), spread_permille: next() },
                settings_ns: next(),
                processes_ns: next(),
                keep_the_driver: next() != 0,
            },
            energy_refresh_ns: next(),
            energy_late_ns: next(),
            sensor: Sensor { looks_ns: next(), period_ns: next() },
            heat: Heat {
                around: crate::heat::Microcelsius(next()),
                millikelvin_per_watt: next(),
                time_constant_ns: next(),
                power_ppm_per_kelvin: next(),
                slows: next() != 0,
            },
            power_limit_binds: next() != 0,
            beside_the_lock: next() != 0,
            waits_follow_the_clock: next() != 0,
            module: Milliwatts(next() as u32),
            memory_lock_slows_permille: next(),
            time_noise_ppm: next(),
            transfers_wait: next() != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::array;

    #[test]
    fn it_is_the_same_after_a_way_through_shared_memory() {
        let cell = SiliconCell(array::from_fn(|_| AtomicU64::new(0)));
        for silicon in GpuModel::ALL.map(GpuModel::silicon).into_iter().chain([Silicon::IDEAL]) {
            cell.store(&silicon);
            assert_eq!(cell.load(), silicon);
        }
    }

    #[test]
    fn half_of_the_calls_are_shorter_than_the_median_and_some_much_longer() {
        let delay = Delay { median_ns: 12 * MS, spread_permille: 250 };
        let mut times: Vec<_> = (0..10_000).map(|occasion| delay.of(occasion)).collect();
        times.sort_unstable();
        assert!(times[5000].abs_diff(delay.median_ns) < MS / 2, "{}", times[5000]);
        assert!(times[0] >= delay.least_ns());
        // The 99th percentile of a log-normal distribution: exp(2.326 x 0.25).
        assert!(times[9900].abs_diff(21_480_000) < 2 * MS, "{}", times[9900]);
        assert_eq!(Delay::always(7).of(3), 7);
    }

    #[test]
    fn a_low_clock_takes_longer_to_reach_than_a_high_one() {
        for model in GpuModel::ALL {
            let (silicon, facts) = (model.silicon(), model.facts());
            let at = |clock| silicon.settling_ns(clock, facts.highest(), 5);
            assert_eq!(at(facts.highest()), silicon.settling.of(5));
            assert!(at(facts.lowest()) > 2 * at(facts.highest()), "{model:?}");
        }
    }
}
