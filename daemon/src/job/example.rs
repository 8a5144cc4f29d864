//! Jobs, ranks and plans for tests.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use pfo_keeper::example_gpu;
use pfo_protocol::{
    ClockTable, DpRank, Hello, Holder, Instruction, Mhz, Pid, PlannedUnit, Rank, RankPosition,
    SessionId, Stage, TpRank, Uid, Unit,
};

use super::{Changes, Job, JobKey, Member};
use crate::lease::{Session, example_grant};

pub(crate) const F0: Unit = unit(Instruction::Forward);
pub(crate) const B0: Unit = unit(Instruction::Backward);

const fn unit(instruction: Instruction) -> Unit {
    use pfo_protocol::{Chunk, Microbatch};

    Unit { instruction, chunk: Chunk(0), microbatch: Microbatch(0) }
}

/// A job of user 7 without ranks.
pub(crate) fn job(name: &str, pp_degree: u32) -> Job {
    Job::new(JobKey { uid: Uid(7), name: name.parse().unwrap() }, pp_degree, Changes::default())
}

/// A session of user 7.
pub(crate) fn session(job: &str, rank: u32) -> Arc<Session> {
    let holder = Holder {
        job: job.parse().unwrap(),
        rank: Rank(rank),
        uid: Uid(7),
        pid: Pid(1),
        session: SessionId(rank.into()),
    };
    Arc::new(Session::new(holder, Uid(7), example_grant(""), UnixStream::pair().unwrap().0))
}

/// A rank of job `j`, whose only stage has two ranks.
pub(crate) fn member(rank: u32, next_step: u64) -> Member {
    let position = RankPosition {
        rank: Rank(rank),
        pp_rank: Stage(0),
        dp_rank: DpRank(rank),
        tp_rank: TpRank(0),
        pp_degree: 1,
        dp_degree: 2,
        tp_degree: 1,
    };
    let hello = Hello {
        client: "test".into(),
        job: "j".parse().unwrap(),
        position,
        gpu: "GPU-1".parse().unwrap(),
        num_microbatches: None,
        next_step,
    };
    Member { hello, session: session("j", rank), gpu: Arc::new(example_gpu()) }
}

/// A forward and a backward for each stage, at these clocks; waits have that of the forward.
pub(crate) fn table(stages: &[[u32; 2]]) -> ClockTable {
    let planned = |unit, mhz, wait| PlannedUnit { unit, mhz: Mhz(mhz), wait_mhz: wait };
    let stage = |&[forward, backward]: &[u32; 2]| {
        vec![planned(F0, forward, None), planned(B0, backward, Some(Mhz(forward)))]
    };
    ClockTable::new(1, None, stages.iter().map(stage).collect()).unwrap()
}
