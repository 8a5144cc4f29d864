//! What a lock of the memory clock does to the steps of a job: it runs some with and some without it,
//! in turns, there and back, so that GPUs that become warm meanwhile favour neither.

use pfo_protocol::{
    JobView, MemoryLock, Request, ShareMore, Status, TrialLength, TrialRun, TrialStep,
};

use crate::job::JobKey;
use crate::pfod::{Asker, Pfod, PfodError};
use crate::record::{self, Order, Spread};

const TURNS: [TrialRun; 4] =
    [TrialRun::DefaultClocks, TrialRun::FreeMemory, TrialRun::FreeMemory, TrialRun::DefaultClocks];

const LENGTH: TrialLength = TrialLength { settling_steps: 2, steps: 5 };

/// Whether the memory clock of a GPU of the job is locked.
pub(crate) fn is_locked(status: &Status, job: &JobView) -> bool {
    let mut locked = status.gpus.iter().filter(|gpu| gpu.memory_locked_mhz.is_some());
    locked.any(|gpu| job.ranks.iter().any(|rank| rank.gpu_uuid == gpu.uuid))
}

/// Measures it with some steps of the job, which runs at default clocks afterwards.
///
/// # Errors
/// If the job cannot be measured.
pub(crate) async fn measure(
    pfod: &Pfod,
    asker: Asker,
    job: &JobView,
) -> Result<MemoryLock, PfodError> {
    let key = JobKey::of(job);
    let mut hold = pfod.on_behalf(asker).await?;
    let (mut locked, mut free) = (Vec::new(), Vec::new());
    for run in TURNS {
        let steps = if run == TrialRun::FreeMemory { &mut free } else { &mut locked };
        let order = Order { run, length: LENGTH, room: None, after: None };
        steps.extend(record::run(pfod, &mut hold, &key, order).await?.0.trial.steps);
    }
    hold.ask(Request::TrialsEnd { job: key.selector(), keep: false }).await?;
    Ok(compare(&locked, &free))
}

fn compare(locked: &[TrialStep], free: &[TrialStep]) -> MemoryLock {
    let both = [locked, free];
    let [with, without] = both.map(|steps| steps.iter().map(|step| step.time_s).collect());
    let energies = both.map(|steps| steps.iter().map(|step| step.energy_j).collect());
    let [with_j, without_j]: [Option<Spread>; 2] = energies;
    let energy = with_j.zip(without_j).map(|(with, without)| more(&with, &without));
    // A counter that is not refreshed within a few short steps counts nothing for them.
    let energy = energy.filter(|more| more.share.is_finite() && more.error.is_finite());
    MemoryLock { time: more(&with, &without), energy }
}

/// How much more the one is in the mean, and the standard error of that.
fn more(one: &Spread, other: &Spread) -> ShareMore {
    let error = one.error_of_mean().hypot(other.error_of_mean());
    ShareMore { share: one.mean() / other.mean() - 1.0, error: error / other.mean() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(times_s: &[f64], energy_j: Option<f64>) -> Vec<TrialStep> {
        times_s.iter().map(|&time_s| TrialStep { time_s, energy_j }).collect()
    }

    #[test]
    fn a_lock_that_slows_steps_is_told_from_one_that_does_nothing() {
        let free = steps(&[1.0, 1.002, 0.998, 1.001], Some(200.0));
        let slow = compare(&steps(&[1.09, 1.1, 1.11, 1.1], Some(210.0)), &free);
        assert!((slow.time.share - 0.1).abs() < 0.002 && slow.time.is_sure(), "{slow:?}");
        assert!((slow.energy.unwrap().share - 0.05).abs() < 1e-9, "{slow:?}");
        let same = compare(&steps(&[1.001, 0.999, 1.003, 0.998], None), &free);
        assert!(!same.time.is_sure() && same.energy.is_none(), "{same:?}");
        let nothing = steps(&[0.01, 0.01, 0.01], Some(0.0));
        assert_eq!(compare(&nothing, &nothing).energy, None, "not a number, which no file keeps");
    }
}
