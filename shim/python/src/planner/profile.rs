//! A measured profile.

use pfo_planner::{Combine, Noise, Treated, summarised, warnings};
use pyo3::prelude::*;

use crate::planner::error::refused;

/// A measured profile, its noise treated.
#[pyclass(frozen, module = "pfo_gpu._native")]
pub(crate) struct Profile {
    pub(crate) profile: pfo_planner::Profile,
    #[pyo3(get)]
    warnings: Vec<String>,
}

#[pymethods]
impl Profile {
    #[new]
    #[pyo3(signature = (csv, *, combine, noise))]
    fn new(csv: &[u8], combine: &str, noise: &str) -> PyResult<Self> {
        let combine: Combine = combine.parse().map_err(refused)?;
        let noise: Noise = noise.parse().map_err(refused)?;
        let measured = pfo_planner::Profile::from_csv_combined(csv, combine).map_err(refused)?;
        let Treated { profile, smoothed } = noise.treat(&measured);
        let warnings = summarised(&warnings(&measured, &smoothed));
        Ok(Self { profile, warnings })
    }

    #[getter]
    fn num_stages(&self) -> u16 {
        self.profile.num_stages()
    }

    fn to_csv(&self) -> String {
        self.profile.to_csv()
    }
}
