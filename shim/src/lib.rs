//! The library that a trainer links: it reports the begin and the end of each instruction to `pfod`,
//! so that the daemon can give every instruction its own GPU clock.
//!
//! Training never suffers. Once a [`Session`] is open, its calls never block, fail, print or signal:
//! without a daemon, with a full socket or a refused lease, events are dropped and counted while a
//! background thread reconnects, and training continues at default clocks. [`Session::open`] returns
//! an error for an invalid description; [`Session::problem`] returns the reason for a missing lease, and
//! [`Session::plan_problem`] why the job does not begin with the plan that was named.
//!
//! ```no_run
//! use pfo::{Instruction, Rank, RankDescription, Session, Stage};
//!
//! # fn main() -> Result<(), pfo::DescriptionError> {
//! let session = Session::open(RankDescription {
//!     rank: Rank(2),
//!     pp_rank: Stage(2),
//!     pp_degree: 4,
//!     num_microbatches: Some(8),
//!     ..RankDescription::default()
//! })?;
//! if let Some(problem) = session.problem() {
//!     eprintln!("training at default clocks: {problem}");
//! }
//! for _ in 0..100 {
//!     session.step_begin();
//!     for microbatch in 0..8 {
//!         session.instruction_begin(Instruction::Forward, microbatch);
//!         // … wait for the GPU to finish the forward …
//!         session.instruction_end();
//!     }
//!     session.step_end();
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A begin is meant to be sent when the GPU starts the work and an end when it is done with it: a
//! launch is not a begin. For a host that runs ahead of its GPU, [`StreamOrdered`] sends both when
//! the GPU gets there.
//!
//! # Environment
//!
//! | variable | gives |
//! |---|---|
//! | `PFO_SOCKET` | the daemon's socket, else `/run/pfo/pfod.sock` |
//! | `PFO_JOB`, `SLURM_JOB_ID` | the job |
//! | `PFO_GPU` | the GPU, as [`Gpu`] reads it |
//! | `LOCAL_RANK`, `OMPI_COMM_WORLD_LOCAL_RANK`, `MPI_LOCALRANKID`, `PMI_LOCAL_RANK`, `SLURM_LOCALID` | the GPU's CUDA ordinal, if nothing else says which of several it is |
//! | `CUDA_VISIBLE_DEVICES`, `CUDA_DEVICE_ORDER` | what a CUDA ordinal means |
//! | `PFO_PLAN` | the plan with which the job begins: a file, or `auto` for the one that is kept for it |
//! | `PFO_AGENT_SOCKET` | the agent's socket, else `pfo-agent.sock` beside the daemon's; only for a plan |
//! | `PFO_DEVICES` | the directory of the GPU device files, else `/dev` |
//!
//! The fields of a description have precedence; the environment fills those that it leaves out.

#![deny(unsafe_code)]

mod background;
mod backoff;
#[allow(unsafe_code, reason = "a C ABI is unsafe by nature; each block says why it holds")]
mod c_api;
#[allow(unsafe_code, reason = "reads and writes structures of C callers")]
mod c_rank;
mod c_session;
#[allow(unsafe_code, reason = "writes into buffers of C callers")]
mod c_text;
mod call;
mod cuda;
mod cuda_events;
mod cuda_library;
mod description;
mod devices;
mod first_plan;
mod fork;
mod gpu;
mod gpu_clock;
mod groups;
mod guard;
mod launcher;
mod lease;
mod line;
mod link;
mod problem;
mod session;
mod shared;
mod stream_ordered;
mod thread;
mod unread;
mod visible;

pub use call::Call;
pub use cuda_events::Stream;
pub use description::{DescriptionError, RankDescription};
pub use gpu::{Gpu, GpuError};
pub use guard::{InstructionGuard, StepGuard};
pub use launcher::launched_rank;
pub use lease::Lease;
pub use line::Counters;
pub use pfo_protocol::{
    Chunk, ClosingReason, DpRank, GpuUuid, Instruction, Microbatch, PciBusId, Rank, RefusalCode,
    Stage, TpRank, Unit,
};
pub use problem::{Problem, ProblemCode};
pub use session::Session;
pub use stream_ordered::{StreamOrdered, Told, context_ordinal, wait_for_gpu};
pub use visible::cuda_gpus;

/// The version of this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
