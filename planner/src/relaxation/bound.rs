//! The least energy for every iteration time, exactly: no plan can beat it.

use pfo_vocabulary::Watts;

use crate::choices::tradeoff::Tradeoffs;
use crate::pipeline::Pipeline;
use crate::progress::Progress;
use crate::relaxation::events::Events;
use crate::relaxation::{Piece, Relaxation};
use crate::waits::per_stage::PerStage;

/// The exact frontier of the relaxed problem, in which an instruction may mix clocks freely.
#[derive(Clone, Debug)]
pub struct LowerBound {
    /// From slow to fast.
    pieces: Vec<Piece>,
    /// Effective joules at the slow end and beyond it.
    least_j: f64,
    /// The power of all stages while they wait.
    idle: Watts,
    fastest_s: f64,
    slowest_s: f64,
}

impl LowerBound {
    /// Solves the relaxed problem for every iteration time at once.
    /// There is one P2P-blocking power, or one for each stage.
    pub fn new(pipeline: &Pipeline, p2p_power: impl Into<PerStage<Watts>>) -> Self {
        Self::and_say(pipeline, &p2p_power.into(), &Progress::new(&|_| {}))
    }

    pub(crate) fn and_say(
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
        progress: &Progress<'_>,
    ) -> Self {
        Self::of(pipeline, p2p_power, &Tradeoffs::new(pipeline, p2p_power), progress)
    }

    /// The same for tradeoffs that were not measured.
    pub(crate) fn of(
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
        tradeoffs: &Tradeoffs,
        progress: &Progress<'_>,
    ) -> Self {
        let events = Events::new(pipeline.network());
        let mut relaxation = Relaxation::new(&events, tradeoffs);
        let mut bound = Self::at_slow_end(pipeline, p2p_power, tradeoffs, &relaxation);
        while let Some(piece) = relaxation.advance() {
            bound.add(piece);
            progress.say(bound.solved());
        }
        bound
    }

    /// The iteration time of least energy, in seconds, if a second costs this power, in W. What is faster
    /// is not solved.
    pub(crate) fn cheapest_at_s(pipeline: &Pipeline, tradeoffs: &Tradeoffs, second_w: f64) -> f64 {
        let events = Events::new(pipeline.network());
        let mut relaxation = Relaxation::new(&events, tradeoffs);
        let mut cheapest_s = relaxation.slowest_s();
        while let Some(piece) = relaxation.advance().filter(|piece| piece.slope_w < second_w) {
            cheapest_s = piece.fast_s;
        }
        cheapest_s
    }

    pub(crate) fn at_slow_end(
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
        tradeoffs: &Tradeoffs,
        relaxation: &Relaxation,
    ) -> Self {
        Self {
            pieces: Vec::new(),
            least_j: tradeoffs.least_effective_j(),
            idle: Watts(p2p_power.total_w(pipeline.profile().num_stages())),
            fastest_s: relaxation.fastest_s(),
            slowest_s: relaxation.slowest_s(),
        }
    }

    /// The share of the range of times (0 to 1) that has its pieces.
    pub(crate) fn solved(&self) -> f64 {
        let range_s = (self.slowest_s - self.fastest_s).max(f64::MIN_POSITIVE);
        let reached_s = self.pieces.last().map_or(self.slowest_s, |piece| piece.fast_s);
        ((self.slowest_s - reached_s) / range_s).min(1.0)
    }

    /// Adds the next faster piece.
    pub(crate) fn add(&mut self, piece: Piece) {
        match self.pieces.last_mut() {
            Some(last) if last.slope_w == piece.slope_w => last.fast_s = piece.fast_s,
            _ => self.pieces.push(piece),
        }
    }

    /// The energy (J, waiting included) that every plan of this iteration time (s) takes at least.
    pub fn energy_j(&self, time_s: f64) -> f64 {
        let mut energy = self.least_j;
        for piece in &self.pieces {
            let saved_s = piece.slow_s - time_s.max(piece.fast_s);
            if saved_s <= 0.0 {
                break;
            }
            energy += saved_s * piece.slope_w;
        }
        energy + self.idle.0 * time_s
    }

    /// The fastest possible iteration time in seconds, too short by at most 1 ns per instruction.
    pub fn fastest_s(&self) -> f64 {
        self.fastest_s
    }

    /// The iteration time of least energy, in seconds.
    pub fn cheapest_s(&self) -> f64 {
        let worthwhile = self.pieces.iter().take_while(|piece| piece.slope_w < self.idle.0);
        worthwhile.last().map_or(self.slowest_s, |piece| piece.fast_s)
    }

    /// The iteration time in seconds beyond which more time saves nothing, even where the pipeline
    /// has to wait for something else.
    pub fn slowest_s(&self) -> f64 {
        self.slowest_s
    }

    /// The number of straight pieces of the frontier.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::power_law;

    #[test]
    fn every_second_less_costs_more_than_the_one_before() {
        let profile = power_law(&[1.0, 1.1, 0.9], [0.05, 0.1], 0.8, &(1000..=1400).step_by(40));
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 8).unwrap();
        let bound = LowerBound::new(&pipeline, Watts(80.0));
        assert!(bound.pieces() > 20);
        for pair in bound.pieces.windows(2) {
            assert_eq!(pair[0].fast_s, pair[1].slow_s);
            assert!(pair[0].slope_w < pair[1].slope_w);
        }
    }
}
