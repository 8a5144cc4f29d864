//! How far a prediction may be off what happens when the plan runs.
//!
//! A plan is made of the rows that look best, and some do by luck: what their neighbours in the
//! table say about them tells how much. Rows that scatter are uncertain, however they were chosen.
//! And the same plan on the same GPUs takes another time and energy a while later. All three widen
//! the interval; the first to one side only.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::error::PlanError;
use crate::noise::{level, predictions};
use crate::plan::Plan;
use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::profile::quantity::Quantity;
use crate::replay::{Replay, replay};
use crate::waits::per_stage::PerStage;
use crate::waits::power::PowerByClock;

/// The shares by which time and energy of a step differ when the same plan runs again later. Real
/// jobs on A100 and A40 differed by up to 0.9 % and 1.2 % between two windows in a row (the Perseus
/// artifact, see `docs/replay-and-reality.md`).
const LATER: [f64; 2] = [0.01, 0.012];

/// In standard deviations: how far luck and noise reach.
const REACH: f64 = 2.0;

/// Profiles that the measured one could have been as well.
const DRAWS: u32 = 24;

/// Where time and energy of a plan's instructions are expected on the GPUs that were profiled, from the
/// first one's start to the last one's end: the lower and the upper end. What a step takes beside them is
/// its [`Rest`](crate::Rest).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// In seconds.
    pub iteration_time_s: [f64; 2],
    /// In joules, of all stages.
    pub iteration_energy_j: [f64; 2],
}

/// The interval about the replay of a plan over a profile.
///
/// # Errors
/// Those of [`replay`].
pub fn interval(
    profile: &Profile,
    plan: &Plan,
    p2p_power: impl Into<PerStage<PowerByClock>>,
) -> Result<Interval, PlanError> {
    let p2p_power = p2p_power.into();
    let figures = |profile: &Profile| replay(profile, plan, &p2p_power).map(figures);
    let predicted = figures(profile)?;
    let without_luck = figures(&off(profile, &mut without_luck))?;
    let mut random = Rng::with_seed(0);
    let mut draws = Vec::new();
    for _ in 0..DRAWS {
        let mut drawn = |_| if random.bool() { 1.0 } else { -1.0 };
        draws.push(figures(&off(profile, &mut drawn))?);
    }
    let within = [figures(&fitted(profile, -REACH))?, figures(&fitted(profile, REACH))?];
    let [iteration_time_s, iteration_energy_j] = [0, 1].map(|of| {
        let mean = draws.iter().map(|draw| draw[of]).sum::<f64>() / f64::from(DRAWS);
        let squares: f64 = draws.iter().map(|draw| (draw[of] - mean).powi(2)).sum();
        let noise = REACH * (squares / f64::from(DRAWS)).sqrt();
        let ends = [predicted[of], without_luck[of], mean, within[0][of], within[1][of]];
        let lowest = ends.into_iter().fold(f64::INFINITY, f64::min);
        let highest = ends.into_iter().fold(f64::NEG_INFINITY, f64::max);
        let later = LATER[of] * predicted[of].abs();
        [(lowest - noise - later).max(0.0), highest + noise + later]
    });
    Ok(Interval { iteration_time_s, iteration_energy_j })
}

fn figures(replay: Replay) -> [f64; 2] {
    [replay.iteration_time_s, replay.iteration_energy_j]
}

/// A row that is less than its neighbours say owes that to luck, within reason.
fn without_luck(off: f64) -> f64 {
    (-off).clamp(0.0, REACH)
}

/// The profile with every row that was not repeated changed by this many of its deviations: what such a row says of a
/// deviation is within what it is known, and what was fitted is wrong everywhere alike.
fn fitted(profile: &Profile, deviations: f64) -> Profile {
    let mut changed = profile.clone();
    for table in profile.tables() {
        let repeats = table.repeats();
        let rows = changed.table_mut(table.stage, table.instruction).iter_mut();
        for (row, repeats) in rows.zip(repeats).filter(|(_, repeats)| repeats.count == 1) {
            row.time_s += deviations * repeats.time_sd_s.unwrap_or(0.0);
            row.energy_j += deviations * repeats.energy_sd_j.unwrap_or(0.0);
            row.energy_j = row.energy_j.max(0.0);
        }
    }
    changed.with_parts(profile.each_part(|own| fitted(own, deviations)))
}

/// The profile with every value changed by a number of its standard deviations, which `change` makes of
/// how many of them the value is off what its neighbours predict.
fn off(profile: &Profile, change: &mut impl FnMut(f64) -> f64) -> Profile {
    let mut changed = profile.clone();
    for table in profile.tables() {
        let factors = Quantity::BOTH.map(|quantity| {
            let Some(level) = level(table, quantity) else { return vec![1.0; table.rows.len()] };
            let expected = predictions(table.rows, quantity);
            let rows = table.rows.iter().zip(level).enumerate();
            let factor = |(index, (row, level)): (usize, (&Measurement, f64))| {
                let expected = expected.as_ref().map_or(quantity.of(row), |rows| rows[index]);
                let off =
                    if level > 0.0 { (quantity.of(row) / expected - 1.0) / level } else { 0.0 };
                1.0 + level * change(off)
            };
            rows.map(factor).collect::<Vec<f64>>()
        });
        let rows = changed.table_mut(table.stage, table.instruction).iter_mut();
        for (row, (time, power)) in rows.zip(factors[0].iter().zip(&factors[1])) {
            row.time_s *= time;
            row.energy_j *= time * power;
        }
    }
    changed.with_parts(profile.each_part(|own| off(own, change)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Pipeline;
    use crate::schedule::name::Schedule;
    use pfo_vocabulary::{Mhz, Watts};

    #[test]
    fn what_was_fitted_is_wrong_everywhere_alike() {
        let of = |sd: &str| {
            let mut csv =
                "stage,instruction,frequency,time,energy,count,time_sd,energy_sd\n".to_owned();
            for stage in 0..4 {
                for instruction in ["forward", "backward"] {
                    csv += &format!("{stage},{instruction},1410,0.05,20,1,0,{sd}\n");
                }
            }
            let profile = Profile::from_csv(csv.as_bytes()).unwrap();
            let pipeline = Pipeline::new(&profile, Schedule::GPipe, 4).unwrap();
            let frontier = crate::Frontier::optimize(
                &pipeline,
                Watts(0.0),
                crate::Options::default(),
                &|_| {},
            )
            .unwrap();
            frontier.interval(&frontier.plan(0).unwrap()).unwrap().iteration_energy_j
        };
        let exact = 4.0 * 2.0 * 4.0 * 20.0;
        assert_eq!(of("0").map(|joules| (joules / exact * 1000.0).round()), [988.0, 1012.0]);
        assert_eq!(of("1").map(|joules| (joules / exact * 1000.0).round()), [888.0, 1112.0]);
    }

    #[test]
    fn no_step_takes_less_than_nothing_however_its_instructions_scatter() {
        let csv = "stage,instruction,frequency,time,energy,count,time_sd,energy_sd\n\
                   0,forward,1410,0.05,20,20,0.2,80\n\
                   0,backward,1410,0.1,40,20,0.4,160\n";
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 1).unwrap();
        let found = interval(&profile, &pipeline.plan(|_| Mhz(1410)), Watts(80.0)).unwrap();
        for [low, high] in [found.iteration_time_s, found.iteration_energy_j] {
            assert!((0.0..high).contains(&low), "{found:?}");
        }
    }
}
