//! Why a trial does not come to its end: a rank runs no steps, or ranks do not run them together.

use pfo_protocol::{JobStatus, RankStatus};

use crate::status::attention::misplaced;

/// Ranks of a pipeline are a step or two apart. Those that are further apart do not wait for each other.
const TOGETHER: u64 = 8;

/// In a sentence, of what the job's ranks on this node do.
pub(crate) fn why(job: &JobStatus) -> Option<String> {
    let idle = job.ranks.iter().find(|rank| rank.step.is_none());
    if let Some(rank) = idle {
        let why = match rank.misplaced_instructions {
            0 => "has begun no step".to_owned(),
            _ => misplaced(rank),
        };
        return Some(format!("rank {}: {why}", rank.rank));
    }
    let step = |rank: &&RankStatus| rank.step;
    let (first, last) = (job.ranks.iter().max_by_key(step)?, job.ranks.iter().min_by_key(step)?);
    let (ahead, behind) = (first.step?, last.step?);
    (ahead.saturating_sub(behind) > TOGETHER).then(|| {
        format!(
            "rank {} is at step {behind} and rank {} at step {ahead}: they do not wait for each other, and \
             clocks change at the same step of all ranks",
            last.rank, first.rank
        )
    })
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Status;

    use super::*;

    fn with_steps(steps: [Option<u64>; 4]) -> JobStatus {
        let status = include_str!("../../tests/golden/status.json");
        let mut job = serde_json::from_str::<Status>(status).unwrap().jobs.remove(0);
        job.ranks.iter_mut().zip(steps).for_each(|(rank, step)| rank.step = step);
        job
    }

    #[test]
    fn ranks_that_run_together_are_waited_for_without_a_word() {
        assert_eq!(why(&with_steps([Some(9), Some(8), Some(9), Some(10)])), None);
    }

    #[test]
    fn a_rank_without_steps_and_ranks_that_run_apart_are_named() {
        let mut idle = with_steps([Some(9), None, Some(9), Some(9)]);
        assert_eq!(why(&idle).unwrap(), "rank 1: has begun no step");
        idle.ranks[1].misplaced_instructions = 7;
        assert!(why(&idle).unwrap().starts_with("rank 1: 7 instructions began, but no step"));
        let apart = why(&with_steps([Some(9), Some(900), Some(9), Some(9)])).unwrap();
        assert!(apart.starts_with("rank 0 is at step 9 and rank 1 at step 900"), "{apart}");
    }
}
