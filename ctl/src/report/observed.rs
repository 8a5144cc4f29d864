//! What the GPUs of a job do while the page is made: their clocks and power over some seconds.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::{GpuUuid, JobName, Uid};

use crate::daemons::Daemons;
use crate::error::Error;
use crate::plan::plot::Course;

/// How often to look: `pfod` reads a GPU anew for a look no more often than that.
const EVERY: Duration = Duration::from_millis(200);

/// Looks at the GPUs of a job for as long as this.
///
/// # Errors
/// If `pfod` does not answer.
pub(super) fn observe(
    daemons: &Daemons,
    (job, uid): (&JobName, Uid),
    length: Duration,
) -> Result<Vec<Course>, Error> {
    let mut courses = BTreeMap::<(u32, GpuUuid), Course>::new();
    let mut pfod = daemons.pfod()?;
    let began = Instant::now();
    while began.elapsed() < length {
        let status = pfod.status()?;
        let at_s = began.elapsed().as_secs_f64();
        for gpu in status.gpus {
            let is_of_job = gpu.holder.is_some_and(|held| held.job == *job && held.uid == uid);
            if !is_of_job {
                continue;
            }
            let course = courses.entry((gpu.index, gpu.uuid)).or_default();
            course.name = format!("GPU {}", gpu.index);
            course.mhz.extend(gpu.observed_mhz.map(|mhz| (at_s, f64::from(mhz.0))));
            course.power_w.extend(gpu.power_w.map(|power_w| (at_s, power_w)));
        }
        sleep(EVERY.min(length.saturating_sub(began.elapsed())));
    }
    Ok(courses.into_values().collect())
}
