//! A plan as a client sends it. What is one is so again after it was written and read, with the
//! same instructions, and so is the ranks' form of it.
use pfo_planner::Plan;
use pfod::fit::JobPlan;

/// The target.
pub fn plan(bytes: &[u8]) {
    let Ok(plan) = Plan::from_json(bytes) else { return };
    let written = plan.to_json().unwrap();
    // Of numbers with more digits than any measurement has, the last one may differ.
    assert_eq!(Plan::from_json(written.as_bytes()).unwrap().stages, plan.stages);
    if let Ok(of_job) = JobPlan::new(1, "fuzz".into(), &plan) {
        let counts = plan.stages.iter().map(|stage| stage.instructions.len());
        assert!(of_job.stages().iter().map(|stage| stage.len()).eq(counts));
    }
}
