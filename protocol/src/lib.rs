#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod codec;
mod event;
mod frame;
mod instruction;
mod message;
mod name;
mod p2p;
mod request;
mod sample;
mod session;
mod status;
mod sweep;
mod trial;

pub use codec::CodecError;
pub use event::{EVENT_FRAME_BYTES, Event, Mark, Unit};
pub use frame::{Frame, FrameError, HEADER_BYTES, Header, Kind, LARGEST_PAYLOAD, VERSION};
pub use instruction::Instruction;
pub use message::{ClientMessage, DaemonMessage};
pub use name::{GpuName, GpuUuid, JobName, NameError, PciBusId};
pub use p2p::{P2pPower, P2pSource, P2pTarget};
pub use request::{
    GpuListing, JobSelector, LeaseStatus, LeaseTarget, LeaseTerms, PolicyVerdict, Reloaded,
    Request, ResetOutcome, Response, RevocationStatus, SwapTarget, Swapped, User,
};
pub use sample::{Doubt, InstructionSample, SamplePage};
pub use session::{
    Closing, ClosingReason, Hello, RankPosition, Refusal, RefusalCode, Unsupported, Welcome,
};
pub use status::{
    ConfigStatus, DaemonStatus, DriftStatus, DriftedInstruction, DriftedRank, FrontierStatus,
    GpuStatus, Holder, JobStatus, MeasuredBy, PlanStatus, RankStatus, Status, Window,
};
pub use sweep::{
    ProfileKey, ProfileSelector, StoredProfile, SweepControl, SweepEnd, SweepOrder, SweepSettings,
    SweepState, SweepStatus,
};
pub use trial::{
    LeftOut, TrialLength, TrialRank, TrialResult, TrialRow, TrialRun, TrialStep, WaitPower,
};

/// Where trainers reach the daemon.
pub const TRAINER_SOCKET: &str = "/run/pfo/pfod.sock";

/// Where administrators reach the daemon.
pub const ADMIN_SOCKET: &str = "/run/pfo/admin.sock";
