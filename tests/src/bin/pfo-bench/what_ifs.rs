//! Questions to a frontier: what an answer takes in CPU time, beside a plan made anew for the deadline.

use std::time::Duration;

use pfo_planner::{
    Change, ClockPer, Condition, Deadline, Due, Frontier, Instruction, Options, PerStage, Stage,
    Watts,
};

use crate::Result;
use crate::bench_profile::BenchProfile;
use crate::extent::Extent;
use crate::growth::Grown;
use crate::planning::cpu_time;
use crate::report::{Cell, Report};

/// Stages, microbatches and the ms that half of the answers may take.
const SIZES: [(u16, u32, f64); 3] = [(8, 12, 1.0), (8, 96, 5.0), (64, 512, 100.0)];

/// How many plans are made without a question, for comparison.
const MADE: usize = 10;

/// Measures answers, plans for a deadline from the same frontier, and plans without a frontier.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let bench = BenchProfile::find()?;
    let questions = extent.of(1000, 20);
    let mut rows = Vec::new();
    // The last one only in a full run.
    for &(stages, microbatches, aim_ms) in &SIZES[..extent.of(3, 1)] {
        let pipeline = Grown::uneven(stages, microbatches).pipeline(&bench.profile)?;
        let frontier = Frontier::optimize(&pipeline, bench.p2p_power, Options::default(), &|_| {})?;
        let [fastest_s, cheapest_s] =
            [Deadline::Fastest, Deadline::MinEnergy].map(|end| frontier.seconds(end));
        let due_s = |share: f64| fastest_s + share * (cheapest_s - fastest_s);
        let mut what_ifs = frontier.what_ifs()?;
        let mut answers = Vec::new();
        for number in 0..if stages > 8 { questions.min(100) } else { questions } {
            let (change, slower) = change(number, stages);
            let due = Due::AtMost(due_s(share(number)) * slower);
            let began = cpu_time()?;
            what_ifs.answer(&change, due)?;
            answers.push(cpu_time()?.saturating_sub(began));
        }
        let (mut made, mut alone) = (Vec::new(), Vec::new());
        for number in 0..extent.of(MADE, 1) {
            let due = Due::AtMost(due_s(share(number)));
            let began = cpu_time()?;
            frontier.plan_for(due)?;
            made.push(cpu_time()?.saturating_sub(began));
            let power: PerStage<Watts> = bench.p2p_power.into();
            let written = format!("{}s", due.seconds()).parse()?;
            let began = cpu_time()?;
            let what = (Watts(0.0), &written);
            Frontier::about(ClockPer::Instruction, &pipeline, power, what, &|_| {})?;
            alone.push(cpu_time()?.saturating_sub(began));
        }
        let at = |times: &mut Vec<Duration>, share: f64| {
            times.sort_unstable();
            1e3 * times[(share * (times.len() - 1) as f64) as usize].as_secs_f64()
        };
        rows.push(vec![
            Cell::Text(format!("{stages} x {microbatches}")),
            Cell::Figure(at(&mut answers, 0.5), 2),
            Cell::Figure(at(&mut answers, 0.95), 2),
            Cell::Figure(aim_ms, 0),
            Cell::Figure(at(&mut made, 0.5), 2),
            Cell::Figure(at(&mut alone, 0.5), 2),
        ]);
    }
    report.table(
        "planning_what_ifs",
        "The least energy for a deadline if something changes, ms of CPU",
        &[
            ("pipeline", "stages x microbatches"),
            ("answer_ms", "answer, median"),
            ("answer_95_ms", "95 %"),
            ("aim_ms", "aim"),
            ("plan_ms", "plan of the frontier"),
            ("alone_ms", "plan without one"),
        ],
        &rows,
    );
    Ok(())
}

/// A change, and how much slower the step may become with it.
fn change(number: usize, stages: u16) -> (Change, f64) {
    let stage = Stage((number * 7) as u16 % stages);
    let more = share(number * 3 + 1);
    let kinds = [Instruction::Forward, Instruction::Backward];
    match number % 5 {
        0 => (Change::default(), 1.0),
        1 => {
            let slowed = Condition::Slowed(1.0 + 0.1 * more);
            let conditions = kinds.map(|kind| ((stage, kind), slowed)).into();
            (Change { conditions, ..Change::default() }, 1.1)
        }
        2 => {
            let power = Watts(60.0 + 40.0 * more);
            (Change { p2p_power: Some(power.into()), ..Change::default() }, 1.0)
        }
        3 => (Change { site_power: Some(Watts(200.0 * more)), ..Change::default() }, 1.0),
        _ => (Change { rest_s: 0.05 * more, ..Change::default() }, 1.2),
    }
}

/// A share that is another for every number.
fn share(number: usize) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_75;
    (number as f64 * GOLDEN).fract()
}
