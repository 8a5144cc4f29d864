//! Which SM and memory clocks a model supports, and what becomes of a lock between them.

use crate::model::{ClockStep, ModelFacts};
use crate::units::Mhz;

/// A lowest and a highest clock, as given to the lock functions: `min <= max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockRange {
    /// The lowest.
    pub min: Mhz,
    /// The highest.
    pub max: Mhz,
}

impl ClockRange {
    /// Both ends the same.
    pub fn exactly(clock: Mhz) -> Self {
        Self { min: clock, max: clock }
    }
}

/// Below this memory clock a board with GDDR memory reaches no higher SM clock than
/// [`LOW_MEMORY_HIGHEST_MHZ`].
const LOW_MEMORY_MHZ: u32 = 405;
const LOW_MEMORY_HIGHEST_MHZ: u32 = 420;

impl ModelFacts {
    /// All SM clocks, ascending.
    pub fn sm_clocks(&self) -> Vec<Mhz> {
        match self.step {
            ClockStep::Fifteen => {
                (self.lowest_mhz..=self.highest_mhz).step_by(15).map(Mhz).collect()
            }
            ClockStep::SevenAndAHalf => (self.lowest_mhz * 2..=self.highest_mhz * 2)
                .step_by(15)
                .map(|x| Mhz(x / 2))
                .collect(),
        }
    }

    /// SM clocks that go with a memory clock, descending as NVML lists them; `None` if there is no
    /// such memory clock.
    pub fn sm_clocks_at(&self, memory: Mhz) -> Option<Vec<Mhz>> {
        if !self.memory_mhz.contains(&memory.0) {
            return None;
        }
        let mut clocks = self.sm_clocks();
        if memory.0 <= LOW_MEMORY_MHZ {
            clocks.retain(|clock| clock.0 <= LOW_MEMORY_HIGHEST_MHZ);
        }
        clocks.reverse();
        Some(clocks)
    }

    /// The highest SM clock that is not above the given one; the lowest of all if none is.
    pub fn sm_clock_at_most(&self, clock: Mhz) -> Mhz {
        let clock = clock.0.clamp(self.lowest_mhz, self.highest_mhz);
        match self.step {
            ClockStep::Fifteen => Mhz(clock - (clock - self.lowest_mhz) % 15),
            ClockStep::SevenAndAHalf => {
                // The half that was dropped is given back first, or 142 would become 135.
                let doubled = clock * 2 + 1;
                Mhz((doubled - (doubled - self.lowest_mhz * 2) % 15) / 2)
            }
        }
    }

    /// The lock that the driver makes of a wish: into the range, and down onto a supported clock.
    pub fn snap_sm(&self, wish: ClockRange) -> ClockRange {
        ClockRange { min: self.sm_clock_at_most(wish.min), max: self.sm_clock_at_most(wish.max) }
    }

    /// The highest memory clock.
    pub fn highest_memory(&self) -> Mhz {
        Mhz(self.memory_mhz.iter().copied().max().unwrap_or(0))
    }

    /// The highest memory clock within the locked range; where none is, the lowest of all.
    pub fn snap_memory(&self, wish: ClockRange) -> Mhz {
        let within = self.memory_mhz.iter().copied().filter(|&clock| clock <= wish.max.0).max();
        Mhz(within.or(self.memory_mhz.iter().copied().min()).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::GpuModel;

    fn table(model: GpuModel) -> Vec<u32> {
        model.facts().sm_clocks().into_iter().map(|clock| clock.0).collect()
    }

    #[test]
    fn most_models_step_by_fifteen_megahertz() {
        for (model, highest, count) in [
            (GpuModel::A100, 1410, 81),
            (GpuModel::A40, 1740, 103),
            (GpuModel::Rtx3090, 2100, 127),
            (GpuModel::A6000, 2100, 127),
            (GpuModel::H100, 1980, 110),
            (GpuModel::H200, 1980, 110),
        ] {
            let clocks = table(model);
            let lowest = if count == 110 { 345 } else { 210 };
            assert_eq!(
                (clocks[0], *clocks.last().unwrap(), clocks.len()),
                (lowest, highest, count)
            );
            assert!(clocks.windows(2).all(|pair| pair[1] - pair[0] == 15));
        }
    }

    #[test]
    fn a_v100_steps_by_seven_and_eight_in_turn() {
        let clocks = table(GpuModel::V100);
        assert_eq!(&clocks[..4], [135, 142, 150, 157]);
        assert_eq!(&clocks[clocks.len() - 4..], [1507, 1515, 1522, 1530]);
        assert_eq!(clocks.len(), 187);
    }

    #[test]
    fn a_wish_between_two_clocks_goes_down_and_a_supported_clock_stays() {
        for model in GpuModel::ALL {
            let facts = model.facts();
            let clocks = facts.sm_clocks();
            for pair in clocks.windows(2) {
                for wish in pair[0].0..pair[1].0 {
                    assert_eq!(facts.sm_clock_at_most(Mhz(wish)), pair[0], "{model:?}");
                }
            }
            assert_eq!(facts.sm_clock_at_most(Mhz(0)), clocks[0]);
            assert_eq!(facts.sm_clock_at_most(Mhz(9999)), facts.highest());
        }
    }

    #[test]
    fn the_lowest_memory_clock_of_a_gddr_board_allows_only_low_sm_clocks() {
        let facts = GpuModel::Rtx3090.facts();
        assert_eq!(facts.sm_clocks_at(Mhz(405)).unwrap()[0], Mhz(420));
        assert_eq!(facts.sm_clocks_at(Mhz(810)).unwrap()[0], Mhz(2100));
        assert_eq!(facts.sm_clocks_at(Mhz(811)), None);
        assert_eq!(facts.snap_memory(ClockRange::exactly(Mhz(9600))), Mhz(9501));
        assert_eq!(facts.snap_memory(ClockRange::exactly(Mhz(1))), Mhz(405));
    }
}
