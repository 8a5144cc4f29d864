#![doc = include_str!("../README.md")]

mod by_clock;
mod choices;
mod error;
mod excerpt;
mod frontier;
mod late;
mod limits;
mod lowtime_file;
mod noise;
mod parallel;
mod payload;
mod pipeline;
mod plan;
mod policy;
mod profile;
mod progress;
mod prospect;
mod realise;
mod relaxation;
mod replay;
mod schedule;
mod step;
#[cfg(test)]
mod test_profiles;
mod waits;
mod warning;
mod what_if;

pub use error::PlanError;
pub use frontier::clock_per::ClockPer;
pub use frontier::confident::{Confidence, Scatter};
pub use frontier::deadline::Deadline;
pub use frontier::due::Due;
pub use frontier::file::Room;
pub use frontier::file::error::FrontierFileError;
pub use frontier::optimize::{Options, Spread};
pub use frontier::replan::{Condition, Conditions};
pub use frontier::straggler::Straggler;
pub use frontier::written::WrittenDeadline;
pub use frontier::{Frontier, Point};
pub use lowtime_file::{Generation, LowtimePlan};
pub use noise::{Noise, Smoothed, Treated};
pub use payload::file::KareusPayloads;
pub use payload::{Payload, PlannedPayload};
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
pub use profile::parts::Part;
pub use profile::quantity::Quantity;
pub use profile::repeats::Repeats;
pub use profile::unheld::Unheld;
pub use prospect::{Prospect, Seen};
pub use relaxation::bound::LowerBound;
pub use replay::interval::{Interval, interval};
pub use replay::rest::Rest;
pub use replay::timeline::{Span, Timeline};
pub use replay::{Replay, at_highest_clocks, replay};
pub use schedule::name::{Schedule, UnknownSchedule};
pub use schedule::settings::Settings;
pub use step::delays::{Delays, LatencyByClock};
pub use step::dependencies::{Dependency, StageUnit};
pub use step::order::{Order, StageOrder};
pub use step::overlap::OverlappedForward;
pub use step::placement::Placement;
pub use step::recorded::Ran;
pub use waits::PlannedWait;
pub use waits::per_stage::PerStage;
pub use waits::power::PowerByClock;
pub use warning::finding::{Finding, Warning};
pub use warning::summary::summarised;
pub use warning::warnings;
pub use what_if::{Answer, Change, WhatIfs};
