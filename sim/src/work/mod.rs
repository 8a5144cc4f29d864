//! The work of a training pipeline: how long each stage's instructions take, and what they draw.

pub mod built_in;
pub mod profile_csv;
pub mod table;
