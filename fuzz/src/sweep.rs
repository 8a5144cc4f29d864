//! The sweeps that the last daemon left on disk. One that is a sweep can be shown, gone on with and kept
//! again as it is.
use pfo_protocol::{SweepState, TrialResult, TrialStep};
use pfod::sweep::file;

/// The target.
pub fn sweep(bytes: &[u8]) {
    let Ok(mut record) = file::parse(bytes) else { return };
    let written = file::content(&record).unwrap();
    assert_eq!(file::parse(&written).unwrap(), record);
    let _ = (record.status(SweepState::Running), record.csv(), record.next().run());
    let step = TrialStep { time_s: 1.0, energy_j: None };
    let trial = TrialResult { plan: None, first_step: 0, steps: vec![step], ranks: Vec::new() };
    let _ = record.take(&trial);
    let _ = record.status(SweepState::Running);
}
