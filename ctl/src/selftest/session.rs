//! A job of its own with one rank, whose GPU `pfod` locks as a plan says.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;
use pfo_protocol::{
    Chunk, ClientMessage, ClockTable, ClockTableError, DpRank, Event, GpuName, GpuUuid, Hello,
    Instruction, JobName, JobSelector, JobStatus, Mark, Mhz, Microbatch, PlannedUnit, Rank,
    RankPosition, RankStatus, Request, Response, Stage, Status, SwapTarget, TpRank, Unit,
};

use crate::daemons::{Connection, ConnectionError, Daemons, Patience, Pfod, Session};
use crate::user;

/// The daemon takes no more files with one message.
const MOST_FILES: usize = 64;

/// The session, and a connection for requests about its job.
pub(super) struct Job {
    rank: Connection<Session>,
    pfod: Connection<Pfod>,
    name: JobName,
    sequence: u64,
}

impl Job {
    /// Opens a session, and begins its only step with this plan.
    pub(super) fn begin(
        daemons: &Daemons,
        name: JobName,
        gpu: &GpuUuid,
        devices: &Path,
        table: ClockTable,
    ) -> Result<Self, ConnectionError> {
        let mut rank: Connection<Session> = daemons.open()?;
        let hello = ClientMessage::Hello(hello(name.clone(), gpu));
        rank.send_with(hello, &device_files(devices))?;
        rank.receive(Patience::Limited)?;
        let mut job = Self { rank, pfod: daemons.pfod()?, name, sequence: 0 };
        job.plan(table)?;
        job.tell(Mark::StepBegin(0))?;
        Ok(job)
    }

    fn plan(&mut self, table: ClockTable) -> Result<(), ConnectionError> {
        let job = JobSelector { job: self.name.clone(), uid: Some(user::own()) };
        let target = SwapTarget::Table { label: "selftest".to_owned(), table };
        let swap = Request::PlanSwap { job, target, at_step: None, after: None, wait: false };
        match self.pfod.ask(swap)? {
            Response::Swapped(_) => Ok(()),
            other => Err(self.pfod.unexpected(&other)),
        }
    }

    /// Begins the instruction of the clock at this place, and ends the one before.
    pub(super) fn run(&mut self, at: u32) -> Result<(), ConnectionError> {
        if let Some(before) = at.checked_sub(1) {
            self.tell(Mark::InstructionEnd(unit(before)))?;
        }
        self.tell(Mark::InstructionBegin(unit(at)))
    }

    /// What `pfod` says, and of this rank in particular.
    pub(super) fn status(&mut self) -> Result<(Status, Option<RankStatus>), ConnectionError> {
        let status = self.pfod.status()?;
        let is_ours = |job: &&JobStatus| job.job == self.name && job.uid == user::own();
        let rank = status.jobs.iter().find(is_ours).and_then(|job| job.ranks.first().cloned());
        Ok((status, rank))
    }

    /// Ends the session in order; without this the connection is cut.
    pub(super) fn goodbye(mut self) -> Result<(), ConnectionError> {
        self.rank.send(ClientMessage::Goodbye)
    }

    fn tell(&mut self, mark: Mark) -> Result<(), ConnectionError> {
        let event = Event { sequence: self.sequence, client_ns: 0, mark };
        self.sequence += 1;
        self.rank.send(ClientMessage::Event(event))
    }
}

/// A plan of one step that runs at one of these clocks after the other.
pub(super) fn one_after_the_other(clocks: &[Mhz]) -> Result<ClockTable, ClockTableError> {
    let units = (0..).zip(clocks);
    let units = units.map(|(at, &mhz)| PlannedUnit { unit: unit(at), mhz, wait_mhz: None });
    ClockTable::new(clocks.len() as u32, None, vec![units.collect()])
}

fn unit(at: u32) -> Unit {
    Unit { instruction: Instruction::Forward, chunk: Chunk(0), microbatch: Microbatch(at) }
}

fn hello(job: JobName, gpu: &GpuUuid) -> Hello {
    Hello {
        client: concat!("pfoctl ", env!("CARGO_PKG_VERSION")).to_owned(),
        job,
        position: RankPosition {
            rank: Rank(0),
            pp_rank: Stage(0),
            dp_rank: DpRank(0),
            tp_rank: TpRank(0),
            pp_degree: 1,
            dp_degree: 1,
            tp_degree: 1,
        },
        gpu: GpuName::Uuid(gpu.clone()),
        num_microbatches: None,
        next_step: 0,
    }
}

/// The device files of GPUs that this process can open, as the proof that it was given them.
fn device_files(directory: &Path) -> Vec<File> {
    let is_gpu = |path: &Path| {
        let number = path.file_name()?.to_str()?.strip_prefix("nvidia")?;
        number.parse::<u32>().ok()
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| is_gpu(path).is_some());
    // A GPU that sleeps is not waited for.
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    paths.filter_map(|path| options.open(path).ok()).take(MOST_FILES).collect()
}
