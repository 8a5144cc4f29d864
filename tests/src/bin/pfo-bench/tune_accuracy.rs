//! How near a tuned job comes to the most that the tables of its simulated GPUs allow.

use nvidia_ml::model::GpuModel;
use nvidia_ml::units::Milliwatts;
use nvidia_ml::work::profile_csv::held;
use nvidia_ml::work::{built_in, profile_csv};
use pfo_planner::{LowerBound, Pipeline, Policy, Profile, Schedule, Watts};
use pfo_tests::{Identity, MachineSetup, Node, STAGES, Setup, Training};
use serde_json::Value;

use crate::Result;
use crate::extent::Extent;
use crate::report::{Cell, Report};

const JOB: &str = "bench-tune";
const MICROBATCHES: u32 = 4;
const MAX_SLOWDOWN: f64 = 0.02;

/// Tunes a job of unequal stages of which nothing is known before.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let machine = MachineSetup {
        gpus: "4xA100",
        set_latency_ms: 8,
        settle_ms: 15,
        ..MachineSetup::default()
    };
    let node = Node::start_with(&Setup { machine, ..Setup::default() });
    let user = Identity::trainer();
    let microbatches = MICROBATCHES.to_string();
    let time_scale = extent.of("1", "0.1");
    let options = ["--time-scale", time_scale, "--microbatches", &microbatches];
    let training = Training::start(&node, JOB, &user, &options);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let slowdown = format!("{}%", 100.0 * MAX_SLOWDOWN);
    let tune = ["tune", JOB, "--max-slowdown", &slowdown, "--set", "sweep_steps=2", "--json"];
    let short = ["--set", "sweep_stride=600", "--set", "rounds=2", "--steps", "4"];
    let length = extent.of(&[][..], &short);
    let found = node.pfoctl(&user, &[&tune[..], length].concat()).json();
    training.stop();
    let tried = found["tried"].as_array().map_or(&[][..], Vec::as_slice);
    let rows: Vec<_> = tried.iter().map(row).collect();
    report.table(
        "tune_accuracy",
        &format!(
            "What `pfoctl tune` reaches in steps at most {} longer, of the {:.2} % that the best plan for \
             the true tables saves\n(aim: within 1 point)",
            slowdown,
            100.0 * possible()?
        ),
        &[
            ("plan", "plan"),
            ("verdict", "verdict"),
            ("saving_percent", "saving %"),
            ("saving_low_percent", "from"),
            ("saving_high_percent", "to"),
            ("slowdown_percent", "slowdown %"),
            ("slowdown_low_percent", "from"),
            ("slowdown_high_percent", "to"),
        ],
        &rows,
    );
    Ok(())
}

fn row(tried: &Value) -> Vec<Cell> {
    let mut cells: Vec<_> =
        ["plan", "verdict"].map(|name| Cell::text(tried[name].as_str().unwrap_or_default())).into();
    for what in ["saving", "slowdown"] {
        cells.extend(["estimate", "low", "high"].map(|figure| {
            Cell::Figure(100.0 * tried[what][figure].as_f64().unwrap_or(f64::NAN), 2)
        }));
    }
    cells
}

/// What no plan saves more than, with the true tables.
fn possible() -> Result<f64> {
    let facts = GpuModel::A100.facts();
    let stages = (0..STAGES as usize)
        .map(|stage| built_in::stage(facts, stage, STAGES as usize))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let mut csv = Vec::new();
    profile_csv::write(&mut csv, &stages, &held(facts), Milliwatts(u32::MAX))?;
    let profile = Profile::from_csv(csv.as_slice())?;
    let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, MICROBATCHES)?;
    let power = Watts(facts.p2p_blocking_w);
    let default = Policy::AllMax.outcome(&pipeline, power, &|_| {})?;
    let default = default.plans.first().and_then(|plan| plan.predicted);
    let default = default.ok_or("nothing is predicted of default clocks")?;
    let limit_s = (1.0 + MAX_SLOWDOWN) * default.iteration_time_s;
    let least_j = LowerBound::new(&pipeline, power).energy_j(limit_s);
    Ok(1.0 - least_j / default.iteration_energy_j)
}
