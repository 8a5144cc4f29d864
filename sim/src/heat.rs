//! What heat does: a GPU warms up with what it draws, and draws more the warmer it is.
//!
//! A first-order model: the temperature strives for that of the air around plus a thermal resistance
//! times the power, with one time constant. It moves in ticks, at multiples of a tenth of a
//! second of the machine's time, so that it does not depend on how often somebody looks.

use crate::units::Milliwatts;

/// How often the temperature moves: short beside any time constant.
pub(crate) const TICK_NS: u64 = 100_000_000;

/// A temperature in millionths of a degree Celsius, none of which is below zero here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Microcelsius(pub u64);

impl Microcelsius {
    /// In whole degrees, as NVML gives it.
    pub fn degrees(self) -> u32 {
        (self.0 / 1_000_000) as u32
    }

    /// In degrees.
    pub fn celsius(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

/// The temperature at which work draws what its curve says, in degrees Celsius: that of a GPU that
/// has worked for some minutes.
pub const CURVES_AT_C: f64 = 60.0;

/// How a GPU is cooled, and what warmth costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heat {
    /// The temperature of the air around.
    pub around: Microcelsius,
    /// Thermal resistance in mK/W.
    pub millikelvin_per_watt: u64,
    /// How long it takes to come within 1/e of the temperature that it strives for.
    pub time_constant_ns: u64,
    /// How much more is drawn for each degree, in millionths.
    pub power_ppm_per_kelvin: u64,
}

impl Heat {
    /// None of it: the GPU is always as warm as its curves ask for.
    pub const NONE: Self = Self {
        around: Microcelsius(CURVES_AT_C as u64 * 1_000_000),
        millikelvin_per_watt: 0,
        time_constant_ns: TICK_NS,
        power_ppm_per_kelvin: 0,
    };

    /// Air cooling in a server.
    pub const AIR: Self = Self {
        around: Microcelsius(28_000_000),
        millikelvin_per_watt: 90,
        time_constant_ns: 40_000_000_000,
        power_ppm_per_kelvin: 1_200,
    };

    /// Whether power depends on it at all.
    pub(crate) fn matters(&self) -> bool {
        self.millikelvin_per_watt != 0
    }

    /// What is drawn at a temperature by something whose curve gives a power.
    pub fn power(&self, curve: Milliwatts, at: Microcelsius) -> Milliwatts {
        if self.power_ppm_per_kelvin == 0 {
            return curve;
        }
        let warmer = at.celsius() - CURVES_AT_C;
        Milliwatts::from_watts(
            curve.watts() * (1.0 + self.power_ppm_per_kelvin as f64 / 1e6 * warmer),
        )
    }

    /// The temperature after a tick in which the mean power was this.
    pub(crate) fn after_tick(&self, at: Microcelsius, power_w: f64) -> Microcelsius {
        let goal = self.around.0 as f64 + self.millikelvin_per_watt as f64 * 1e3 * power_w;
        let share = 1.0 - (-(TICK_NS as f64) / self.time_constant_ns as f64).exp();
        Microcelsius((at.0 as f64 + (goal - at.0 as f64) * share).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_at_work_warms_up_towards_its_power_times_the_resistance() {
        let heat = Heat::AIR;
        let mut temperature = heat.around;
        let ticks = heat.time_constant_ns / TICK_NS;
        for _ in 0..ticks {
            temperature = heat.after_tick(temperature, 400.0);
        }
        // 400 W through 0.09 K/W is 36 K, and after one time constant 1/e of that is missing.
        assert!((temperature.celsius() - (28.0 + 36.0 * 0.632)).abs() < 0.2, "{temperature:?}");
        for _ in 0..20 * ticks {
            temperature = heat.after_tick(temperature, 400.0);
        }
        assert!((temperature.celsius() - 64.0).abs() < 0.01, "{temperature:?}");
    }

    #[test]
    fn warmth_costs_power_and_cold_saves_it() {
        let power =
            |celsius: u64| Heat::AIR.power(Milliwatts(100_000), Microcelsius(celsius * 1_000_000));
        assert_eq!(power(60), Milliwatts(100_000));
        assert_eq!(power(70), Milliwatts(101_200));
        assert_eq!(power(50), Milliwatts(98_800));
        assert_eq!(Heat::NONE.power(Milliwatts(5), Microcelsius(0)), Milliwatts(5));
    }
}
