//! The order in which a job runs its instructions, under any plan. It takes only a tap of `pfod`,
//! so nothing about the job changes.

use std::collections::BTreeMap;
use std::time::Duration;

use pfo_protocol::{
    DaemonMessage, JobView, RanUnit, Rank, RankOrder, Refusal, RefusalCode, Request, Response,
    TapBatch, TapRecord,
};
use tokio::time::timeout;

use crate::job::JobKey;
use crate::pfod::{Pfod, PfodError, unexpected};

/// How long a whole step may take to come.
const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// Instructions that are kept of all ranks: a frame has room for as many.
const MOST: usize = 1 << 17;

/// Whole steps of a rank that wait for the other ranks to get there.
const MOST_STEPS: usize = 8;

/// What every rank of a job on this node ran in one step, of which nothing is missing.
///
/// # Errors
/// If no such step comes, a rank leaves, or its steps have too many instructions.
pub(crate) async fn own_order(pfod: &Pfod, job: &JobView) -> Result<Vec<RankOrder>, PfodError> {
    let key = JobKey::of(job);
    let mut connection = pfod.connect().await?;
    let tapped = match connection.ask(Request::Tap { job: key.selector(), counters: false }).await?
    {
        Response::Tapped(ranks) => ranks,
        other => return Err(unexpected(&other)),
    };
    let mut steps = Steps::of(tapped.iter().map(|tapped| tapped.rank));
    let whole = async {
        loop {
            match connection.next().await? {
                DaemonMessage::Tap(batch) => steps.take(batch).map_err(|why| refused(&key, why))?,
                other => return Err(unexpected(&other)),
            }
            if let Some(whole) = steps.whole() {
                return Ok(whole);
            }
        }
    };
    let late =
        || refused(&key, format!("no whole step within {} minutes", PATIENCE.as_secs() / 60));
    let whole = timeout(PATIENCE, whole).await.map_err(|_| late())??;
    let stage = |rank: Rank| {
        let view = job.ranks.iter().find(|view| view.position.rank == rank)?;
        Some(view.position.pp_rank)
    };
    let orders = whole
        .into_iter()
        .filter_map(|(rank, ran)| Some(RankOrder { rank, stage: stage(rank)?, ran }));
    Ok(orders.collect())
}

fn refused(key: &JobKey, why: impl std::fmt::Display) -> Refusal {
    let message = format!("the order of {key} is not known: {why}");
    Refusal::new(RefusalCode::LimitReached, message, "try again while it trains")
}

/// The whole steps of each rank.
struct Steps {
    ranks: BTreeMap<Rank, RankSteps>,
}

#[derive(Default)]
struct RankSteps {
    whole: BTreeMap<u64, Vec<RanUnit>>,
    /// The step that the rank is in, if its begin was seen and nothing of it is missing.
    under_way: Option<(u64, Vec<RanUnit>)>,
}

impl Steps {
    fn of(ranks: impl Iterator<Item = Rank>) -> Self {
        Self { ranks: ranks.map(|rank| (rank, RankSteps::default())).collect() }
    }

    fn take(&mut self, TapBatch { rank, lost, records }: TapBatch) -> Result<(), String> {
        let room = MOST.checked_div(self.ranks.len()).unwrap_or(MOST);
        let Some(steps) = self.ranks.get_mut(&rank) else { return Ok(()) };
        if lost > 0 {
            steps.under_way = None;
        }
        for record in records {
            match record {
                TapRecord::StepBegan { step, .. } => steps.under_way = Some((step, Vec::new())),
                TapRecord::Ran { unit, began_ns, ended_ns, .. } => {
                    let Some((_, ran)) = &mut steps.under_way else { continue };
                    ran.push(RanUnit { unit, began_ns, ended_ns });
                    if ran.len() > room {
                        return Err(format!(
                            "a step of rank {rank} has more than {room} instructions"
                        ));
                    }
                }
                TapRecord::StepEnded { .. } => {
                    if let Some((step, ran)) = steps.under_way.take() {
                        steps.whole.insert(step, ran);
                    }
                    if steps.whole.len() > MOST_STEPS {
                        steps.whole.pop_first();
                    }
                }
                TapRecord::Ended => return Err(format!("rank {rank} has left")),
                TapRecord::Counter(_) | TapRecord::TrialBegan { .. } => {}
            }
        }
        Ok(())
    }

    /// The first step that is whole on every rank.
    fn whole(&mut self) -> Option<Vec<(Rank, Vec<RanUnit>)>> {
        let first = self.ranks.values().next()?;
        let is_whole = |step: &&u64| self.ranks.values().all(|rank| rank.whole.contains_key(step));
        let step = *first.whole.keys().find(is_whole)?;
        let ran =
            |(rank, steps): (&Rank, &mut RankSteps)| Some((*rank, steps.whole.remove(&step)?));
        self.ranks.iter_mut().map(ran).collect()
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Instruction, Unit};

    use super::*;

    fn ran(microbatch: u32) -> TapRecord {
        let unit = Unit::new(Instruction::Forward, microbatch);
        TapRecord::Ran { unit, began_ns: 1, ended_ns: 2, asked: None, locked: None, astray: false }
    }

    fn began(step: u64) -> TapRecord {
        TapRecord::StepBegan { step, at_ns: 0, astray: false }
    }

    const ENDED: TapRecord = TapRecord::StepEnded { at_ns: 3, astray: false };

    fn take(steps: &mut Steps, rank: u32, lost: u64, records: &[TapRecord]) -> Result<(), String> {
        steps.take(TapBatch { rank: Rank(rank), lost, records: records.to_vec() })
    }

    #[test]
    fn a_step_counts_when_it_is_whole_on_every_rank() {
        let mut steps = Steps::of([0, 1].map(Rank).into_iter());
        take(&mut steps, 0, 0, &[ran(0), ENDED, began(5), ran(0), ran(1), ENDED, began(6), ran(0)])
            .unwrap();
        take(&mut steps, 1, 0, &[began(5), ran(0)]).unwrap();
        take(&mut steps, 1, 3, &[ENDED, began(6), ran(1), ENDED]).unwrap();
        assert!(steps.whole().is_none(), "rank 1 lost some of step 5");
        take(&mut steps, 0, 0, &[ENDED]).unwrap();
        let whole = steps.whole().unwrap();
        let units = |(rank, ran): &(Rank, Vec<RanUnit>)| {
            (rank.0, ran.iter().map(|ran| ran.unit.microbatch.0).collect::<Vec<_>>())
        };
        assert_eq!(whole.iter().map(units).collect::<Vec<_>>(), [(0, vec![0]), (1, vec![1])]);
    }

    #[test]
    fn neither_a_long_step_nor_many_of_them_take_more_memory_than_there_is_room() {
        let mut steps = Steps::of([0, 1].map(Rank).into_iter());
        for step in 0..100 {
            take(&mut steps, 0, 0, &[began(step), ran(0), ENDED]).unwrap();
        }
        assert_eq!(steps.ranks[&Rank(0)].whole.len(), MOST_STEPS);
        take(&mut steps, 1, 0, &[began(0)]).unwrap();
        let long = take(&mut steps, 1, 0, &vec![ran(0); MOST / 2 + 1]).unwrap_err();
        assert!(long.contains("more than 65536 instructions"), "{long}");
        assert!(take(&mut steps, 1, 0, &[TapRecord::Ended]).unwrap_err().contains("has left"));
    }
}
