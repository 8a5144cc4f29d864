//! What fuzz targets reach inside of `pfod`: what reads bytes of a rank or of the former daemon. It
//! is part of the crate only with the feature `fuzzing`.

mod daemon;

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use pfo_keeper::example_gpu;
use pfo_protocol::{
    ClockTable, Event, Hello, Holder, Instruction, Mhz, Pid, PlannedUnit, SessionId, Uid, Unit,
};

pub use self::daemon::{Daemon, Death, Who};
use crate::job::{Changes, Job, JobKey, JobPlan, Member, StageClocks, StageSequence, parse_job};
use crate::lease::{Grant, Session};
use crate::rank::{Cursor, Wish};
use crate::revocation::parse_revocations;
use pfo_policy::{Clocks, Place, Terms};

/// A stage's step: two forwards, two backwards.
fn sequence() -> StageSequence {
    let (forward, backward) = (Instruction::Forward, Instruction::Backward);
    let units = [(forward, 0, 900), (forward, 1, 915), (backward, 0, 1200), (backward, 1, 1215)];
    units
        .map(|(kind, m, mhz)| PlannedUnit {
            unit: Unit::new(kind, m),
            mhz: Mhz(mhz),
            wait_mhz: (kind == backward).then_some(Mhz(600)),
        })
        .into()
}

/// Events in any order lead to a clock of the plan, to the highest or to the default.
///
/// # Panics
/// If they do not.
pub fn events(events: impl Iterator<Item = Event>) {
    let planned = sequence();
    let mut cursor = Cursor::default();
    cursor.follow(Some(StageClocks::Planned(Arc::clone(&planned))));
    for event in events {
        let lost = cursor.lost_events();
        cursor.event(&event);
        cursor.look_at_wait();
        assert!(cursor.lost_events() >= lost);
        if let Wish::At(mhz) = cursor.wish() {
            assert!(planned.iter().flat_map(PlannedUnit::clocks).any(|clock| clock == mhz));
        }
    }
}

/// Hellos of one job, each followed by the end of every third session: a rank is in the job once.
///
/// # Panics
/// If it is not.
pub fn hellos(hellos: Vec<Hello>) {
    let Some(first) = hellos.first() else { return };
    let key = JobKey { uid: Uid(7), name: first.job.clone() };
    let job = Job::new(key, first.position.pp_degree, Changes::default());
    let gpu = Arc::new(example_gpu());
    for (number, hello) in hellos.into_iter().enumerate() {
        if hello.position.check().is_err() {
            continue;
        }
        let rank = hello.position.rank;
        let session = SessionId(number as u64);
        let holder = Holder { job: hello.job.clone(), rank, uid: Uid(7), pid: Pid(1), session };
        let grant = Grant::new(Terms::default(), Place::Lease, &gpu, &Clocks::default());
        let Ok((stream, _)) = UnixStream::pair() else { return };
        let session = Arc::new(Session::new(holder, Uid(7), grant, stream));
        let was_there = job.members().rank(rank).is_some();
        let joined =
            job.join(Member { hello, session: Arc::clone(&session), gpu: Arc::clone(&gpu) });
        assert!(joined.is_err() || !was_there);
        if number % 3 == 2 && joined.is_ok() {
            job.leave(&session);
            assert!(job.members().rank(rank).is_none());
        }
    }
}

/// The records of jobs and the revocations that the former daemon left are read, or refused. False
/// for bytes that are neither.
pub fn kept_files(bytes: &[u8], boot_id: &str) -> bool {
    let revocations = parse_revocations(bytes, boot_id);
    let job = parse_job(bytes, boot_id);
    let restored = job.map(|record| record.restore(&[]));
    revocations.is_ok() || restored.is_ok()
}

/// The form of a clock table that ranks follow is the same table.
///
/// # Panics
/// If it is not.
pub fn table(table: &ClockTable) {
    let plan = JobPlan::new(1, "fuzz".into(), table.clone());
    assert_eq!(plan.table().as_ref(), Some(table));
}
