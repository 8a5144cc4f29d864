//! Everything that can go wrong, as one sentence for people, a remedy, and an exit code.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use pfo_planner::PlanError;
use pfo_protocol::{FrameError, JobName, Refusal};

use crate::exit::Exit;
use crate::plan::Failure;

/// Where to look when the daemon itself is the problem.
const LOOK_AT_THE_DAEMON: &str =
    "see `systemctl status pfod.socket pfod.service` and `journalctl -u pfod`";

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot reach the daemon: there is no socket {}", .0.display())]
    NoSocket(PathBuf),
    #[error("cannot reach the daemon: nobody listens on {}", .0.display())]
    NobodyListens(PathBuf),
    #[error("user {user} may not open {}", .socket.display())]
    SocketClosedToUser { socket: PathBuf, user: String },
    #[error("cannot connect to {}: {source}", .socket.display())]
    Connect { socket: PathBuf, source: io::Error },
    #[error("the daemon at {} did not answer within {seconds} s", .socket.display())]
    NoAnswer { socket: PathBuf, seconds: u64 },
    #[error("the daemon at {} closed the connection before it answered", .socket.display())]
    Vanished { socket: PathBuf },
    #[error(
        "the daemon at {} speaks versions {oldest} to {newest} of the protocol, this pfoctl version {}",
        .socket.display(), pfo_protocol::VERSION
    )]
    Version { socket: PathBuf, oldest: u16, newest: u16 },
    #[error("the daemon at {}: {source}", .socket.display())]
    Frame { socket: PathBuf, source: FrameError },
    #[error("the daemon at {} answered something else than was asked: {answer}", .socket.display())]
    OtherAnswer { socket: PathBuf, answer: String },
    #[error("{}", .0.message)]
    Refused(Refusal),
    #[error("{0}")]
    ConfigRefused(String),
    #[error("wrong on this node: {count} of the findings above")]
    Unwell { count: usize },
    #[error("{user} may lease none of {gpus} GPUs")]
    NoLease { user: String, gpus: usize },
    #[error("no job named {job} runs on this node, or it is not yours to see")]
    NoSuchJob { job: String },
    #[error("no job named {job} is being swept, or it is not yours to see")]
    NoSuchSweep { job: String },
    #[error("the sweep of job {job} is paused: {why}")]
    SweepPaused { job: String, why: String },
    #[error("cannot read the plan {name}: {source}")]
    ReadPlan { name: String, source: io::Error },
    #[error("the plan {name} is larger than the {limit} bytes that the daemon takes")]
    PlanTooLarge { name: String, limit: usize },
    #[error("the plan {name}: {source}")]
    BadPlan { name: String, source: PlanError },
    #[error("{changed} of {ranks} ranks changed at step {step}; the others ended before")]
    NotAllChanged { changed: u32, ranks: u32, step: u64 },
    #[error("{count} of {total} GPUs are not free of locks of pfo")]
    NotRestored { count: usize, total: usize },
    #[error(transparent)]
    MakePlan(#[from] Failure),
    #[error("interrupted: job {job} is back at default clocks from its next step on")]
    Interrupted { job: JobName },
    #[error("job {job} has {now} ranks here, after {before} when measuring began")]
    OtherRanks { job: JobName, before: usize, now: usize },
    #[error(
        "of the {stages} stages of job {job} these have no rank on this node: {missing}; what a plan \
         makes of its pipeline cannot be measured here"
    )]
    StagesElsewhere { job: JobName, missing: String, stages: u32 },
    #[error("no energy was measured of job {job}: a GPU of its ranks has no energy counter")]
    NoEnergy { job: JobName },
    #[error(
        "no wait of job {job} was long enough to measure the P2P-blocking power; give --p2p-power"
    )]
    NoWaits { job: JobName },
    #[error(
        "the ranks of job {job} do not all run the same number of forwards; give --microbatches"
    )]
    UnknownMicrobatches { job: JobName },
    #[error(
        "the GPUs of job {job} have no power limit in common: one takes none below {lowest} W, one none \
         above {highest} W; give --knob clock"
    )]
    NoCommonLimit { job: JobName, lowest: u32, highest: u32 },
    #[error("no plan was worth keeping: job {job} is at default clocks")]
    NothingKept { job: JobName },
    #[error("cannot run the helper {command:?}: {source}")]
    Helper { command: String, source: io::Error },
    #[error("the helper {command:?} ended before the measurement was over: {status}")]
    HelperEnded { command: String, status: ExitStatus },
    #[error("the helper has not let both GPUs wait within {seconds} s")]
    HelperSlow { seconds: u64 },
    #[error("it takes two GPUs to wait for each other; found {found}")]
    NoTwoGpus { found: usize },
    #[error("cannot wait for Ctrl-C: {0}")]
    Signals(nix::Error),
    #[error("cannot write to {}: {source}", .directory.display())]
    Generate { directory: PathBuf, source: io::Error },
    #[error("cannot write the answer: {0}")]
    Output(#[from] io::Error),
    #[error("cannot write the answer as JSON: {0}")]
    Json(serde_json::Error),
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        Self::MakePlan(Failure::BadRequest(error))
    }
}

impl Error {
    /// What the process exits with.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::NoSocket(_)
            | Self::NobodyListens(_)
            | Self::Connect { .. }
            | Self::NoAnswer { .. }
            | Self::Vanished { .. } => Exit::Unreachable,
            Self::SocketClosedToUser { .. }
            | Self::NoLease { .. }
            | Self::NoSuchJob { .. }
            | Self::NoSuchSweep { .. } => Exit::Refused,
            Self::Refused(refusal) => Exit::of_refusal(refusal.code),
            Self::ReadPlan { .. } | Self::PlanTooLarge { .. } | Self::BadPlan { .. } => Exit::Usage,
            Self::MakePlan(failure) => failure.exit(),
            Self::Interrupted { .. } => Exit::Interrupted,
            Self::NothingKept { .. } => Exit::NothingKept,
            // Who reads no further (`| head`) has what it wanted.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            Self::Version { .. }
            | Self::Frame { .. }
            | Self::OtherAnswer { .. }
            | Self::ConfigRefused(_)
            | Self::Unwell { .. }
            | Self::NotAllChanged { .. }
            | Self::NotRestored { .. }
            | Self::SweepPaused { .. }
            | Self::OtherRanks { .. }
            | Self::StagesElsewhere { .. }
            | Self::NoEnergy { .. }
            | Self::NoWaits { .. }
            | Self::UnknownMicrobatches { .. }
            | Self::NoCommonLimit { .. }
            | Self::Signals(_)
            | Self::Generate { .. }
            | Self::Output(_)
            | Self::Helper { .. }
            | Self::HelperEnded { .. }
            | Self::HelperSlow { .. }
            | Self::NoTwoGpus { .. }
            | Self::Json(_) => Exit::Failed,
        }
    }

    /// What to do about it, where something can be said.
    pub(crate) fn remedy(&self) -> Option<String> {
        match self {
            Self::NoSocket(_) | Self::NobodyListens(_) => Some(format!(
                "is pfod running? {LOOK_AT_THE_DAEMON}; --socket or PFO_SOCKET names another socket"
            )),
            Self::SocketClosedToUser { user, .. } => Some(format!(
                "members of the group pfo may (of pfo-admin, to administer): have an administrator \
                 run `usermod -aG pfo {user}`, then log in again"
            )),
            Self::NoAnswer { .. } | Self::Vanished { .. } => Some(LOOK_AT_THE_DAEMON.to_owned()),
            Self::Version { .. }
            | Self::Frame {
                source: FrameError::Version(_) | FrameError::Payload { .. }, ..
            } => Some(
                "install the same release of pfod and pfoctl, then `systemctl restart pfod`"
                    .to_owned(),
            ),
            Self::Refused(refusal) => {
                Some(refusal.remedy.clone()).filter(|remedy| !remedy.is_empty())
            }
            Self::ConfigRefused(_) => {
                Some("what was in force before stays in force; correct it and reload".to_owned())
            }
            Self::NoSuchJob { .. } => Some("`pfoctl status` lists the jobs".to_owned()),
            Self::NoSuchSweep { .. } => Some(
                "`pfoctl profile start` begins a sweep; `pfoctl profile list` shows what is stored"
                    .to_owned(),
            ),
            Self::SweepPaused { .. } => {
                Some("`pfoctl profile resume` goes on with it, `stop` ends it".to_owned())
            }
            Self::PlanTooLarge { .. } => {
                Some("write the JSON without indentation, or plan fewer microbatches".to_owned())
            }
            Self::BadPlan { .. } => {
                Some("`pfoctl plan export` writes plans that the daemon takes".to_owned())
            }
            Self::Helper { .. } | Self::HelperEnded { .. } | Self::HelperSlow { .. } => Some(
                "`pip install pfo torch` gives the default one what it takes; --helper names another"
                    .to_owned(),
            ),
            Self::NoTwoGpus { .. } => {
                Some("name two free ones with --gpus; `pfoctl status` shows which are".to_owned())
            }
            Self::NotAllChanged { .. } => Some("`pfoctl status` shows what runs now".to_owned()),
            Self::NotRestored { .. } => Some(
                "a GPU that a rank holds is freed when the rank ends; `pfoctl status` tells about others"
                    .to_owned(),
            ),
            Self::OtherRanks { .. } => {
                Some("figures of different ranks cannot be compared; measure again".to_owned())
            }
            Self::StagesElsewhere { .. } => Some(
                "if they are on other nodes, run `pfoctl profile start` on each, plan with the rows of all \
                 in one file, and run `pfoctl plan swap` on each with the same --at-step"
                    .to_owned(),
            ),
            Self::Connect { .. }
            | Self::Interrupted { .. }
            | Self::NoEnergy { .. }
            | Self::NoWaits { .. }
            | Self::UnknownMicrobatches { .. }
            | Self::NoCommonLimit { .. }
            | Self::NothingKept { .. }
            | Self::Frame { .. }
            | Self::OtherAnswer { .. }
            | Self::NoLease { .. }
            | Self::Unwell { .. }
            | Self::ReadPlan { .. }
            | Self::MakePlan(_)
            | Self::Signals(_)
            | Self::Generate { .. }
            | Self::Output(_)
            | Self::Json(_) => None,
        }
    }
}
