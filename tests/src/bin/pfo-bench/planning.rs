//! The planner on a profile of usual size, from the CSV to the frontier file.

use std::fs::File;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use pfo_planner::{
    Condition, Conditions, Delays, Due, Frontier, Instruction, LowerBound, Options, Pipeline,
    Profile, Schedule, Settings, Spread, Stage,
};

use crate::Result;
use crate::bench_profile::BenchProfile;
use crate::extent::Extent;
use crate::report::{Cell, Report};

const EXACT_AIM_S: f64 = 0.1;
/// Numbers of plans, the last one lowtime's for this profile, and the seconds they may take.
const PLANS: [(usize, f64); 3] = [(100, 0.5), (1000, 1.0), (3495, 1.5)];

/// A new plan takes less than a second of one core.
const NEW_PLAN_AIM_S: f64 = 1.0;

/// Milliseconds until a clock is in force, of the frontiers that new plans are made from.
const LATENCIES_MS: [u64; 2] = [0, 23];

/// Measures the exact frontier, plans made from it, and new plans for a stage that is slow.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let bench = BenchProfile::find()?;
    let microbatches = extent.of(96, 12);
    let repetitions = extent.of(5, 1);
    let pipeline = pipeline(&bench.profile, microbatches)?;
    let mut exact = Vec::new();
    let mut plans = PLANS.map(|_| Vec::new());
    let mut sizes = [0; PLANS.len()];
    for _ in 0..repetitions {
        let began = Instant::now();
        LowerBound::new(&pipeline, bench.p2p_power);
        exact.push(began.elapsed());
        for (((count, _), times), size) in PLANS.into_iter().zip(&mut plans).zip(&mut sizes) {
            let began = Instant::now();
            *size = frontier_file(&bench, microbatches, extent.of(count, 20))?;
            times.push(began.elapsed());
        }
    }
    let row = |what: String, times: &mut [Duration], aim_s: f64| {
        times.sort_unstable();
        let seconds = |time: &Duration| Cell::Figure(time.as_secs_f64(), 3);
        let (median, worst) = (&times[repetitions / 2], &times[repetitions - 1]);
        let aim =
            if bench.is_measured() { Cell::Figure(aim_s, 1) } else { Cell::text("measured only") };
        vec![Cell::Text(what), seconds(median), seconds(worst), aim]
    };
    let mut rows = vec![row("exact frontier".into(), &mut exact, EXACT_AIM_S)];
    for (((count, aim_s), mut times), size) in PLANS.into_iter().zip(plans).zip(sizes) {
        let kib = size / 1024;
        let what = format!("{count} deadlines, from CSV to a frontier file of {kib} KiB");
        rows.push(row(what, &mut times, aim_s));
    }
    for latency_ms in LATENCIES_MS {
        let mut times = new_plans(&bench, microbatches, latency_ms, repetitions)?;
        let what = format!("CPU time of a new plan, clocks in force after {latency_ms} ms");
        rows.push(row(what, &mut times, NEW_PLAN_AIM_S));
    }
    report.table(
        "planning",
        &format!(
            "The planner, {} stages x {microbatches} microbatches ({})",
            bench.profile.num_stages(),
            bench.name
        ),
        &[("what", "what"), ("median_s", "median s"), ("worst_s", "worst s"), ("aim_s", "aim s")],
        &rows,
    );
    Ok(())
}

fn pipeline(profile: &Profile, microbatches: u32) -> Result<Pipeline> {
    Ok(Pipeline::new(profile, Schedule::OneForwardOneBackward, microbatches)?)
}

/// The size in bytes of the file.
fn frontier_file(bench: &BenchProfile, microbatches: u32, plans: usize) -> Result<usize> {
    let profile = Profile::from_csv(File::open(&bench.path)?)?;
    let options = Options { plans, spread: Spread::Even };
    let pipeline = pipeline(&profile, microbatches)?;
    let frontier = Frontier::optimize(&pipeline, bench.p2p_power, options, &|_| {})?;
    Ok(frontier.to_bytes()?.len())
}

/// The CPU time of plans for a first stage that is slow, each made anew.
fn new_plans(
    bench: &BenchProfile,
    microbatches: u32,
    latency_ms: u64,
    repetitions: usize,
) -> Result<Vec<Duration>> {
    let switch_latency_s = Duration::from_millis(latency_ms).as_secs_f64();
    let delays = Delays { switch_latency_s, ..Delays::default() };
    let settings = Settings { delays, ..Settings::default() };
    let schedule = Schedule::OneForwardOneBackward;
    let pipeline = Pipeline::with_settings(&bench.profile, schedule, microbatches, &settings)?;
    let options = Options { plans: 2, spread: Spread::Even };
    let frontier = Frontier::optimize(&pipeline, bench.p2p_power, options, &|_| {})?;
    let own = frontier.plan(0)?;
    let slow: Conditions = [Instruction::Forward, Instruction::Backward]
        .map(|instruction| ((Stage(0), instruction), Condition::Slowed(1.15)))
        .into();
    let mut times = Vec::new();
    for _ in 0..repetitions {
        let began = cpu_time()?;
        frontier.replanned(Some(&own), &slow, Due::AtMost(0.0))?;
        times.push(cpu_time()?.saturating_sub(began));
    }
    Ok(times)
}

/// What all threads of this process have computed so far.
pub(crate) fn cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}
