//! GPUs that are kept below a power though their job runs at default clocks. Only pfo-agent asks for
//! that, for a power budget, and no swap ends it.

use pfo_protocol::{GpuUuid, JobStatus, Status};

/// A sentence for each such GPU of a job; none while the job changes, or runs what may have a limit.
pub(crate) fn kept_below(status: &Status, job: &JobStatus) -> Vec<String> {
    if job.plan.is_some() || job.swap_at_step.is_some() || job.measured_by.is_some() {
        return Vec::new();
    }
    let is_of_job = |uuid: &GpuUuid| job.ranks.iter().any(|rank| rank.gpu_uuid == *uuid);
    let gpus = status.gpus.iter().filter(|gpu| is_of_job(&gpu.uuid));
    let limited = gpus.filter_map(|gpu| Some((gpu.index, gpu.power_limit_w?)));
    let in_words = |(index, limit_w)| {
        format!(
            "GPU {index} is kept below {limit_w} W at default clocks, too, for a power budget; see \
             `pfoctl budget status`"
        )
    };
    limited.map(in_words).collect()
}
