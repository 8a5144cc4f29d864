//! The sweeps that the last daemon left on disk. One that is a sweep can be shown, gone on with and
//! kept again.
use pfo_protocol::{SweepState, TrialResult, TrialStep};
use pfod::sweep::file;

/// The target.
pub fn sweep(bytes: &[u8]) {
    let Ok(mut record) = file::parse(bytes) else { return };
    let written = file::content(&record).unwrap();
    // Figures with more digits than a float has may differ in the last one.
    let again = file::parse(&written).unwrap();
    assert_eq!((again.key(), again.profile()), (record.key(), record.profile()));
    let _ = (record.status(SweepState::Running), record.csv(), record.next().run());
    let step = TrialStep { time_s: 1.0, energy_j: None };
    let trial = TrialResult { plan: None, first_step: 0, steps: vec![step], ranks: Vec::new() };
    let _ = record.take(&trial);
    let _ = record.status(SweepState::Running);
}
