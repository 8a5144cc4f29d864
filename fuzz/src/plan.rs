//! A plan file. One that is a plan can be written and read again, with the same instructions.
use pfo_planner::Plan;

/// The target.
pub fn plan(bytes: &[u8]) {
    let Ok(plan) = Plan::from_json(bytes) else { return };
    let written = plan.to_json().unwrap();
    // Of numbers with more digits than any measurement has, the last one may differ.
    assert_eq!(Plan::from_json(written.as_bytes()).unwrap().stages, plan.stages);
}
