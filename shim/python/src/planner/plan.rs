//! One plan.

use pfo_planner::{Generation, KareusPayloads, LowtimePlan, PerStage, Schedule, replay};
use pfo_protocol::{ClockTable, PlannedUnit, Predicted};
use pyo3::prelude::*;

use crate::planner::Profile;
use crate::planner::error::{PlanError, refused};
use crate::planner::power::Flat;

/// One clock for every instruction of a step.
#[pyclass(frozen, module = "pfo_gpu._native")]
pub(crate) struct Plan(pub(crate) pfo_planner::Plan);

#[pymethods]
impl Plan {
    /// Reads a plan in any format. A profile is required for Python files only.
    #[staticmethod]
    #[pyo3(signature = (plan, profile, schedule))]
    fn from_bytes(plan: &[u8], profile: Option<&Profile>, schedule: &str) -> PyResult<Self> {
        let schedule: Schedule = schedule.parse().map_err(refused)?;
        match profile {
            Some(profile) => pfo_planner::Plan::from_bytes(plan, &profile.profile, schedule),
            None if LowtimePlan::is_likely(plan) => {
                return Err(PlanError::new_err(
                    "a Python file does not say what its plan is for; give the profile that it was \
                     made from, and its schedule: profile=\"profile.csv\", schedule=\"1f1b\" \
                     (--profile of pfoctl)",
                ));
            }
            None => pfo_planner::Plan::from_json(plan),
        }
        .map(Self)
        .map_err(refused)
    }

    /// The plan as text in a format.
    fn to_text(&self, format: &str) -> PyResult<String> {
        match format {
            "pfo" => self.0.to_json().map_err(refused),
            "lowtime" => Ok(self.0.to_lowtime(Generation::Clocks)),
            "zeus" => Ok(self.0.to_lowtime(Generation::Named)),
            "payloads" => self.0.to_kareus_payloads().map_err(refused),
            _ => Err(PlanError::new_err(format!(
                "format={format:?}; it is one of \"pfo\", \"lowtime\", \"zeus\" and \"payloads\""
            ))),
        }
    }

    /// The plan with the payloads of a file of Kareus.
    fn with_payloads(&self, payloads: &[u8]) -> PyResult<Self> {
        let payloads = KareusPayloads::from_bytes(payloads);
        payloads.and_then(|of| self.0.with_payloads(&of)).map(Self).map_err(refused)
    }

    /// Stage, instruction, microbatch and chunk of each payload, and that.
    fn payloads(&self) -> Vec<(u16, &'static str, u32, u16, String)> {
        let payloads = self.0.payloads.iter().map(|one| {
            let of = one.of;
            let (name, payload) = (of.instruction.name(), one.payload.to_string());
            (of.stage.0, name, of.microbatch.0, of.chunk.0, payload)
        });
        payloads.collect()
    }

    /// Seconds and joules of the plan's replay over a profile, at a P2P-blocking power or the plan's own.
    fn replay(
        &self,
        profile: &Profile,
        p2p_power: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(f64, f64)> {
        let given = p2p_power.map(Flat::given).transpose()?;
        let given = given.map(Flat::of_stages).transpose().map_err(refused)?;
        let power =
            given.map(PerStage::from).or_else(|| self.0.waiting_power()).ok_or_else(|| {
                PlanError::new_err("the plan does not say its P2P-blocking power; give p2p_power")
            })?;
        let replayed = replay(&profile.profile, &self.0, power).map_err(refused)?;
        Ok((replayed.iteration_time_s, replayed.iteration_energy_j))
    }

    /// The plan as a daemon takes it, as JSON.
    fn clock_table(&self) -> PyResult<String> {
        let predicted = self.0.predicted.map(|predicted| Predicted {
            time_s: predicted.iteration_time_s,
            energy_j: predicted.iteration_energy_j,
        });
        let unit = |(unit, mhz, wait_mhz)| PlannedUnit { unit, mhz, wait_mhz };
        let stages = self.0.clocks().map(|stage| stage.into_iter().map(unit).collect());
        let table = ClockTable::new(self.0.num_microbatches, predicted, stages.collect())
            .map_err(|error| PlanError::new_err(error.to_string()))?;
        serde_json::to_string(&table).map_err(|error| PlanError::new_err(error.to_string()))
    }

    /// Seconds and joules that the plan predicts.
    #[getter]
    fn predicted(&self) -> Option<(f64, f64)> {
        self.0.predicted.map(|p| (p.iteration_time_s, p.iteration_energy_j))
    }

    #[getter]
    fn gpu(&self) -> Option<&str> {
        self.0.gpu.as_deref()
    }

    #[getter]
    fn schedule(&self) -> &'static str {
        self.0.schedule.name()
    }

    #[getter]
    fn num_stages(&self) -> u16 {
        self.0.num_stages
    }

    #[getter]
    fn num_microbatches(&self) -> u32 {
        self.0.num_microbatches
    }

    /// Stage, instruction, microbatch, chunk and MHz, in the order in which each stage runs them.
    fn instructions(&self) -> Vec<(u16, &'static str, u32, u16, u32)> {
        let stages = self.0.stages.iter();
        stages
            .flat_map(|stage| {
                stage.instructions.iter().map(|planned| {
                    (
                        stage.stage.0,
                        planned.instruction.name(),
                        planned.microbatch.0,
                        planned.chunk.0,
                        planned.frequency_mhz.0,
                    )
                })
            })
            .collect()
    }
}
