//! A plan file of lowtime, Perseus or Zeus, or of Kareus beside it, which is Python and parsed without
//! running it.

use pfo_planner::{KareusPayloads, LowtimePlan, Schedule};

/// The target.
pub fn lowtime_plan(bytes: &[u8]) {
    let _ = KareusPayloads::from_bytes(bytes);
    let likely = LowtimePlan::is_likely(bytes);
    let Ok(plan) = LowtimePlan::from_bytes(bytes) else { return };
    assert!(likely, "what is such a file looks like one");
    let _ = plan.num_microbatches(Schedule::OneForwardOneBackward);
    let _ = plan.num_microbatches(Schedule::EarlyRecomputation);
}
