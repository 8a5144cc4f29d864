//! A thread that digests the tap of a trial.
//!
//! Least squares over hundreds of kinds of instructions take a while; no other request waits for them.
//! What the thread cannot keep up with waits in the connection to `pfod`, which drops and counts
//! what does not fit.

use std::collections::BTreeMap;
use std::io;
use std::thread;

use pfo_protocol::{CounterReading, Rank, TapBatch, TapRecord, TappedRank};
use tokio::sync::{mpsc, oneshot, watch};

use crate::record::digest::{Digest, RecordedGpu};
use crate::record::recorded::Recorded;

/// Batches that wait for the thread.
const WAITING_BATCHES: usize = 8;

/// How far a recording is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The counter of every GPU was read: a trial that begins now misses nothing.
    pub(crate) is_ready: bool,
    /// Every rank has everything of its trial.
    pub(crate) is_complete: bool,
}

/// What was recorded of each rank.
pub(crate) type RecordedRanks = BTreeMap<Rank, Outcome>;

/// What came of recording one rank.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Its trial, from the first measured step on.
    Recorded(Recorded),
    /// The tap dropped records of its trial.
    LostEvents,
    /// Its tap said nothing of a trial.
    NoTrial,
}

/// The thread, until this is dropped or finished.
#[derive(Debug)]
pub(crate) struct Recorder {
    batches: mpsc::Sender<TapBatch>,
    progress: watch::Receiver<Progress>,
    recorded: oneshot::Receiver<RecordedRanks>,
}

impl Recorder {
    /// Begins to record these ranks. `room` is for the instructions of each that are kept one by
    /// one.
    ///
    /// # Errors
    /// If another thread cannot be started.
    pub(crate) fn start(ranks: Vec<TappedRank>, room: Option<usize>) -> io::Result<Self> {
        let (batches, mut received) = mpsc::channel(WAITING_BATCHES);
        let (report, progress) = watch::channel(Progress::default());
        let (done, recorded) = oneshot::channel();
        let mut recording = Recording::of(ranks, room);
        thread::Builder::new().name("recorder".into()).spawn(move || {
            while let Some(batch) = received.blocking_recv() {
                recording.take(batch);
                let now = recording.progress();
                report.send_if_modified(|before| std::mem::replace(before, now) != now);
            }
            // If the trial was given up, no one receives it.
            let _ = done.send(recording.finish());
        })?;
        Ok(Self { batches, progress, recorded })
    }

    /// Hands the thread a batch. Waits for room.
    pub(crate) async fn take(&self, batch: TapBatch) {
        // The thread ends only after this.
        let _ = self.batches.send(batch).await;
    }

    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// What was recorded, once the thread has digested every batch.
    pub(crate) async fn finish(self) -> RecordedRanks {
        drop(self.batches);
        self.recorded.await.unwrap_or_default()
    }
}

/// The ranks of one trial.
pub(crate) struct Recording(BTreeMap<Rank, RankRecording>);

impl Recording {
    pub(crate) fn of(ranks: Vec<TappedRank>, room: Option<usize>) -> Self {
        let begun = |TappedRank { rank, sm_clocks, settle, .. }| {
            let recording = RankRecording {
                gpu: RecordedGpu { sm_clocks, settle },
                room,
                newest: None,
                digest: None,
                lost: false,
                ended: false,
            };
            (rank, recording)
        };
        Self(ranks.into_iter().map(begun).collect())
    }

    pub(crate) fn take(&mut self, batch: TapBatch) {
        if let Some(rank) = self.0.get_mut(&batch.rank) {
            rank.take(batch);
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress {
            is_ready: self.0.values().all(|rank| rank.newest.is_some() || rank.digest.is_some()),
            is_complete: self.0.values().all(RankRecording::is_complete),
        }
    }

    pub(crate) fn finish(self) -> RecordedRanks {
        self.0.into_iter().map(|(rank, recording)| (rank, recording.finish())).collect()
    }
}

struct RankRecording {
    gpu: RecordedGpu,
    room: Option<usize>,
    /// The newest reading of the counter before the trial began.
    newest: Option<CounterReading>,
    digest: Option<Digest>,
    lost: bool,
    ended: bool,
}

impl RankRecording {
    fn take(&mut self, TapBatch { lost, records, .. }: TapBatch) {
        let begins = records.iter().any(|record| matches!(record, TapRecord::TrialBegan { .. }));
        let measures = self.digest.as_ref().is_some_and(|digest| !digest.is_complete());
        // What was lost before the trial began is not missed. A batch does not say what it lost
        // when.
        self.lost = lost > 0 && (begins || measures) || self.lost && !begins;
        for record in records {
            match record {
                TapRecord::TrialBegan { first_step, steps } => {
                    let range = first_step..first_step.saturating_add(steps.into());
                    let mut digest = Digest::new(range, self.gpu.clone(), self.room);
                    if let Some(reading) = self.newest.take() {
                        digest.take(TapRecord::Counter(reading));
                    }
                    self.digest = Some(digest);
                }
                TapRecord::Ended => self.ended = true,
                record => match (&mut self.digest, record) {
                    (Some(digest), record) if !digest.is_complete() => digest.take(record),
                    (None, TapRecord::Counter(reading)) if reading.energy_j.is_some() => {
                        self.newest = Some(reading);
                    }
                    _ => {}
                },
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.ended || self.lost || self.digest.as_ref().is_some_and(Digest::is_complete)
    }

    fn finish(self) -> Outcome {
        match self.digest {
            Some(_) if self.lost => Outcome::LostEvents,
            Some(digest) => Outcome::Recorded(digest.finish()),
            None => Outcome::NoTrial,
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{SessionId, SettleTimes};

    use super::*;
    use crate::record::sample::NO_READING;

    const RANK: Rank = Rank(3);

    fn recording() -> Recording {
        let gpu_uuid = "GPU-1".parse().unwrap();
        let tapped = TappedRank {
            rank: RANK,
            session: SessionId(1),
            gpu_uuid,
            sm_clocks: Vec::new(),
            settle: SettleTimes::always(0),
        };
        Recording::of(vec![tapped], None)
    }

    fn counter(at_ns: u64) -> TapRecord {
        let reading = CounterReading { at_ns, energy_j: Some(at_ns as f64), ..NO_READING };
        TapRecord::Counter(reading)
    }

    fn step(step: u64) -> TapRecord {
        TapRecord::StepBegan { step, at_ns: 100 * step, astray: false }
    }

    fn take(recording: &mut Recording, lost: u64, records: &[TapRecord]) {
        recording.take(TapBatch { rank: RANK, lost, records: records.to_vec() });
    }

    const TRIAL: TapRecord = TapRecord::TrialBegan { first_step: 5, steps: 2 };

    #[test]
    fn a_trial_is_ready_with_a_reading_of_every_counter_and_complete_after_its_last_step() {
        let mut recording = recording();
        assert_eq!(recording.progress(), Progress::default());
        take(&mut recording, 9, &[step(3), counter(350)]);
        assert!(recording.progress().is_ready);
        take(&mut recording, 0, &[TRIAL, step(4), step(5), step(6)]);
        assert!(!recording.progress().is_complete);
        take(&mut recording, 0, &[counter(450), step(7), counter(750), step(8)]);
        assert!(recording.progress().is_complete);
        let Some(Outcome::Recorded(recorded)) = recording.finish().remove(&RANK) else { panic!() };
        assert!(recorded.steps.iter().map(|mark| mark.step).eq(5..=7));
    }

    #[test]
    fn records_that_were_lost_within_a_trial_spoil_it_and_those_before_it_do_not() {
        let mut recording = recording();
        take(&mut recording, 7, &[step(4)]);
        take(&mut recording, 0, &[TRIAL, step(5)]);
        assert!(matches!(recording.0[&RANK], RankRecording { lost: false, .. }));
        take(&mut recording, 1, &[step(6)]);
        assert!(recording.progress().is_complete, "there is nothing to wait for");
        assert!(matches!(recording.finish()[&RANK], Outcome::LostEvents));
    }

    #[test]
    fn a_loss_in_the_batch_in_which_a_trial_begins_spoils_it() {
        let mut recording = recording();
        take(&mut recording, 1, &[step(4), TRIAL, step(5)]);
        assert!(matches!(recording.finish()[&RANK], Outcome::LostEvents));
    }

    #[test]
    fn a_rank_that_ends_is_not_waited_for_and_one_without_a_trial_has_none() {
        let mut recording = recording();
        take(&mut recording, 0, &[step(1), TapRecord::Ended]);
        assert!(recording.progress().is_complete);
        assert!(matches!(recording.finish()[&RANK], Outcome::NoTrial));
    }
}
