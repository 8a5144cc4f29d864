//! A plan as a client sends it. What is one is so again after it was written and read, and the ranks'
//! form of it has the same instructions.
use pfo_planner::Plan;
use pfod::fit::JobPlan;

/// The target.
pub fn plan(bytes: &[u8]) {
    let Ok(plan) = Plan::from_json(bytes) else { return };
    let written = plan.to_json().unwrap();
    assert_eq!(Plan::from_json(written.as_bytes()).unwrap(), plan);
    if let Ok(of_job) = JobPlan::new(1, "fuzz".into(), &plan) {
        let counts = plan.stages.iter().map(|stage| stage.instructions.len());
        assert!(of_job.stages().iter().map(|stage| stage.len()).eq(counts));
    }
}
