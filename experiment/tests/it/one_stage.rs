//! Tunes of jobs without a pipeline: one GPU, or replicas that all run the same stage.

use pfo_experiment::{Origin, PowerOrigin, Report, Terms};

use crate::world::{Disturbance, World};

/// A step in no pipeline: no stage, and nothing that says what a GPU draws while it waits for one.
fn tuned(disturbance: Disturbance, max_slowdown: f64) -> (Report, World) {
    let mut world = World::new((1, 4, 3.0), disturbance, 1);
    let terms = Terms { max_slowdown, guard: false, ..Terms::default() };
    let report = world.tuned(terms).unwrap().report;
    (report, world)
}

/// Nothing beside instructions; an optimizer's step that draws much; collectives that draw little, as of FSDP.
const BESIDE: [(f64, f64); 3] = [(0.0, 0.0), (0.1, 320.0), (0.6, 90.0)];

#[test]
fn a_job_of_one_stage_is_tuned_to_within_a_point_of_its_optimum() {
    for beside in BESIDE {
        for max_slowdown in [0.005, 0.02, 0.1] {
            let disturbance = Disturbance { beside, ..Disturbance::default() };
            let (report, world) = tuned(disturbance, max_slowdown);
            let (saving, slowdown) = world.kept().unwrap_or_else(|| panic!("{report:?}"));
            let optimum = world.optimum();
            let found = format!("{saving} of {optimum}, {slowdown} of {max_slowdown}: {beside:?}");
            assert!(saving > optimum - 0.01 && slowdown <= max_slowdown, "{found}");
            let planned_with = report.planned_with.unwrap();
            assert!(matches!(planned_with.p2p_power.origin, PowerOrigin::Unneeded), "{found}");
            let origin = planned_with.profile_origin;
            assert!(matches!(origin, Origin::Learned { .. }), "{found}");
        }
    }
}

#[test]
fn no_step_of_a_job_of_one_stage_is_a_tenth_longer_while_it_is_tuned() {
    let (_, world) = tuned(Disturbance::default(), 0.02);
    assert!(world.longest <= 1.1, "{}", world.longest);
}
