//! Measuring how GPUs change their clocks with the steps of a job, which runs plans meanwhile whose
//! only purpose is to change clocks where that can be seen.

use std::collections::BTreeMap;
use std::convert::Infallible;

use pfo_experiment::median;
use pfo_protocol::{
    ClockTable, DaemonMessage, JobView, Mhz, PlannedUnit, Rank, RankView, Refusal, RefusalCode,
    Request, Response, TapBatch, TapRecord, TrialLength, TrialRun, Unit,
};
use tokio::time::{Duration, Instant, interval, sleep, timeout_at};

use crate::calibration::change::{Change, Changes};
use crate::calibration::counter::Counter;
use crate::calibration::store::{Calibrations, Others};
use crate::calibration::transfers::wait_for_calls;
use crate::job::JobKey;
use crate::pfod::{Asker, Connection, Pfod, PfodError, Questions, SIGN_OF_LIFE, unexpected};
use crate::watch::StageTimes;

/// What the plans that change clocks are called.
const LABEL: &str = "calibration";

/// In which order four clocks, from the lowest to the highest, follow each other: every change between
/// two of them.
const CLOCKS_IN_TURN: [usize; 12] = [0, 1, 0, 2, 0, 3, 1, 2, 1, 3, 2, 3];

/// Plans, each with other changes, and the steps for which each runs.
const PLANS: usize = 6;
const LENGTH: TrialLength = TrialLength { settling_steps: 1, steps: 3 };

/// The steps that show in which order a stage runs its instructions.
const ORDER: TrialLength = TrialLength { settling_steps: 1, steps: 1 };

/// For how long instructions stay at one clock, at least, so that it is in force.
const AT_ONE_CLOCK_NS: u64 = 120_000_000;

/// How long the rest of a tap is waited for.
const TAP_TIMEOUT: Duration = Duration::from_millis(100);

/// Instructions of a rank that are kept, and of one step: a trainer may tell of any number.
const MOST_INSTRUCTIONS: usize = 1 << 16;

/// How often to look at the power, and how many powers are kept of each rank.
const READ_EVERY: Duration = Duration::from_millis(250);
const MOST_READINGS: usize = 1 << 14;

/// Fewer intervals between readings of a counter show no rhythm.
const LEAST_INTERVALS: usize = 16;

/// Watts that the power readings showed, by rank.
type PowersRead = BTreeMap<Rank, Vec<f64>>;

/// A calibration of the GPUs of one job.
pub(crate) struct Measuring<'a> {
    pub(crate) pfod: &'a Pfod,
    pub(crate) questions: &'a Questions,
    pub(crate) calibrations: &'a Calibrations,
    pub(crate) asker: Asker,
    pub(crate) job: &'a JobView,
    /// What instructions take at each clock, by stage.
    pub(crate) times: &'a [StageTimes],
}

/// What the taps of the ranks showed.
#[derive(Default)]
struct Seen {
    records: BTreeMap<Rank, Vec<TapRecord>>,
    counters: BTreeMap<Rank, Counter>,
    /// What each rank ran in its newest whole step, and in this one so far.
    steps: BTreeMap<Rank, (Vec<Unit>, Vec<Unit>)>,
    /// The last step that each rank has begun.
    begun: BTreeMap<Rank, u64>,
}

impl Seen {
    /// What a rank ran.
    fn of(&self, rank: &RankView) -> &[TapRecord] {
        self.records.get(&rank.position.rank).map(|all| &all[..]).unwrap_or_default()
    }

    fn take(&mut self, message: DaemonMessage) -> Result<(), PfodError> {
        let TapBatch { rank, records, lost } = match message {
            DaemonMessage::Tap(batch) => batch,
            other => return Err(unexpected(&other)),
        };
        let counter = self.counters.entry(rank).or_default();
        if lost > 0 {
            self.records.remove(&rank);
            counter.interrupt();
        }
        for record in &records {
            counter.take(record);
            let (whole, now) = self.steps.entry(rank).or_default();
            match record {
                TapRecord::StepBegan { step, .. } => {
                    now.clear();
                    self.begun.insert(rank, *step);
                }
                TapRecord::Ended => {
                    let message = format!("rank {rank} left its job during the calibration");
                    let remedy = "see `pfoctl status`, and try again";
                    return Err(Refusal::new(RefusalCode::NoPlan, message, remedy).into());
                }
                TapRecord::Ran { unit, .. } => {
                    let kept = self.records.entry(rank).or_default();
                    if now.len() < MOST_INSTRUCTIONS && kept.len() < MOST_INSTRUCTIONS {
                        now.push(*unit);
                        kept.push(*record);
                    }
                }
                TapRecord::StepEnded { astray: false, .. } => *whole = std::mem::take(now),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Measuring<'_> {
    /// Runs the job at changing clocks for a few steps, and takes what they show into the
    /// calibrations. The job runs at default clocks afterwards.
    ///
    /// # Errors
    /// If the job cannot be measured, or its steps show no change of clocks.
    pub(crate) async fn run(&self) -> Result<(), PfodError> {
        let mut read_w = PowersRead::default();
        let seen = tokio::select! {
            seen = self.trials() => seen?,
            never = self.read_powers(&mut read_w) => match never {},
        };
        self.conclude(seen, &read_w).await
    }

    async fn trials(&self) -> Result<Seen, PfodError> {
        let mut hold = self.pfod.on_behalf(self.asker).await?;
        let mut seen = Seen::default();
        self.trial(&mut hold, &mut seen, TrialRun::DefaultClocks, ORDER).await?;
        let orders = self.orders(&seen)?;
        for number in 0..PLANS {
            let run = TrialRun::Plan { label: LABEL.into(), table: self.table(&orders, number)? };
            self.trial(&mut hold, &mut seen, run, LENGTH).await?;
        }
        hold.ask(Request::TrialsEnd { job: self.key().selector(), keep: false }).await?;
        Ok(seen)
    }

    /// Collects what `pfod` reads of the power of the job's GPUs now and then.
    async fn read_powers(&self, read_w: &mut PowersRead) -> Infallible {
        loop {
            sleep(READ_EVERY).await;
            // Without an answer there is one reading less.
            let Ok(status) = self.questions.status().await else { continue };
            for rank in &self.job.ranks {
                let gpu = status.gpus.iter().find(|gpu| gpu.uuid == rank.gpu_uuid);
                let Some(power_w) = gpu.and_then(|gpu| gpu.power_w) else { continue };
                let all = read_w.entry(rank.position.rank).or_default();
                // A GPU whose readers have used up their budget is shown as it was read before.
                if all.last() != Some(&power_w) && all.len() < MOST_READINGS {
                    all.push(power_w);
                }
            }
        }
    }

    fn key(&self) -> JobKey {
        JobKey::of(self.job)
    }

    async fn trial(
        &self,
        hold: &mut Connection,
        seen: &mut Seen,
        run: TrialRun,
        length: TrialLength,
    ) -> Result<(), PfodError> {
        let job = self.key().selector();
        seen.counters.values_mut().for_each(Counter::interrupt);
        let mut tap = self.pfod.connect().await?;
        match tap.ask(Request::Tap { job: job.clone(), counters: true }).await? {
            Response::Tapped(_) => {}
            other => return Err(unexpected(&other)),
        }
        hold.send(Request::Trial { job, run, length, after: None }).await?;
        let mut signs_of_life = interval(SIGN_OF_LIFE);
        let mut over = None;
        while over.is_none_or(|step| !self.has_begun(seen, step)) {
            tokio::select! {
                biased;
                answer = hold.answer(), if over.is_none() => match answer? {
                    Response::TrialBegan { first_step, .. } => {
                        over = Some(first_step.saturating_add(length.steps.into()));
                    }
                    other => return Err(unexpected(&other)),
                },
                message = tap.next() => seen.take(message?)?,
                _ = signs_of_life.tick(), if over.is_some() => hold.show_life().await?,
            }
        }
        // What came with the last step is on its way.
        let until = Instant::now().checked_add(TAP_TIMEOUT);
        while let Some(until) = until
            && let Ok(message) = timeout_at(until, tap.next()).await
        {
            seen.take(message?)?;
        }
        Ok(())
    }

    /// Whether every rank of the job has begun a step.
    fn has_begun(&self, seen: &Seen, step: u64) -> bool {
        let begun = |rank: &RankView| seen.begun.get(&rank.position.rank);
        self.job.ranks.iter().all(|rank| begun(rank).is_some_and(|begun| *begun >= step))
    }

    /// What each stage runs in a step.
    fn orders(&self, seen: &Seen) -> Result<Vec<Vec<Unit>>, Refusal> {
        let order = |stage: u32| {
            let is_its = |rank: &&RankView| rank.position.pp_rank.index() == stage as usize;
            let of_stage = self.job.ranks.iter().filter(is_its);
            let mut orders = of_stage.filter_map(|r| Some(&seen.steps.get(&r.position.rank)?.0));
            orders.next().filter(|order| !order.is_empty()).cloned().ok_or_else(|| {
                let key = self.key();
                Refusal::new(
                    RefusalCode::NoPlan,
                    format!("stage {stage} of {key} has shown no instructions in a step"),
                    "every stage must have a rank on this node; see `pfoctl status`",
                )
            })
        };
        (0..self.job.pp_degree).map(order).collect()
    }

    /// A plan that changes clocks after every few instructions.
    fn table(&self, orders: &[Vec<Unit>], number: usize) -> Result<ClockTable, Refusal> {
        let stages = orders.iter().zip(self.times).map(|(order, times)| {
            let clocks = clocks_of(times);
            let shortest_ns = order.iter().filter_map(|unit| times.shortest(unit.instruction));
            let shortest_ns = shortest_ns.min().unwrap_or(AT_ONE_CLOCK_NS).max(1);
            let group = AT_ONE_CLOCK_NS.div_ceil(shortest_ns).saturating_add(1) as usize;
            let group = group.clamp(2, order.len().div_ceil(2).max(2));
            let groups = order.len().div_ceil(group);
            let in_turn = CLOCKS_IN_TURN.into_iter().cycle().skip(number.saturating_mul(groups));
            let at = |(group, turn): (&[Unit], usize)| {
                let mhz = clocks.get(turn).or(clocks.last()).copied().unwrap_or(Mhz(1));
                let unit = |unit: &Unit| PlannedUnit { unit: *unit, mhz, wait_mhz: None };
                group.iter().map(unit).collect::<Vec<_>>()
            };
            order.chunks(group).zip(in_turn).flat_map(at).collect()
        });
        let microbatches = self.job.ranks.iter().find_map(|rank| rank.num_microbatches);
        ClockTable::new(microbatches.unwrap_or(1), None, stages.collect()).map_err(|error| {
            let remedy = "measure the profile of the job again";
            Refusal::new(RefusalCode::Malformed, error.to_string(), remedy)
        })
    }

    /// The changes that a rank's instructions show, once it is known from all of them what they
    /// typically take.
    fn changes(&self, rank: &RankView, records: &[TapRecord]) -> Vec<Change> {
        let Some(times) = self.times.get(rank.position.pp_rank.index()) else { return Vec::new() };
        let mut changes = Changes::default();
        for record in records {
            changes.take(record, times);
        }
        records.iter().filter_map(|record| changes.take(record, times)).collect()
    }

    async fn conclude(&self, seen: Seen, read_w: &PowersRead) -> Result<(), PfodError> {
        let status = self.questions.status().await?;
        let driver = status.daemon.driver.clone();
        self.calibrations.set_driver(driver);
        let calls = status.jobs.iter().flat_map(|job| &job.ranks);
        let set_call_us = |rank: &RankView| {
            let own = calls.clone().find(|call| call.session == rank.session);
            own.filter(|own| own.clock_changes > 0).map(|own| own.set_call_mean_us)
        };
        // Not every stage hands something on after every change: one that shows it is enough.
        let mut transfers_wait: BTreeMap<&str, bool> = BTreeMap::new();
        for rank in &self.job.ranks {
            let records = seen.of(rank);
            let waits = set_call_us(rank).and_then(|us| wait_for_calls(records, 1e3 * us));
            if let Some(waits) = waits {
                *transfers_wait.entry(&rank.gpu_model).or_default() |= waits;
            }
        }
        let mut shows_changes = false;
        for rank in &self.job.ranks {
            let Some(of) = self.calibrations.of_asker(self.asker, self.job, rank) else { continue };
            let number = rank.position.rank;
            let found = self.changes(rank, seen.of(rank));
            shows_changes |= !found.is_empty();
            self.calibrations.add(&of, &found);
            let set_call_us = set_call_us(rank);
            let transfers_wait = transfers_wait.get(&*rank.gpu_model).copied();
            let counter = seen.counters.get(&number);
            let refresh_ms = counter.and_then(|counter| refresh_ms(&counter.refreshed_ns()));
            let read_w = read_w.get(&number).map(|watts| &watts[..]).unwrap_or_default();
            let counter = counter.and_then(|counter| counter.check(read_w));
            self.calibrations.set(&of, Others { set_call_us, transfers_wait, refresh_ms, counter });
        }
        if !shows_changes {
            let key = self.key();
            let message = format!("the instructions of {key} showed no change of clocks");
            let remedy = "they are too short, or wait for each other everywhere: calibrate with \
                          another job of these GPUs, or set settle_ms in pfod.toml";
            return Err(Refusal::new(RefusalCode::NoPlan, message, remedy).into());
        }
        Ok(())
    }
}

/// Some clocks of a profile, from the lowest to the highest.
fn clocks_of(times: &StageTimes) -> Vec<Mhz> {
    let all = times.common_clocks();
    let last = all.len().saturating_sub(1);
    let some = [0, last / 3, last.saturating_mul(2) / 3, last];
    let mut clocks: Vec<_> = some.iter().filter_map(|index| all.get(*index).copied()).collect();
    clocks.dedup();
    clocks
}

/// The median interval between changes of a counter, where they have a rhythm.
fn refresh_ms(refreshed_ns: &[u64]) -> Option<f64> {
    let interval = |pair: &[u64]| pair[1].saturating_sub(pair[0]) as f64 / 1e6;
    let intervals: Vec<_> = refreshed_ns.windows(2).map(interval).collect();
    let typical_ms = median(intervals.iter().copied());
    let near = intervals.iter().filter(|ms| (*ms / typical_ms - 1.0).abs() < 0.1).count();
    (near >= LEAST_INTERVALS && near > intervals.len() / 2).then_some(typical_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plans_together_change_from_and_to_every_clock_even_with_two_groups_a_step() {
        let mut in_turn = CLOCKS_IN_TURN.into_iter().cycle();
        let steps = (0..PLANS).map(|_| [in_turn.next().unwrap(), in_turn.next().unwrap()]);
        // Each step is followed by another one like it.
        let changes: Vec<_> = steps.flat_map(|[one, other]| [(one, other), (other, one)]).collect();
        for clock in 0..4 {
            assert!(changes.iter().filter(|(_, to)| *to == clock).count() >= 2, "{changes:?}");
            assert!(changes.iter().filter(|(from, _)| *from == clock).count() >= 2, "{changes:?}");
        }
    }

    #[test]
    fn a_trainer_that_tells_of_instructions_without_end_takes_no_more_memory() {
        let mut seen = Seen::default();
        let unit = Unit::new(pfo_protocol::Instruction::Forward, 0);
        let (began_ns, ended_ns, asked, locked) = (1, 2, None, None);
        let ran = TapRecord::Ran { unit, began_ns, ended_ns, asked, locked, astray: false };
        for _ in 0..3 {
            let records = vec![ran; MOST_INSTRUCTIONS / 2 + 1];
            seen.take(DaemonMessage::Tap(TapBatch { rank: Rank(0), lost: 0, records })).unwrap();
        }
        assert_eq!(seen.records[&Rank(0)].len(), MOST_INSTRUCTIONS);
        assert_eq!(seen.steps[&Rank(0)].1.len(), MOST_INSTRUCTIONS);
    }

    #[test]
    fn a_counter_has_a_rhythm_if_most_of_its_changes_come_in_one() {
        let regular: Vec<_> = (0..40).map(|n| n * 20_000_000).collect();
        assert_eq!(refresh_ms(&regular), Some(20.0));
        let erratic: Vec<_> = (0..40u64).map(|n| n * n * 1_000_000).collect();
        assert_eq!(refresh_ms(&erratic), None);
        assert_eq!(refresh_ms(&regular[..5]), None);
        assert_eq!(refresh_ms(&[]), None);
    }
}
