//! What the agent is streamed: notices of changed jobs, and the records of a tap.

use std::sync::Arc;
use std::time::Duration;

use pfo_policy::Permit;
use pfo_protocol::{DaemonMessage, JobSelector, Notice, Refusal, TappedRank};
use pfo_service::{hung_up, send};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::measure::{Meter, Outbox};
use crate::node::Node;

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
    outbox: Arc<Outbox>,
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
    let outbox = Arc::new(Outbox::new(counters));
    let (mut ranks, mut meters) = (Vec::new(), Vec::new());
    for member in members {
        meters.push(node.meters.listen(&member.session, &member.gpu.uuid, &outbox)?);
        ranks.push(TappedRank {
            rank: member.hello.position.rank,
            session: member.session.holder.session,
            gpu_uuid: member.gpu.uuid.clone(),
            sm_clocks: member.gpu.sm_clocks.clone(),
            settle: member.session.settle_times(),
        });
    }
    Ok((ranks, Stream::Tap(Tapped { outbox, _meters: meters })))
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
            tapped.outbox.more.notified().await;
            sleep(COLLECT).await;
            for batch in tapped.outbox.take_batches() {
                if !send(connection, &DaemonMessage::Tap(batch)).await {
                    return;
                }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Frame, Rank, TapBatch, TapRecord};
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

    fn tapped() -> (Arc<Outbox>, Stream) {
        let outbox = Arc::<Outbox>::default();
        let tapped = Tapped { outbox: Arc::clone(&outbox), _meters: Vec::new() };
        (outbox, Stream::Tap(tapped))
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
            let (outbox, tapped) = tapped();
            let reader = async {
                let records = vec![TapRecord::TrialBegan { first_step: u64::MAX, steps: u32::MAX }];
                outbox.take(Rank(7), 3, &records);
                let batch = timeout(SOON, received(&far, &mut Vec::new())).await.unwrap();
                let expected = TapBatch { rank: Rank(7), lost: 3, records };
                assert_eq!(batch, Some(DaemonMessage::Tap(expected)));
                drop(far);
            };
            timeout(SOON, async { tokio::join!(stream(tapped, &near), reader) }).await.unwrap();
        });
    }
}
