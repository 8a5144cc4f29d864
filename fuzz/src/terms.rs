//! The terms of a tune, as a user hands them to the agent. What is taken can be written and read again.
use pfo_experiment::Terms;

/// The target.
pub fn terms(bytes: &[u8]) {
    let Ok(terms) = Terms::from_json(bytes) else { return };
    assert_eq!(Terms::from_json(&terms.to_json().unwrap()), Ok(terms));
}
