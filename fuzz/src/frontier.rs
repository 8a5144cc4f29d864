//! A frontier file. What is one can be written, and every plan of it made.
use pfo_planner::Frontier;

/// The target.
pub fn frontier(bytes: &[u8]) {
    let Ok(frontier) = Frontier::from_bytes(bytes) else { return };
    frontier.to_bytes().unwrap();
    for place in 0..frontier.plans().len().min(8) {
        let _ = frontier.plan(place);
    }
}
