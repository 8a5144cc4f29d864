//! What the agent is streamed: notices of changed jobs, and the records of a tap. Neither waits for
//! the agent: a record that finds no room is dropped and counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pfo_policy::Permit;
use pfo_protocol::{
    DaemonMessage, JobSelector, Notice, Rank, Refusal, TapBatch, TapRecord, TappedRank,
};
use pfo_service::{hung_up, send};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::measure::{Listener, Meter};
use crate::node::Node;

/// Records that wait for the agent: a few megabytes.
const MOST_RECORDS: usize = 1 << 15;

/// Records in a frame; the largest record takes 87 bytes.
const RECORDS_IN_FRAME: usize = 4096;

/// Records and changes are collected for this long, so that the agent wakes up seldom.
const COLLECT: Duration = Duration::from_millis(20);

/// The frames that follow the response to a request.
pub(crate) enum Stream {
    /// A notice for each change of a job.
    Notices(watch::Receiver<()>),
    /// The records of a job's ranks.
    Tap(Tapped),
}

/// A tap and the meters that feed it.
pub(crate) struct Tapped {
    waiting: Arc<Waiting>,
    _meters: Vec<Arc<Meter>>,
}

/// Notices of changed jobs.
pub(super) fn notices(node: &Node) -> Stream {
    Stream::Notices(node.jobs.changes().subscribe())
}

/// A tap of a job.
///
/// # Errors
/// If there is no such job, or one of its GPUs is gone.
pub(super) fn tap(
    node: &Node,
    permit: &Permit,
    job: &JobSelector,
    counters: bool,
) -> Result<(Vec<TappedRank>, Stream), Refusal> {
    let job = node.jobs.select(permit, job)?;
    let members: Vec<_> = job.members().ranks().cloned().collect();
    let waiting = Arc::new(Waiting { counters, ..Waiting::default() });
    let (mut ranks, mut meters) = (Vec::new(), Vec::new());
    for member in members {
        meters.push(node.meters.listen(&member.session, &member.gpu.uuid, &waiting)?);
        ranks.push(TappedRank {
            rank: member.hello.position.rank,
            session: member.session.holder.session,
            gpu_uuid: member.gpu.uuid.clone(),
            sm_clocks: member.gpu.sm_clocks.clone(),
            settle: member.session.settle_times(),
        });
    }
    Ok((ranks, Stream::Tap(Tapped { waiting, _meters: meters })))
}

/// Sends frames until the connection ends.
pub(crate) async fn stream(stream: Stream, connection: &UnixStream) {
    tokio::select! {
        () = send_all(stream, connection) => {}
        () = hung_up(connection) => {}
    }
}

async fn send_all(stream: Stream, connection: &UnixStream) {
    match stream {
        Stream::Notices(mut changes) => {
            while changes.changed().await.is_ok() {
                sleep(COLLECT).await;
                changes.mark_unchanged();
                if !send(connection, &DaemonMessage::Notice(Notice::JobsChanged)).await {
                    return;
                }
            }
        }
        Stream::Tap(tapped) => loop {
            tapped.waiting.more.notified().await;
            sleep(COLLECT).await;
            for batch in tapped.waiting.take_batches() {
                if !send(connection, &DaemonMessage::Tap(batch)).await {
                    return;
                }
            }
        },
    }
}

/// Records that wait to be sent.
#[derive(Default)]
struct Waiting {
    counters: bool,
    kept: Mutex<Kept>,
    more: Notify,
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

impl Waiting {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_batches(&self) -> Vec<TapBatch> {
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
}

impl Listener for Waiting {
    fn wants_counters(&self) -> bool {
        self.counters
    }

    fn take(&self, rank: Rank, lost: u64, records: &[TapRecord]) {
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
    use pfo_protocol::{Frame, Instruction, Mhz, Unit};
    use tokio::runtime::Builder;
    use tokio::time::timeout;

    use super::*;
    use crate::job::Changes;

    /// More than a stream collects for.
    const SOON: Duration = Duration::from_secs(5);

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    /// The next message, and what came after it.
    async fn received(connection: &UnixStream, bytes: &mut Vec<u8>) -> Option<DaemonMessage> {
        loop {
            if let Some(frame) = Frame::first_of(bytes).unwrap() {
                let message = DaemonMessage::from_payload(frame.kind, frame.payload).unwrap();
                let taken = frame.total_bytes();
                bytes.drain(..taken);
                return Some(message);
            }
            connection.readable().await.unwrap();
            let mut buffer = [0; 4096];
            match connection.try_read(&mut buffer) {
                Ok(0) => return None,
                Ok(read) => bytes.extend_from_slice(&buffer[..read]),
                Err(_) => {}
            }
        }
    }

    fn tapped() -> (Arc<Waiting>, Stream) {
        let waiting = Arc::<Waiting>::default();
        let tapped = Tapped { waiting: Arc::clone(&waiting), _meters: Vec::new() };
        (waiting, Stream::Tap(tapped))
    }

    #[test]
    fn changes_that_come_together_are_one_notice_and_a_later_one_is_another() {
        block_on(async {
            let (near, far) = UnixStream::pair().unwrap();
            let changes = Changes::default();
            let notices = Stream::Notices(changes.subscribe());
            let reader = async {
                let mut bytes = Vec::new();
                for _ in 0..2 {
                    (0..1000).for_each(|_| changes.notice());
                    let notice = timeout(SOON, received(&far, &mut bytes)).await.unwrap();
                    assert_eq!(notice, Some(DaemonMessage::Notice(Notice::JobsChanged)));
                }
                sleep(COLLECT * 3).await;
                assert!(bytes.is_empty() && far.try_read(&mut [0; 1]).is_err(), "no more");
                drop(far);
            };
            timeout(SOON, async { tokio::join!(stream(notices, &near), reader) }).await.unwrap();
        });
    }

    #[test]
    fn a_tap_sends_what_its_meters_hand_over_until_its_reader_is_gone() {
        block_on(async {
            let (near, far) = UnixStream::pair().unwrap();
            let (waiting, tapped) = tapped();
            let reader = async {
                let records = vec![TapRecord::TrialBegan { first_step: u64::MAX, steps: u32::MAX }];
                waiting.take(Rank(7), 3, &records);
                let batch = timeout(SOON, received(&far, &mut Vec::new())).await.unwrap();
                let expected = TapBatch { rank: Rank(7), lost: 3, records };
                assert_eq!(batch, Some(DaemonMessage::Tap(expected)));
                drop(far);
            };
            timeout(SOON, async { tokio::join!(stream(tapped, &near), reader) }).await.unwrap();
        });
    }

    #[test]
    fn a_loss_is_reported_even_without_a_record_and_never_overflows() {
        let waiting = Waiting::default();
        waiting.take(Rank(0), u64::MAX, &[]);
        waiting.take(Rank(0), u64::MAX, &[]);
        let lost = TapBatch { rank: Rank(0), lost: u64::MAX, records: Vec::new() };
        assert_eq!(waiting.take_batches(), [lost]);
    }

    #[test]
    fn a_loss_comes_with_the_first_batch_of_its_rank_and_the_order_stays() {
        let waiting = Waiting::default();
        let record = |at_ns| TapRecord::StepEnded { at_ns, astray: false };
        let records: Vec<_> = (0..RECORDS_IN_FRAME as u64 + 1).map(record).collect();
        waiting.take(Rank(4), 2, &records);
        let batches = waiting.take_batches();
        assert_eq!(batches.iter().map(|batch| batch.lost).collect::<Vec<_>>(), [2, 0]);
        let sent: Vec<_> = batches.into_iter().flat_map(|batch| batch.records).collect();
        assert_eq!(sent, records);
    }

    #[test]
    fn records_beyond_the_room_are_dropped_and_counted() {
        let waiting = Waiting::default();
        let records = vec![TapRecord::Ended; MOST_RECORDS - 1];
        waiting.take(Rank(0), 0, &records);
        waiting.take(Rank(1), 5, &[TapRecord::Ended; 3]);
        let batches = waiting.take_batches();
        let count = |rank| -> usize {
            let of_rank = batches.iter().filter(|batch| batch.rank == Rank(rank));
            of_rank.map(|batch| batch.records.len()).sum()
        };
        assert_eq!((count(0), count(1)), (MOST_RECORDS - 1, 1));
        let lost: u64 = batches.iter().map(|batch| batch.lost).sum();
        assert_eq!(lost, 5 + 2);
        assert!(batches.iter().all(|batch| batch.records.len() <= RECORDS_IN_FRAME));
        assert!(waiting.take_batches().is_empty());
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
