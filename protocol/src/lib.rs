#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod agent;
mod clock_table;
mod codec;
mod event;
mod frame;
mod gpu_list;
mod job;
mod line;
mod message;
mod range;
mod request;
mod session;
mod settle;
mod status;
mod tap;
mod trial;

pub use agent::budget::{
    BudgetChange, BudgetDraft, BudgetFileTrouble, BudgetLevel, BudgetOrder, BudgetReason,
    BudgetReport, BudgetScope, BudgetStatus, BudgetSteering, BudgetTerms, BudgetedJob,
    FleetBudgets, FleetOrder, SIGNED_CONTEXT, SignedBudgets, from_hexadecimal, hexadecimal,
};
pub use agent::calibration::{CalibratedClock, Calibration, CounterCheck, MemoryLock, ShareMore};
pub use agent::first_plan::{BeginningRank, FirstPlan, FirstPlanState, PlanFile};
pub use agent::fleet::{
    FleetFinding, FleetJob, FleetLate, FleetMember, FleetNode, FleetOutcome, FleetStatus,
    FleetStep, FleetSwap, FleetSwapped, FleetWindow,
};
pub use agent::own_order::{RanUnit, RankOrder};
pub use agent::p2p::{P2pPower, P2pSource, P2pTarget};
pub use agent::recorded::{LeftOut, RecordedRank, RecordedTrial, TrialRow, WaitPower};
pub use agent::request::{AgentRequest, AgentResponse};
pub use agent::sample::{Doubt, InstructionSample, SamplePage};
pub use agent::savings::{
    SavedEnergy, Savings, SavingsBy, SavingsNode, SavingsQuery, SavingsReport, SavingsRow, Tariff,
    Worth,
};
pub use agent::status::{
    AgentStatus, CurvePoint, DriftStatus, DriftedInstruction, DriftedRank, FrontierStatus,
    GuardStatus, SlowRank, WatchedJob,
};
pub use agent::sweep::{
    ProfileKey, ProfileSelector, StoredProfile, SweepControl, SweepEnd, SweepOrder, SweepSettings,
    SweepSettingsError, SweepState, SweepStatus,
};
pub use agent::tune::{TuneEnd, TuneOrder, TuneReport, TuneState, TuneStatus};
pub use clock_table::{ClockTable, ClockTableError, PlannedUnit, Predicted};
pub use codec::CodecError;
pub use event::{EVENT_FRAME_BYTES, Event, Mark};
pub use frame::{Frame, FrameError, HEADER_BYTES, Header, Kind, LARGEST_PAYLOAD, VERSION};
pub use job::{JobSelector, JobView, RankView, RankWindow, SwapTarget, Swapped};
pub use line::{check_label, check_line};
pub use message::{ClientMessage, DaemonMessage};
pub use pfo_vocabulary::{
    Chunk, DpRank, DriverUse, Gid, GpuName, GpuUuid, Instruction, JobName, Mhz, Microbatch,
    Milliwatts, NameError, PartitionName, PciBusId, Pid, Rank, SessionId, Stage, ThrottledNs,
    TpRank, Uid, Unit,
};
pub use range::OutOfRange;
pub use request::{
    GpuGrant, GpuListing, LeaseStatus, LeaseTarget, LeaseTerms, PolicyVerdict, Reloaded, Request,
    ResetOutcome, Response, RevocationStatus, User,
};
pub use session::{
    Closing, ClosingReason, Hello, PositionError, RankPosition, Refusal, RefusalCode, Unsupported,
    Welcome,
};
pub use settle::{SettleTime, SettleTimes, SettleTimesError};
pub use status::{
    ConfigStatus, DaemonStatus, Drained, GpuStatus, Holder, JobStatus, MeasuredBy, MeterStatus,
    PlanStatus, RankStatus, Status, Window,
};
pub use tap::{CounterReading, Notice, TapBatch, TapRecord, TappedRank};
pub use trial::{MOST_CLOCKS, TrialLength, TrialRank, TrialResult, TrialRun, TrialStep};

/// Where trainers reach `pfod`.
pub const TRAINER_SOCKET: &str = "/run/pfo/pfod.sock";

/// Where administrators reach `pfod`.
pub const ADMIN_SOCKET: &str = "/run/pfo/admin.sock";

/// Where the agent reaches `pfod`.
pub const AGENT_SOCKET: &str = "/run/pfo/agent.sock";

/// Where users reach the agent.
pub const PFO_AGENT_SOCKET: &str = "/run/pfo/pfo-agent.sock";

/// Where administrators reach the agent.
pub const PFO_AGENT_ADMIN_SOCKET: &str = "/run/pfo/pfo-agent-admin.sock";
