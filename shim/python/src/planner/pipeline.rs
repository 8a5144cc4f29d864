//! What is planned for.

use pfo_planner::{Delays, Instruction, Order, Schedule, Settings};
use pyo3::prelude::*;

use crate::planner::Profile;
use crate::planner::error::{PlanError, refused};

/// A profile and the order in which its stages run their instructions.
#[pyclass(frozen, module = "pfo_gpu._native")]
pub(crate) struct Pipeline(pub(crate) pfo_planner::Pipeline);

#[pymethods]
impl Pipeline {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "a pipeline in one call, by keywords only")]
    #[pyo3(signature = (profile, *, microbatches, schedule, order, chunks, microbatch_group,
                        extra_warm_up, memory_limit, fixed, transfer_ms, switch_latency_ms, set_call_ms,
                        held_up_ms))]
    fn new(
        profile: &Profile,
        microbatches: Option<u32>,
        schedule: Option<&str>,
        order: Option<&[u8]>,
        chunks: u16,
        microbatch_group: Option<u32>,
        extra_warm_up: bool,
        memory_limit: Vec<u32>,
        fixed: Vec<String>,
        transfer_ms: f64,
        switch_latency_ms: f64,
        set_call_ms: f64,
        held_up_ms: f64,
    ) -> PyResult<Self> {
        let profile = &profile.profile;
        let delays = Delays {
            transfer_time_s: transfer_ms / 1e3,
            switch_latency_s: switch_latency_ms / 1e3,
            set_call_s: set_call_ms / 1e3,
            held_up_s: held_up_ms / 1e3,
            ..Delays::default()
        };
        let of = match order {
            Some(_) => Schedule::Custom,
            None => {
                schedule.map_or(Ok(Schedule::OneForwardOneBackward), str::parse).map_err(refused)?
            }
        };
        let settings = [
            ("chunks", chunks != Settings::default().chunks, Settings::OF_CHUNKS),
            ("microbatch_group", microbatch_group.is_some(), Settings::OF_MICROBATCH_GROUP),
            ("extra_warm_up", extra_warm_up, Settings::OF_MICROBATCH_GROUP),
            ("memory_limit", !memory_limit.is_empty(), Settings::OF_MEMORY_LIMITS),
        ];
        check_used(of, &settings)?;
        if let Some(order) = order {
            let fixed = (!fixed.is_empty()).then(|| fixed.join(","));
            for (name, given) in [("schedule", schedule), ("fixed", fixed.as_deref())] {
                if let Some(given) = given {
                    return Err(PlanError::new_err(format!(
                        "{name} is {given:?}, but the order says which instructions stages run; leave \
                         {name} out"
                    )));
                }
            }
            let order = Order::from_file(order).map_err(refused)?;
            let has = order.num_microbatches();
            if let Some(given) = microbatches.filter(|&given| given != has) {
                return Err(PlanError::new_err(format!(
                    "microbatches is {given}, but the order has {has}; leave microbatches out"
                )));
            }
            return order.pipeline(profile, delays).map(Self).map_err(refused);
        }
        let microbatches = microbatches.ok_or_else(|| {
            PlanError::new_err(
                "no profile says how many microbatches a step has; give microbatches",
            )
        })?;
        let fixed =
            fixed.into_iter().map(|name| name.parse()).collect::<Result<Vec<Instruction>, _>>();
        let settings = Settings {
            memory_limits: memory_limit,
            chunks,
            microbatch_group,
            extra_warm_up,
            delays,
            fixed: fixed.map_err(refused)?,
        };
        pfo_planner::Pipeline::with_settings(profile, of, microbatches, &settings)
            .map(Self)
            .map_err(refused)
    }
}

/// Refuses a setting that the schedule does not depend on.
fn check_used(of: Schedule, settings: &[(&str, bool, &[Schedule])]) -> PyResult<()> {
    for (name, is_given, schedules) in settings {
        if *is_given && !schedules.contains(&of) {
            let names: Vec<String> = schedules.iter().map(ToString::to_string).collect();
            return Err(PlanError::new_err(format!(
                "{name} changes nothing in schedule {of}: it is for {}; leave it out, or give that schedule",
                names.join(", ")
            )));
        }
    }
    Ok(())
}
