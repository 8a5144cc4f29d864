//! What waits to be sent to a tap of the agent. The meters that fill it do not wait for the agent: a
//! record that finds no room is dropped and counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pfo_protocol::{Rank, TapBatch, TapRecord};
use tokio::sync::Notify;

/// Records that wait for the agent: a few megabytes.
const MOST_RECORDS: usize = 1 << 15;

/// Records in a frame; the largest record takes 87 bytes.
const RECORDS_IN_FRAME: usize = 4096;

/// Records that wait to be sent to one tap of the agent.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Whether the tap wants the energy counters, too.
    pub(super) counters: bool,
    kept: Mutex<Kept>,
    /// Notified when there are records.
    pub(crate) more: Notify,
}

#[derive(Default)]
struct Kept {
    count: usize,
    ranks: BTreeMap<Rank, OfRank>,
}

#[derive(Default)]
struct OfRank {
    lost: u64,
    records: Vec<TapRecord>,
}

impl Outbox {
    /// Empty, for a tap with or without counters.
    pub(crate) fn new(counters: bool) -> Self {
        Self { counters, ..Self::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that waits, in frames.
    pub(crate) fn take_batches(&self) -> Vec<TapBatch> {
        let Kept { ranks, .. } = std::mem::take(&mut *self.kept());
        let mut batches = Vec::new();
        for (rank, OfRank { mut lost, records }) in ranks {
            for chunk in records.chunks(RECORDS_IN_FRAME) {
                let lost = std::mem::take(&mut lost);
                batches.push(TapBatch { rank, lost, records: chunk.to_vec() });
            }
            if lost > 0 {
                batches.push(TapBatch { rank, lost, records: Vec::new() });
            }
        }
        batches
    }

    /// Takes records of a rank, of which `lost` were lost since the last call. It does not wait.
    pub(crate) fn take(&self, rank: Rank, lost: u64, records: &[TapRecord]) {
        let mut kept = self.kept();
        let room = MOST_RECORDS.saturating_sub(kept.count).min(records.len());
        kept.count = kept.count.saturating_add(room);
        let of_rank = kept.ranks.entry(rank).or_default();
        // Records that come after a loss are of no use to the agent before it knows of the loss.
        of_rank.records.extend_from_slice(&records[..room]);
        let dropped = records.len().saturating_sub(room) as u64;
        of_rank.lost = of_rank.lost.saturating_add(lost).saturating_add(dropped);
        drop(kept);
        self.more.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{DaemonMessage, Instruction, Mhz, Unit};

    use super::*;

    #[test]
    fn a_loss_is_reported_even_without_a_record_and_never_overflows() {
        let outbox = Outbox::default();
        outbox.take(Rank(0), u64::MAX, &[]);
        outbox.take(Rank(0), u64::MAX, &[]);
        let lost = TapBatch { rank: Rank(0), lost: u64::MAX, records: Vec::new() };
        assert_eq!(outbox.take_batches(), [lost]);
    }

    #[test]
    fn a_loss_comes_with_the_first_batch_of_its_rank_and_the_order_stays() {
        let outbox = Outbox::default();
        let record = |at_ns| TapRecord::StepEnded { at_ns, astray: false };
        let records: Vec<_> = (0..RECORDS_IN_FRAME as u64 + 1).map(record).collect();
        outbox.take(Rank(4), 2, &records);
        let batches = outbox.take_batches();
        assert_eq!(batches.iter().map(|batch| batch.lost).collect::<Vec<_>>(), [2, 0]);
        let sent: Vec<_> = batches.into_iter().flat_map(|batch| batch.records).collect();
        assert_eq!(sent, records);
    }

    #[test]
    fn records_beyond_the_room_are_dropped_and_counted() {
        let outbox = Outbox::default();
        let records = vec![TapRecord::Ended; MOST_RECORDS - 1];
        outbox.take(Rank(0), 0, &records);
        outbox.take(Rank(1), 5, &[TapRecord::Ended; 3]);
        let batches = outbox.take_batches();
        let count = |rank| -> usize {
            let of_rank = batches.iter().filter(|batch| batch.rank == Rank(rank));
            of_rank.map(|batch| batch.records.len()).sum()
        };
        assert_eq!((count(0), count(1)), (MOST_RECORDS - 1, 1));
        let lost: u64 = batches.iter().map(|batch| batch.lost).sum();
        assert_eq!(lost, 5 + 2);
        assert!(batches.iter().all(|batch| batch.records.len() <= RECORDS_IN_FRAME));
        assert!(outbox.take_batches().is_empty());
    }

    #[test]
    fn the_largest_batch_fits_into_its_frame() {
        let ran = TapRecord::Ran {
            unit: Unit::new(Instruction::Forward, 0),
            began_ns: 0,
            ended_ns: 0,
            asked: Some(Mhz(1)),
            locked: Some((Mhz(1), 0)),
            astray: false,
        };
        let records = vec![ran; RECORDS_IN_FRAME];
        let batch = TapBatch { rank: Rank(0), lost: 0, records };
        assert!(DaemonMessage::Tap(batch).to_frame().is_ok());
    }
}
