//! From a measured profile to the time-energy frontier and its plans.
//!
//! Pure: no I/O but the parsing and writing of its own file formats, from and to bytes.
//!
//! ```text
//! profile ─┬─ noise ─ pipeline ─ choices ─┬─ relaxation ─ realise ─┬─ frontier ─ plan ─ replay
//!       warning         │                 └──────── late ──────────┘
//!                step, schedule
//! ```
//!
//! | folder | what it holds |
//! |---|---|
//! | `profile` | measured rows, and how they are read, averaged and written |
//! | `noise`, `warning` | smoothing of noisy rows; what looks wrong in a profile |
//! | `step` | the operations of a step, and which wait for which |
//! | `schedule` | the orders in which stages run instructions |
//! | `pipeline` | a profile and an order together: what is planned for |
//! | `choices` | the clocks worth choosing for each operation |
//! | `relaxation` | the exact frontier if clocks could be mixed: a lower bound |
//! | `realise` | from the relaxed optimum to plans of measured clocks |
//! | `late` | clocks that are in force only milliseconds after they are set |
//! | `frontier` | all plans of a pipeline, how one is picked, their file |
//! | `plan`, `lowtime_file` | one plan, and its files |
//! | `waits` | clocks of waits, and what waiting draws by clock |
//! | `replay` | what a plan costs on a profile: the yardstick of every plan |
//! | `policy` | what other systems would run on the same profile |

mod choices;
mod error;
mod excerpt;
mod frontier;
mod late;
mod limits;
mod lowtime_file;
mod noise;
mod parallel;
mod pipeline;
mod plan;
mod policy;
mod profile;
mod realise;
mod relaxation;
mod replay;
mod schedule;
mod step;
#[cfg(test)]
mod test_profiles;
mod waits;
mod warning;

pub use error::PlanError;
pub use frontier::clock_per::ClockPer;
pub use frontier::deadline::Deadline;
pub use frontier::file::Room;
pub use frontier::file::error::FrontierFileError;
pub use frontier::optimize::{Options, Spread};
pub use frontier::straggler::Straggler;
pub use frontier::{Frontier, Point};
pub use lowtime_file::{Generation, LowtimePlan};
pub use noise::{Noise, Smoothed, Treated};
pub use pfo_vocabulary::{Chunk, Instruction, Mhz, Microbatch, Stage, Unit, Watts};
pub use pipeline::Pipeline;
pub use plan::{Plan, PlannedInstruction, Prediction, StagePlan};
pub use policy::{
    Attribution, End, EnvPipe, EnvPipeType, Filter, Lowtime, OfflineEnvPipe, Outcome, Policy,
    Reconfiguration, Reconfigure, Tuning, UnitTime, Zeus, ZeusFound, ZeusSearch, ZeusSettings,
    ZeusWindow,
};
pub use profile::Profile;
pub use profile::combine::Combine;
pub use profile::error::ProfileError;
pub use profile::left_out::LeftOut;
pub use profile::measurement::Measurement;
pub use profile::quantity::Quantity;
pub use profile::repeats::Repeats;
pub use profile::unheld::Unheld;
pub use relaxation::bound::LowerBound;
pub use replay::timeline::{Span, Timeline};
pub use replay::{Replay, at_highest_clocks, replay};
pub use schedule::name::{Schedule, UnknownSchedule};
pub use schedule::settings::Settings;
pub use step::delays::Delays;
pub use step::dependencies::{Dependency, StageUnit};
pub use step::order::{Order, StageOrder};
pub use waits::PlannedWait;
pub use waits::power::PowerByClock;
pub use warning::finding::{Finding, Warning};
pub use warning::summary::summarised;
pub use warning::warnings;
