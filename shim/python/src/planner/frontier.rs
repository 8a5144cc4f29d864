//! All plans of a pipeline.

use std::time::{Duration, Instant};

use pfo_planner::{
    ClockPer, Confidence, Due, Options, Outcome, PlanError, Point, Policy, Rest, Scatter, Spread,
    Stage, Watts, WrittenDeadline,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::planner::error::{self, refused};
use crate::planner::interruptible::interruptible;
use crate::planner::power::{Flat, Power};
use crate::planner::{Bound, Pipeline, Plan, Profile};

/// The plans of a pipeline, fastest first.
#[pyclass(frozen, module = "pfo_gpu._native")]
pub(crate) struct Frontier(pfo_planner::Frontier);

impl Frontier {
    fn due(&self, deadline: &str) -> PyResult<Due> {
        self.seconds(deadline).map(Due::Waiting)
    }
}

#[pymethods]
impl Frontier {
    /// Makes the plans. The power is that of waiting: at every clock or by clock, of all stages or of
    /// each.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "a search in one call, by keywords only")]
    #[pyo3(signature = (pipeline, *, p2p_power, site_power, plans, clock_per, gpu, progress))]
    fn optimize(
        py: Python<'_>,
        pipeline: &Pipeline,
        p2p_power: &pyo3::Bound<'_, PyAny>,
        site_power: f64,
        plans: usize,
        clock_per: &str,
        gpu: Option<String>,
        progress: Option<&pyo3::Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let power = Power::given(p2p_power)?.by_clock().map_err(refused)?;
        let pipeline = &pipeline.0;
        pipeline.profile().check_waiting(&power).map_err(refused)?;
        let per: ClockPer = clock_per.parse().map_err(refused)?;
        let options = Options { plans, spread: Spread::Useful };
        let progress = progress.map(|progress| progress.clone().unbind());
        let made = interruptible(py, progress.as_ref(), |report| {
            let made = pfo_planner::Frontier::for_waiting(per, pipeline, &power, options, report)?;
            made.with_site_power(Watts(site_power))
        })?;
        let mut made = made.map_err(refused)?;
        made.gpu = gpu;
        Ok(Self(made))
    }

    /// Makes only what the plan for one deadline is made from.
    #[staticmethod]
    #[pyo3(signature = (pipeline, *, deadline, p2p_power, site_power, clock_per, gpu))]
    fn about(
        py: Python<'_>,
        pipeline: &Pipeline,
        deadline: &str,
        p2p_power: &pyo3::Bound<'_, PyAny>,
        site_power: f64,
        clock_per: &str,
        gpu: Option<String>,
    ) -> PyResult<Self> {
        let power = Power::given(p2p_power)?.by_clock().map_err(refused)?;
        let pipeline = &pipeline.0;
        pipeline.profile().check_waiting(&power).map_err(refused)?;
        let per: ClockPer = clock_per.parse().map_err(refused)?;
        let written: WrittenDeadline = deadline.parse().map_err(refused)?;
        let made = interruptible(py, None, |report| {
            let what = (Watts(site_power), &written);
            pfo_planner::Frontier::about(per, pipeline, power, what, report)
        })?;
        let mut made = made.map_err(refused)?;
        made.gpu = gpu;
        Ok(Self(made))
    }

    /// The frontier of other plans for the pipeline of the first, replayed.
    #[staticmethod]
    #[pyo3(signature = (profile, plans, *, p2p_power, gpu))]
    fn of_plans(
        profile: &Profile,
        plans: Vec<PyRef<'_, Plan>>,
        p2p_power: &pyo3::Bound<'_, PyAny>,
        gpu: Option<String>,
    ) -> PyResult<Self> {
        let first = plans
            .first()
            .ok_or_else(|| error::PlanError::new_err("there is no plan; give some"))?;
        let pipeline = first.0.pipeline(&profile.profile).map_err(refused)?;
        let plans = plans.into_iter().map(|plan| plan.0.clone());
        let power = Flat::given(p2p_power)?.of_stages().map_err(refused)?;
        pfo_planner::Frontier::of_plans(&pipeline, power, gpu, plans).map(Self).map_err(refused)
    }

    #[staticmethod]
    fn from_bytes(frontier: &[u8]) -> PyResult<Self> {
        pfo_planner::Frontier::from_bytes(frontier).map(Self).map_err(refused)
    }

    pub(crate) fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<pyo3::Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.to_bytes()).map_err(refused)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Seconds and joules of the plans from the fastest to the one of least energy.
    fn points(&self) -> Vec<(f64, f64)> {
        self.0.points().map(pair).collect()
    }

    /// Seconds and joules of all plans, those for stragglers included.
    fn plans(&self) -> Vec<(f64, f64)> {
        self.0.plans().map(pair).collect()
    }

    fn __len__(&self) -> usize {
        self.0.plans().len()
    }

    /// The plan at a place in `plans()`.
    fn plan(&self, place: usize) -> PyResult<Plan> {
        self.0.plan(place).map(Plan).map_err(refused)
    }

    /// A deadline in seconds.
    pub(crate) fn seconds(&self, deadline: &str) -> PyResult<f64> {
        let written: WrittenDeadline = deadline.parse().map_err(refused)?;
        let deadline = self.0.deadline(&written).map_err(refused)?;
        Ok(self.0.seconds(deadline))
    }

    /// The plan of least energy with the wait until a deadline.
    fn plan_for(&self, py: Python<'_>, deadline: &str) -> PyResult<Plan> {
        let due = self.due(deadline)?;
        let plan = interruptible(py, None, |report| self.0.plan_for_and_say(due, report))?;
        plan.map(Plan).map_err(refused)
    }

    /// The same, in time with a confidence.
    fn plan_with_confidence(
        &self,
        py: Python<'_>,
        deadline: &str,
        confidence: &str,
    ) -> PyResult<Plan> {
        let due = self.due(deadline)?;
        let confidence: Confidence = confidence.parse().map_err(refused)?;
        let plan = py.detach(|| {
            let scatter = Scatter::of(self.0.pipeline().profile());
            self.0.plan_with_confidence(due, confidence, scatter)
        });
        plan.map(Plan).map_err(refused)
    }

    /// The same, improved for some seconds.
    fn polished(&self, py: Python<'_>, deadline: &str, polish_s: f64) -> PyResult<Plan> {
        let patience = Duration::try_from_secs_f64(polish_s).map_err(|error| {
            error::PlanError::new_err(format!("polish_s is {polish_s}: {error}"))
        })?;
        self.0.check_polishable().map_err(refused)?;
        let due = self.due(deadline)?;
        let began = Instant::now();
        let plan = interruptible(py, None, |report| {
            let plan = self.0.plan_for_and_say(due, report)?;
            self.0.polished(plan, due, |_| {
                report(began.elapsed().as_secs_f64() / polish_s);
                began.elapsed() < patience
            })
        })?;
        plan.map(Plan).map_err(refused)
    }

    /// The plans that another system considers, by the name of its policy; first the one that it
    /// would run.
    fn plans_of(&self, py: Python<'_>, policy: &str) -> PyResult<Vec<Plan>> {
        let all = Policy::all();
        let Some(found) = all.iter().find(|known| known.to_string() == policy) else {
            let names: Vec<String> = all.iter().map(Policy::to_string).collect();
            let names = names.join(", ");
            let unknown = format!("unknown policy {policy:?} (known: {names})");
            return Err(error::PlanError::new_err(unknown));
        };
        let (pipeline, power) = (self.0.pipeline(), self.0.p2p_power());
        let outcome = interruptible(py, None, |report| found.outcome(pipeline, power, report))?;
        let Outcome { mut plans, chosen, .. } = outcome.map_err(refused)?;
        plans[..=chosen].rotate_right(1);
        Ok(plans.into_iter().map(Plan).collect())
    }

    /// The joules of a plan with the wait until a time (s).
    fn energy_until_j(&self, plan: &Plan, until_s: f64) -> f64 {
        self.0.energy_until_j(&plan.0, until_s)
    }

    /// The ends of the intervals, in seconds and joules, in which the instructions of a plan are expected,
    /// or its step if one at the highest clocks was measured.
    fn interval(
        &self,
        py: Python<'_>,
        plan: &Plan,
        measured_step_s: Option<f64>,
    ) -> PyResult<([f64; 2], [f64; 2])> {
        let expected = py.detach(|| -> Result<_, PlanError> {
            let instructions = self.0.interval(&plan.0)?;
            let Some(step_s) = measured_step_s else { return Ok(instructions) };
            let power = self.0.waiting_power(&plan.0);
            let rest = Rest::of_step(step_s, self.0.pipeline().profile(), &plan.0, &power)?;
            Ok(rest.added_to(instructions))
        });
        let expected = expected.map_err(refused)?;
        Ok((expected.iteration_time_s, expected.iteration_energy_j))
    }

    fn bound(slf: Py<Self>, py: Python<'_>) -> PyResult<Bound> {
        let bound = interruptible(py, None, |report| slf.get().0.bound_and_say(report))?;
        Ok(Bound { bound, frontier: slf })
    }

    #[getter]
    fn gpu(&self) -> Option<&str> {
        self.0.gpu.as_deref()
    }

    #[getter]
    fn p2p_power_w(&self) -> f64 {
        self.0.p2p_power().mean().0
    }

    /// The P2P-blocking power of each stage.
    #[getter]
    fn p2p_power_by_stage_w(&self) -> Vec<f64> {
        let stages = (0..self.num_stages()).map(Stage);
        stages.map(|stage| self.0.p2p_power().of(stage).0).collect()
    }

    #[getter]
    fn site_power_w(&self) -> f64 {
        self.0.site_power().0
    }

    #[getter]
    fn schedule(&self) -> &'static str {
        self.0.pipeline().schedule().name()
    }

    #[getter]
    fn num_stages(&self) -> u16 {
        self.0.pipeline().profile().num_stages()
    }

    #[getter]
    fn num_microbatches(&self) -> u32 {
        self.0.pipeline().num_microbatches()
    }
}

fn pair(point: Point) -> (f64, f64) {
    (point.iteration_time_s, point.iteration_energy_j)
}
