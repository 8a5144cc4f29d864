//! What heat does: a GPU warms up with what it draws, draws more the warmer it is, and runs slower
//! when it is too hot.
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

/// The maximum operating temperature of an A100, in degrees Celsius: beyond it, software lowers clocks.
pub const MAX_OPERATING_C: u64 = 85;
/// The slowdown temperature of an A100, in degrees Celsius: from it on, hardware halves the clock.
pub const SLOWDOWN_C: u64 = 89;
/// Software lowers the highest clock by one for each tenth of a degree: enough to keep a GPU below
/// [`SLOWDOWN_C`] that is cooled at all.
const CLOCK_PER_MICROKELVIN: u64 = 100_000;

/// What keeps the clock of a hot GPU down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slowdown {
    /// By how many supported clocks software lowers the highest one.
    pub clocks: usize,
    /// Whether hardware halves it.
    pub hardware: bool,
}

/// How well a GPU is cooled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cooling {
    /// As well as in a server that works: it is never too hot.
    #[default]
    Good,
    /// So badly that software has to slow it down.
    Poor,
    /// Hardly at all: its hardware has to slow it down, too.
    Failed,
}

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
    /// Whether a GPU that is too hot runs slower.
    pub slows: bool,
}

impl Heat {
    /// None of it: the GPU is always as warm as its curves ask for.
    pub const NONE: Self = Self {
        around: Microcelsius(CURVES_AT_C as u64 * 1_000_000),
        millikelvin_per_watt: 0,
        time_constant_ns: TICK_NS,
        power_ppm_per_kelvin: 0,
        slows: false,
    };

    /// Cooling in a server that is made for GPUs with this default power limit: there they are 36 degrees
    /// warmer than the air, which is 0.09 K/W for the 400 W of an A100.
    #[must_use]
    pub fn in_a_server(limit: Milliwatts) -> Self {
        const WARMER_BY_MICROKELVIN: u64 = 36_000_000;
        Self {
            around: Microcelsius(28_000_000),
            millikelvin_per_watt: WARMER_BY_MICROKELVIN / u64::from(limit.0),
            time_constant_ns: 40_000_000_000,
            power_ppm_per_kelvin: 1_200,
            slows: false,
        }
    }

    /// The same GPU behind another cooling: where that is bad, in air of 45 degrees, and so that it would
    /// get to 97 or 145 degrees if it drew `limit` all the time.
    #[must_use]
    pub fn with(self, cooling: Cooling, limit: Milliwatts) -> Self {
        const AIR_C: u64 = 45;
        let towards = |celsius: u64| Self {
            around: Microcelsius(AIR_C * 1_000_000),
            millikelvin_per_watt: (celsius - AIR_C) * 1_000_000 / u64::from(limit.0),
            slows: true,
            ..self
        };
        match cooling {
            Cooling::Good => self,
            Cooling::Poor => towards(97),
            Cooling::Failed => towards(145),
        }
    }

    /// The temperature of a GPU that has worked for some minutes.
    #[must_use]
    pub fn when_warm(&self) -> Microcelsius {
        let celsius = if self.slows { MAX_OPERATING_C } else { CURVES_AT_C as u64 };
        Microcelsius(celsius * 1_000_000)
    }

    /// What keeps the clock down at a temperature.
    #[must_use]
    pub fn slowdown(&self, at: Microcelsius) -> Slowdown {
        if !self.slows {
            return Slowdown::default();
        }
        let beyond = at.0.saturating_sub(MAX_OPERATING_C * 1_000_000);
        Slowdown {
            clocks: (beyond / CLOCK_PER_MICROKELVIN) as usize,
            hardware: at.0 >= SLOWDOWN_C * 1_000_000,
        }
    }

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
        let heat = Heat::in_a_server(Milliwatts::from_watts(400.0));
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
        let heat = Heat::in_a_server(Milliwatts::from_watts(400.0));
        let power =
            |celsius: u64| heat.power(Milliwatts(100_000), Microcelsius(celsius * 1_000_000));
        assert_eq!(power(60), Milliwatts(100_000));
        assert_eq!(power(70), Milliwatts(101_200));
        assert_eq!(power(50), Milliwatts(98_800));
        assert_eq!(Heat::NONE.power(Milliwatts(5), Microcelsius(0)), Milliwatts(5));
    }

    #[test]
    fn a_badly_cooled_gpu_is_slowed_by_software_first_and_by_hardware_later() {
        let at = |heat: Heat, tenths: u64| heat.slowdown(Microcelsius(tenths * 100_000));
        let air = Heat::in_a_server(Milliwatts::from_watts(400.0));
        let poor = air.with(Cooling::Poor, Milliwatts(400_000));
        assert_eq!(at(poor, 850), Slowdown::default());
        assert_eq!(at(poor, 853), Slowdown { clocks: 3, hardware: false });
        assert_eq!(at(poor, 890), Slowdown { clocks: 40, hardware: true });
        assert_eq!(at(air, 1200), Slowdown::default());
        assert_eq!(poor.millikelvin_per_watt, 130);
    }
}
