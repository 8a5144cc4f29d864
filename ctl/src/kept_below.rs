//! Power limits by which pfo itself slows a job down, for a power budget. Only pfo-agent asks for them, and no
//! swap ends them.

use pfo_protocol::{GpuStatus, JobStatus, Status};

/// The GPUs of a job that are kept below a power; none while the job changes, or if its plan has limits of its own.
pub(crate) fn kept_below(status: &Status, job: &JobStatus) -> Option<String> {
    let has_own = job.plan.as_ref().is_some_and(|plan| !plan.power_limits_w.is_empty());
    if has_own || job.swap_at_step.is_some() || job.measured_by.is_some() {
        return None;
    }
    let is_of_job = |gpu: &&GpuStatus| job.ranks.iter().any(|rank| rank.gpu_uuid == gpu.uuid);
    let of_job = status.gpus.iter().filter(is_of_job);
    let limits: Vec<_> = of_job
        .filter_map(|gpu| Some(format!("GPU {} at {} W", gpu.index, gpu.power_limit_w?)))
        .collect();
    let (limits, name) = ((!limits.is_empty()).then(|| limits.join(", "))?, &job.job);
    Some(format!(
        "slowed down by pfo's own power limits, for a power budget: {limits}; `pfoctl budget explain {name}`"
    ))
}

#[cfg(test)]
mod tests {
    use pfo_protocol::PlanStatus;

    use super::*;

    #[test]
    fn a_job_under_limits_of_a_budget_is_said_to_be_slowed_by_them() {
        let mut status: Status =
            serde_json::from_str(include_str!("../tests/golden/status.json")).unwrap();
        let mut job = status.jobs.iter().find(|job| !job.ranks.is_empty()).unwrap().clone();
        (job.plan, job.swap_at_step, job.measured_by) = (None, None, None);
        job.ranks.truncate(1);
        job.ranks[0].gpu_uuid = status.gpus[0].uuid.clone();
        status.gpus[0].power_limit_w = None;
        assert_eq!(kept_below(&status, &job), None);
        status.gpus[0].power_limit_w = Some(147);
        let said = kept_below(&status, &job).unwrap();
        assert!(said.starts_with("slowed down by pfo's own power limits, for a power budget: "));
        assert!(said.contains("GPU 0 at 147 W; `pfoctl budget explain "), "{said}");
        job.swap_at_step = Some(7);
        assert_eq!(kept_below(&status, &job), None, "its plan of before may have had the limit");
        job.swap_at_step = None;
        job.plan = Some(PlanStatus {
            power_limits_w: vec![147],
            ..crate::status::measured::tests::plan(1)
        });
        assert_eq!(kept_below(&status, &job), None, "its own plan asks for the limit");
    }
}
