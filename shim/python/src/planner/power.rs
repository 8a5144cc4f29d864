//! What waiting draws, as Python says it.

use std::collections::HashMap;

use pfo_planner::{Mhz, PerStage, PlanError, PowerByClock, Watts};
use pyo3::exceptions::PyTypeError;
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
    /// # Errors
    /// It is of another type.
    pub(crate) fn given(p2p_power: &Bound<'_, PyAny>) -> PyResult<Self> {
        let written = "a number of watts, or a list with that of each stage";
        p2p_power.extract().map_err(|_| of_another_type(p2p_power, written))
    }

    pub(crate) fn of_stages(self) -> Result<PerStage<Watts>, PlanError> {
        match self {
            Self::All(watts) => Ok(Watts(watts).into()),
            Self::Each(watts) => PerStage::new(watts.into_iter().map(Watts).collect()),
        }
    }
}

impl Power {
    /// # Errors
    /// It is of another type.
    pub(crate) fn given(p2p_power: &Bound<'_, PyAny>) -> PyResult<Self> {
        let written = "a number of watts, watts by clock ({MHz: watts}), or a list with either for each stage";
        p2p_power.extract().map_err(|_| of_another_type(p2p_power, written))
    }

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

/// Names the argument, where the error of `PyO3` has variants of types here.
fn of_another_type(p2p_power: &Bound<'_, PyAny>, written: &str) -> PyErr {
    let shown = p2p_power.repr().map_or_else(|_| "?".into(), |repr| repr.to_string());
    PyTypeError::new_err(format!("p2p_power is {shown}; it must be {written}"))
}
