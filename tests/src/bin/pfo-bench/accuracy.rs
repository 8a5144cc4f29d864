//! How near a sweep comes to the tables that the simulated GPUs work by, for short and long instructions.

use std::fs::File;

use nvidia_ml::model::GpuModel;
use nvidia_ml::units::{Mhz, Milliwatts};
use nvidia_ml::work::profile_csv::held;
use nvidia_ml::work::table::{Kind, StageWork, Work, WorkPoint};
use nvidia_ml::work::{built_in, profile_csv};
use pfo_tests::{Identity, MachineSetup, Node, STAGES, Setup, Training};

use crate::Result;
use crate::extent::Extent;
use crate::report::{Cell, Report};

const JOB: &str = "bench-accuracy";

/// Of the built-in instructions, which take 70 to 360 ms.
const TIME_SCALES: [f64; 4] = [0.2, 0.05, 0.013, 0.006];

/// Forwards that draw so much less than backwards show it if the two are mixed up.
const FORWARD_POWER_SHARE: f64 = 0.7;

/// What is promised, as shares.
const TIME_AIM: f64 = 0.005;
const ENERGY_AIM: f64 = 0.02;

/// How far a row of a profile is from the truth, as shares of it.
#[derive(Clone, Copy)]
struct Off {
    true_ms: f64,
    time: f64,
    energy: f64,
}

/// Sweeps jobs of ever shorter instructions.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let mut found = Vec::new();
    for time_scale in extent.of(&TIME_SCALES[..], &TIME_SCALES[1..2]) {
        found.extend(sweep(*time_scale, extent)?);
    }
    found.sort_by(|one, other| one.true_ms.total_cmp(&other.true_ms));
    let octave = |off: &Off| off.true_ms.log2().floor();
    let rows: Vec<_> = found.chunk_by(|one, other| octave(one) == octave(other)).map(row).collect();
    report.table(
        "accuracy",
        "How far the rows of sweeps are from the true tables of the simulated GPUs, whose counters are \
         refreshed every 20 ms\n(aim: 0.5 % in time, 2 % in energy)",
        &[
            ("duration", "instructions of"),
            ("rows", "rows"),
            ("time_median_percent", "time off % p50"),
            ("time_worst_percent", "worst"),
            ("energy_median_percent", "energy off % p50"),
            ("energy_worst_percent", "worst"),
        ],
        &rows,
    );
    let is_within = |off: &&Off| off.time <= TIME_AIM && off.energy <= ENERGY_AIM;
    match found.iter().rev().take_while(is_within).last() {
        Some(off) => report.note(&format!(
            "An instruction of {:.2} ms and all that are longer are within the aims.",
            off.true_ms
        )),
        None => report.note("The longest instruction is not within the aims."),
    }
    Ok(())
}

fn row(off: &[Off]) -> Vec<Cell> {
    let span = format!("{:.2} to {:.2} ms", off[0].true_ms, off[off.len() - 1].true_ms);
    let mut cells = vec![Cell::text(span), Cell::count(off.len() as u64)];
    for figure in [|off: &Off| off.time, |off: &Off| off.energy] {
        let mut figures: Vec<f64> = off.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        let at = |place: usize| Cell::Figure(100.0 * figures[place], 2);
        cells.extend([at(figures.len() / 2), at(figures.len() - 1)]);
    }
    cells
}

/// Sweeps a job, as its user would, and compares every row of its profile.
fn sweep(time_scale: f64, extent: Extent) -> Result<Vec<Off>> {
    let machine = MachineSetup {
        gpus: "4xA100",
        set_latency_ms: 8,
        settle_ms: 15,
        ..MachineSetup::default()
    };
    let node = Node::start_with(&Setup { machine, ..Setup::default() });
    let user = Identity::trainer();
    let stages = stages()?;
    let path = node.directory().join("true.csv");
    profile_csv::write(
        File::create(&path)?,
        &stages,
        &held(GpuModel::A100.facts()),
        Milliwatts(u32::MAX),
    )?;
    let (path, scale) = (path.display().to_string(), time_scale.to_string());
    let options = ["--profile", &path, "--time-scale", &scale, "--microbatches", "8"];
    let training = Training::start(&node, JOB, &user, &options);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let start = ["profile", "start", JOB, "--min-mhz", "800", "--wait", "--stride"];
    let length = extent.of(&["200"][..], &["600", "--steps", "2"]);
    let _ = node.pfoctl(&user, &[&start[..], length].concat()).printed();
    let csv = node.pfoctl(&user, &["profile", "export", JOB]).printed();
    training.stop();
    let stages: Vec<_> = stages.into_iter().map(|stage| stage.scaled(time_scale)).collect();
    csv.lines().skip(1).map(|line| compare(line, &stages)).collect()
}

fn compare(line: &str, stages: &[StageWork]) -> Result<Off> {
    let [stage, instruction, mhz, time_s, energy_j, ..] = line.split(',').collect::<Vec<_>>()[..]
    else {
        return Err(format!("not a row of a profile: {line}").into());
    };
    let kind = if instruction == "forward" { Kind::Forward } else { Kind::Backward };
    let (work, clock) = (stages[stage.parse::<usize>()?].of(kind), Mhz(mhz.parse()?));
    let off = |measured: &str, truth: f64| -> Result<f64> {
        Ok((measured.parse::<f64>()? / truth - 1.0).abs())
    };
    Ok(Off {
        true_ms: 1e3 * work.time_s(clock),
        time: off(time_s, work.time_s(clock))?,
        energy: off(energy_j, work.energy_j(clock))?,
    })
}

fn stages() -> Result<Vec<StageWork>> {
    let with = |work: &Work, share: f64| {
        let point = |point: &WorkPoint| WorkPoint {
            power: Milliwatts::from_watts(share * point.power.watts()),
            ..*point
        };
        Work::new(work.points().iter().map(point).collect())
    };
    (0..STAGES as usize)
        .map(|stage| {
            let work = built_in::stage(GpuModel::A100.facts(), stage, STAGES as usize)?;
            let forward = with(work.of(Kind::Forward), FORWARD_POWER_SHARE)?;
            Ok(StageWork { forward, ..work })
        })
        .collect()
}
