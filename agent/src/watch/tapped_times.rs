//! What the instructions of a job's ranks take and should take, added up from a tap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use pfo_protocol::{
    DaemonMessage, JobSelector, JobView, Mhz, Rank, Request, Response, SessionId, SettleTimes,
    Stage, TapBatch, TapRecord, TappedRank, Unit,
};
use pfo_service::lock;
use tokio::task::AbortHandle;

use crate::calibration::{Calibrations, Changes, Of};
use crate::pfod::{Pfod, PfodError, unexpected};
use crate::watch::own_times::{ClockTimes, OwnTimes, Taken};
use crate::watch::stage_times::{Late, StageTimes};

/// The profiled times of every stage.
pub(super) type Times = Arc<Vec<StageTimes>>;

/// Where taps come from, and where what they show of GPUs goes.
#[derive(Clone, Debug)]
pub(crate) struct Taps {
    pub(crate) pfod: Pfod,
    pub(crate) calibrations: Arc<Calibrations>,
}

/// The tap of a job, until this is dropped.
#[derive(Debug)]
pub(super) struct TappedTimes {
    ranks: BTreeSet<(Rank, SessionId)>,
    times: Times,
    sums: Arc<Sums>,
    task: AbortHandle,
}

type Sums = Mutex<BTreeMap<(Rank, SessionId), Tapped>>;

/// What a rank's instructions took and should have taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tapped {
    pub(crate) times: OwnTimes,
    pub(crate) clocks: ClockTimes,
}

impl Drop for TappedTimes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TappedTimes {
    /// Taps the ranks that a job has now.
    pub(super) fn open(
        Taps { pfod, calibrations }: &Taps,
        selector: JobSelector,
        job: &JobView,
        times: &Times,
    ) -> Self {
        let sums = Arc::<Sums>::default();
        let stages = job.ranks.iter().map(|rank| (rank.position.rank, rank.position.pp_rank));
        let stages: BTreeMap<Rank, Stage> = stages.collect();
        let shown = Shown {
            gpus: job
                .ranks
                .iter()
                .filter_map(|rank| Some((rank.position.rank, calibrations.of(job, rank)?)))
                .collect(),
            calibrations: Arc::clone(calibrations),
        };
        let tap = tap(pfod.clone(), selector, stages, Arc::clone(times), Arc::clone(&sums), shown);
        let task = tokio::spawn(async move {
            if let Err(why) = tap.await {
                tracing::debug!("a tap of a watched job ended: {why}");
            }
        });
        Self { ranks: ranks_of(job), times: Arc::clone(times), sums, task: task.abort_handle() }
    }

    /// Whether it still taps the ranks of a job, for these times.
    pub(super) fn is_of(&self, job: &JobView, times: &Times) -> bool {
        !self.task.is_finished() && self.ranks == ranks_of(job) && Arc::ptr_eq(&self.times, times)
    }

    /// The sums of a rank so far.
    pub(super) fn of(&self, rank: Rank, session: SessionId) -> OwnTimes {
        lock(&self.sums).get(&(rank, session)).map(|sum| sum.times).unwrap_or_default()
    }

    /// The same by clock.
    pub(super) fn by_clock(&self, rank: Rank, session: SessionId) -> ClockTimes {
        lock(&self.sums).get(&(rank, session)).map(|sum| sum.clocks.clone()).unwrap_or_default()
    }
}

/// Where what the clocks of ranks show of their GPUs goes.
struct Shown {
    calibrations: Arc<Calibrations>,
    gpus: BTreeMap<Rank, Of>,
}

fn ranks_of(job: &JobView) -> BTreeSet<(Rank, SessionId)> {
    job.ranks.iter().map(|rank| (rank.position.rank, rank.session)).collect()
}

async fn tap(
    pfod: Pfod,
    job: JobSelector,
    stages: BTreeMap<Rank, Stage>,
    times: Times,
    sums: Arc<Sums>,
    shown: Shown,
) -> Result<(), PfodError> {
    let mut connection = pfod.connect().await?;
    let tapped = match connection.ask(Request::Tap { job, counters: false }).await? {
        Response::Tapped(ranks) => ranks,
        other => return Err(unexpected(&other)),
    };
    let followed = |rank: TappedRank| (rank.rank, Followed::new(&rank));
    let mut ranks: BTreeMap<Rank, Followed> = tapped.into_iter().map(followed).collect();
    loop {
        let TapBatch { rank, records, .. } = match connection.next().await? {
            DaemonMessage::Tap(batch) => batch,
            other => return Err(unexpected(&other)),
        };
        let stage = stages.get(&rank).and_then(|stage| times.get(stage.index()));
        let (Some(followed), Some(stage)) = (ranks.get_mut(&rank), stage) else { continue };
        let mut sum = Tapped::default();
        records.iter().for_each(|record| followed.take(record, stage, &mut sum));
        let changes: Vec<_> =
            records.iter().filter_map(|record| followed.changes.take(record, stage)).collect();
        if let Some(of) = shown.gpus.get(&rank) {
            shown.calibrations.add(of, &changes);
        }
        let mut sums = lock(&sums);
        let all = sums.entry((rank, followed.session)).or_default();
        all.times.add_all(&sum.times);
        all.clocks.add_all(&sum.clocks);
    }
}

/// A rank whose clocks are followed.
pub(crate) struct Followed {
    session: SessionId,
    settle: SettleTimes,
    /// The locked clock, and when it was requested of the driver.
    locked: Option<(Mhz, u64)>,
    /// The clock before.
    before: Option<Mhz>,
    changes: Changes,
}

impl Followed {
    pub(crate) fn new(rank: &TappedRank) -> Self {
        Self {
            session: rank.session,
            settle: rank.settle.clone(),
            locked: None,
            before: None,
            changes: Changes::default(),
        }
    }

    pub(crate) fn take(&mut self, record: &TapRecord, times: &StageTimes, sum: &mut Tapped) {
        let &TapRecord::Ran { unit, began_ns, ended_ns, asked, locked, astray } = record else {
            return;
        };
        if locked != self.locked {
            self.before = self.locked.map(|(mhz, _)| mhz);
            self.locked = locked;
        }
        let in_force = asked.zip(locked).filter(|(asked, (mhz, _))| asked == mhz);
        if let Some((asked, (_, asked_ns))) = in_force.filter(|_| !astray) {
            self.add(times, sum, unit, asked, [began_ns, ended_ns, asked_ns]);
        }
    }

    fn add(
        &self,
        times: &StageTimes,
        sum: &mut Tapped,
        unit: Unit,
        asked: Mhz,
        [began_ns, ended_ns, asked_ns]: [u64; 3],
    ) {
        let took_ns = ended_ns.saturating_sub(began_ns);
        let settled_ns = asked_ns.saturating_add(self.settle.ns_to(asked));
        let late =
            Late { ns: settled_ns.saturating_sub(began_ns).min(took_ns), clock: self.before };
        if let Some(should_ns) = times.should_take(unit.instruction, asked, late) {
            sum.times.add(unit.instruction, took_ns, should_ns);
            sum.clocks.add(unit.instruction, asked, Taken { took_ns, should_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_planner::{Measurement, Profile};
    use pfo_protocol::Instruction;

    use super::*;

    const MS: u64 = 1_000_000;

    fn times() -> StageTimes {
        let row = |mhz, time_s| Measurement { frequency: Mhz(mhz), time_s, energy_j: 1.0 };
        let rows = [row(700, 0.2), row(1400, 0.1)];
        let rows = rows.map(|row| (Stage(0), Instruction::Forward, row));
        StageTimes::of(&Profile::from_measurements(rows).unwrap()).swap_remove(0)
    }

    fn ran(began_ms: u64, ended_ms: u64, mhz: u32, asked_ms: u64) -> TapRecord {
        TapRecord::Ran {
            unit: Unit::new(Instruction::Forward, 0),
            began_ns: began_ms * MS,
            ended_ns: ended_ms * MS,
            asked: Some(Mhz(mhz)),
            locked: Some((Mhz(mhz), asked_ms * MS)),
            astray: false,
        }
    }

    #[test]
    fn an_instruction_should_take_what_was_profiled_at_the_clocks_that_it_had() {
        let gpu_uuid = "GPU-1".parse().unwrap();
        let tapped = TappedRank {
            rank: Rank(0),
            session: SessionId(1),
            gpu_uuid,
            sm_clocks: Vec::new(),
            settle: SettleTimes::always(10 * MS),
        };
        let mut followed = Followed::new(&tapped);
        let mut sum = Tapped::default();
        let times = times();
        let mut should_ms = |record| {
            let before = sum.times;
            followed.take(&record, &times, &mut sum);
            sum.times.since(&before).total().should_ns / MS
        };
        assert_eq!(should_ms(ran(100, 200, 1400, 50)), 100);
        // The lower clock is in force after 50 ms, half of the work.
        assert_eq!(should_ms(ran(300, 450, 700, 340)), 150);
        assert_eq!(should_ms(ran(500, 700, 700, 340)), 200);
        let astray = match ran(800, 900, 700, 340) {
            TapRecord::Ran { unit, began_ns, ended_ns, asked, locked, .. } => {
                TapRecord::Ran { unit, began_ns, ended_ns, asked, locked, astray: true }
            }
            other => other,
        };
        assert_eq!(should_ms(astray), 0);
        assert_eq!(should_ms(ran(900, 1000, 1000, 890)), 0, "that clock is not in the profile");
    }

    #[test]
    fn times_that_cannot_be_true_do_no_harm() {
        let gpu_uuid = "GPU-1".parse().unwrap();
        let tapped = TappedRank {
            rank: Rank(0),
            session: SessionId(1),
            gpu_uuid,
            sm_clocks: Vec::new(),
            settle: SettleTimes::always(u64::MAX),
        };
        let mut followed = Followed::new(&tapped);
        let mut sum = Tapped::default();
        for (began_ns, ended_ns) in [(u64::MAX, 0), (0, u64::MAX)] {
            let record = TapRecord::Ran {
                unit: Unit::new(Instruction::Forward, 0),
                began_ns,
                ended_ns,
                asked: Some(Mhz(700)),
                locked: Some((Mhz(700), u64::MAX)),
                astray: false,
            };
            followed.take(&record, &times(), &mut sum);
        }
    }
}
