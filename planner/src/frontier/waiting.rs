//! Frontiers of plans whose waits have clocks of their own.

use pfo_vocabulary::Watts;

use crate::error::PlanError;
use crate::frontier::assembled::of_falling_energy;
use crate::frontier::clock_per::ClockPer;
use crate::frontier::optimize::Options;
use crate::frontier::{Frontier, Kept, Point};
use crate::parallel::in_parallel_and_say;
use crate::pipeline::Pipeline;
use crate::progress::Progress;
use crate::waits::per_stage::PerStage;
use crate::waits::power::PowerByClock;

impl Frontier {
    /// Makes plans as [`Frontier::with_clock_per`] does where waiting draws the same at every clock.
    /// Otherwise every wait that is long enough for two changes has the clock at which waiting draws
    /// least, and the energy of a plan is its replay with these clocks. The frontier's
    /// P2P-blocking power is that at the highest clock of the profile.
    ///
    /// The search knows one price of waiting, so it is made twice, at the price of waits that are
    /// too short and of those that are long. Neither is better for every pipeline: on four stages of
    /// six microbatches plans of the first take up to 1.7 % less energy, on eight stages of twelve
    /// those of the second up to 0.4 %.
    ///
    /// # Errors
    /// Those of [`Frontier::with_clock_per`].
    pub fn for_waiting(
        per: ClockPer,
        pipeline: &Pipeline,
        power: impl Into<PerStage<PowerByClock>>,
        options: Options,
        progress: &(dyn Fn(f64) + Sync),
    ) -> Result<Self, PlanError> {
        let (pipeline, power) = (&*pipeline.thinned(), &power.into());
        let rows = pipeline.profile().rows();
        let highest = rows.map(|(_, _, row)| row.frequency).max().unwrap_or_default();
        let short = power.at(|power| power.at(highest));
        let long = power.at(|power| power.at(power.cheapest()));
        if power.flat().is_some() {
            return Self::with_clock_per(per, pipeline, short, options, progress);
        }
        let half = Options { plans: options.plans.div_ceil(2), ..options };
        let mut plans = Vec::new();
        for (price, from) in [(&short, 0.0), (&long, 0.5)] {
            let progress = Progress::new(progress).part(from, from + 0.5);
            plans.extend(lowered(per, pipeline, (price, power), half, &progress)?);
        }
        let waiting_w = short.total_w(pipeline.profile().num_stages());
        let plans = of_falling_energy(plans, waiting_w);
        let frontier = Self::new(pipeline.clone(), short, None, plans)?;
        Ok(Self { wait_power: Some(power.clone()), clock_per: Some(per), ..frontier })
    }

    /// What waiting GPUs draw by clock, if waits of the plans have clocks of their own.
    pub fn wait_power(&self) -> Option<&PerStage<PowerByClock>> {
        self.wait_power.as_ref()
    }
}

/// The plans of a search at a price of waiting, replayed with clocks for their waits.
fn lowered(
    per: ClockPer,
    pipeline: &Pipeline,
    (price, power): (&PerStage<Watts>, &PerStage<PowerByClock>),
    options: Options,
    progress: &Progress<'_>,
) -> Result<Vec<Kept>, PlanError> {
    // The share of the work that is done before waits get their clocks.
    const MAKING: f64 = 0.9;
    let making = progress.part(0.0, MAKING);
    let say = |done| making.say(done);
    let made = Frontier::with_clock_per(per, pipeline, price, options, &say)?;
    let places: Vec<usize> = (0..made.plans.len()).collect();
    let replayed = |place: usize| -> Result<Kept, PlanError> {
        let predicted = made.plan(place)?.with_waits(pipeline.profile(), power)?.predicted;
        let kept = made.plans[place].clone();
        let point = predicted.map_or(kept.point, |predicted| Point {
            iteration_time_s: predicted.iteration_time_s,
            iteration_energy_j: predicted.iteration_energy_j,
        });
        Ok(Kept { point, ..kept })
    };
    let lowering = progress.part(MAKING, 1.0);
    let plans = in_parallel_and_say(&places, || (), |(), &place| replayed(place), &lowering);
    plans.into_iter().collect()
}
