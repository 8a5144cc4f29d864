//! What waiting draws, as Python says it.

use std::collections::HashMap;

use pfo_planner::{Mhz, PerStage, PlanError, PowerByClock, Watts};
use pyo3::prelude::*;

/// Watts at every clock, of all stages or of each.
#[derive(FromPyObject)]
pub(crate) enum Flat {
    All(f64),
    Each(Vec<f64>),
}

/// Watts at every clock or by clock in MHz, of all stages or of each.
#[derive(FromPyObject)]
pub(crate) enum Power {
    Flat(Flat),
    ByClock(HashMap<u32, f64>),
    EachByClock(Vec<HashMap<u32, f64>>),
}

impl Flat {
    pub(crate) fn of_stages(self) -> Result<PerStage<Watts>, PlanError> {
        match self {
            Self::All(watts) => Ok(Watts(watts).into()),
            Self::Each(watts) => PerStage::new(watts.into_iter().map(Watts).collect()),
        }
    }
}

impl Power {
    pub(crate) fn by_clock(self) -> Result<PerStage<PowerByClock>, PlanError> {
        let of = |points: HashMap<u32, f64>| {
            PowerByClock::new(points.into_iter().map(|(mhz, watts)| (Mhz(mhz), Watts(watts))))
        };
        match self {
            Self::Flat(flat) => flat.of_stages().map(PerStage::from),
            Self::ByClock(points) => of(points).map(PerStage::from),
            Self::EachByClock(each) => {
                PerStage::new(each.into_iter().map(of).collect::<Result<_, _>>()?)
            }
        }
    }
}
