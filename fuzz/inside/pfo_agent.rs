//! What fuzz targets reach inside of `pfo-agent`: what reads files, and what computes from numbers
//! of a rank. It is part of the crate only with the feature `fuzzing`.

mod agent;

use pfo_protocol::{
    Mhz, RecordedTrial, SettleTimes, SweepState, TapRecord, TrialResult, TrialStep,
};

pub use self::agent::{Watch, sweep_of};
use crate::p2p::parse_powers;
use crate::record::{Digest, RecordedGpu};
use crate::sweep::{parse_sweep, sweep_content};

/// A sweep that is read can be shown, continued and kept again. False for bytes that are no sweep.
///
/// # Panics
/// If it cannot.
pub fn sweep(bytes: &[u8]) -> bool {
    let Ok(mut record) = parse_sweep(bytes) else { return false };
    let written = sweep_content(&record).expect("a record can be written");
    // Figures with more digits than a float has may differ in the last one.
    let again = parse_sweep(&written).expect("what was written can be read");
    assert_eq!((again.key(), again.profile()), (record.key(), record.profile()));
    let _ = (record.status(SweepState::Running), record.csv(), record.run());
    let step = TrialStep { time_s: 1.0, energy_j: None };
    let trial = TrialResult { plan: None, first_step: 0, steps: vec![step], ranks: Vec::new() };
    let _ = record.take(&RecordedTrial { trial, ranks: Vec::new() });
    let _ = record.status(SweepState::Running);
    true
}

/// The powers of a file are plausible. False for bytes that hold none.
///
/// # Panics
/// If they are not.
pub fn powers(bytes: &[u8]) -> bool {
    let Ok(powers) = parse_powers(bytes) else { return false };
    let mut powers = powers.all().peekable();
    let is_some = powers.peek().is_some();
    assert!(powers.all(|power| power.power_w > 0.0 && power.error_w >= 0.0));
    is_some
}

/// Records of a rank in any order and with any times give figures that are finite.
///
/// # Panics
/// If they do not.
pub fn digest(records: impl Iterator<Item = TapRecord>) {
    let gpu = RecordedGpu {
        sm_clocks: vec![Mhz(1395), Mhz(1410)],
        settle: SettleTimes::always(15_000_000),
    };
    let mut digest = Digest::new(0..u64::MAX, gpu, Some(64));
    records.for_each(|record| digest.take(record));
    let _ = digest.is_complete();
    let recorded = digest.finish();
    for row in &recorded.rows {
        assert!(row.time_mean_s.is_finite() && row.time_mean_s >= 0.0, "{row:?}");
    }
}
