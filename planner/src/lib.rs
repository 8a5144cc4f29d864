//! From a measured profile to the time-energy frontier and its plans.
//!
//! Pure: no I/O but the parsing and writing of its own file formats, from and to bytes.
//!
//! ```text
//! profile ─ noise ─ pipeline ─ network ─ events ─ relaxation ┬ bound
//!               │       └───── tradeoff ─ choices            └ anchor ─ realise ─ regimes ┬ frontier ─ plan
//!            warning                         └ steady ─────────────────────────────┘      └ late_plans ┘
//! ```

mod anchor;
mod assembled;
mod bound;
mod choices;
mod combine;
mod deadline;
mod delays;
mod dependencies;
mod envpipe_table;
mod error;
mod events;
mod excerpt;
mod fixed;
mod flow;
mod frontier;
mod frontier_file;
mod frontier_file_error;
mod late_clocks;
mod late_plans;
mod late_step;
mod left_out;
mod limits;
mod lowtime_file;
mod measurement;
mod median;
mod network;
mod noise;
mod operation;
mod order;
mod order_file;
mod parallel;
mod pareto;
mod pipeline;
mod plan;
mod plan_file;
mod policy;
mod polish;
mod precedence;
mod profile;
mod profile_columns;
mod profile_csv;
mod profile_error;
mod python_literal;
mod quantity;
mod realise;
mod regimes;
mod relaxation;
mod repeats;
mod replay;
mod schedule;
mod settings;
mod steady;
mod straggler;
#[cfg(test)]
mod test_profiles;
mod timeline;
mod tradeoff;
mod warning;

pub use bound::LowerBound;
pub use combine::Combine;
pub use deadline::Deadline;
pub use delays::Delays;
pub use dependencies::{Dependency, StageUnit};
pub use error::PlanError;
pub use frontier::{Frontier, Options, Point, Spread};
pub use frontier_file::Room;
pub use frontier_file_error::FrontierFileError;
pub use left_out::LeftOut;
pub use lowtime_file::{Generation, LowtimePlan};
pub use measurement::Measurement;
pub use noise::{Noise, Smoothed, Treated};
pub use order::{Order, StageOrder};
pub use pfo_vocabulary::{Chunk, Instruction, Mhz, Microbatch, Stage, Unit, Watts};
pub use pipeline::Pipeline;
pub use plan::{Plan, PlannedInstruction, Prediction, StagePlan};
pub use policy::{
    Attribution, End, EnvPipe, EnvPipeType, Filter, Lowtime, OfflineEnvPipe, Outcome, Policy,
    Reconfiguration, Reconfigure, Tuning, UnitTime, Zeus, ZeusFound, ZeusSearch, ZeusSettings,
    ZeusWindow,
};
pub use profile::Profile;
pub use profile_error::ProfileError;
pub use quantity::Quantity;
pub use repeats::Repeats;
pub use replay::{Replay, at_highest_clocks, replay};
pub use schedule::name::{Schedule, UnknownSchedule};
pub use settings::Settings;
pub use straggler::Straggler;
pub use timeline::{Span, Timeline};
pub use warning::finding::{Finding, Warning};
pub use warning::summary::summarised;
pub use warning::warnings;
