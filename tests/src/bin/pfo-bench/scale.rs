//! Whole frontiers of larger pipelines, no stage like another: what they take in CPU time and memory.
//!
//! A process of its own makes each, because the peak of memory is that of a process.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::resource::{UsageWho, getrusage};
use pfo_planner::{Frontier, Options};

use crate::Result;
use crate::bench_profile::BenchProfile;
use crate::extent::Extent;
use crate::growth::Grown;
use crate::planning::cpu_time;
use crate::report::{Cell, Report};

/// The argument that makes this program such a process; stages and microbatches follow.
pub(crate) const MAKES_FRONTIER: &str = "--make-frontier";

/// Names a pfo-bench of another commit, which makes the same frontiers.
const BEFORE: &str = "PFO_BENCH_BEFORE";

/// CPU seconds and MB.
type Taken = (f64, f64);

struct Size {
    stages: u16,
    microbatches: u32,
    aim: Option<Taken>,
}

const SIZES: [Size; 4] = [
    Size { stages: 8, microbatches: 96, aim: Some((0.3, 50.0)) },
    Size { stages: 16, microbatches: 128, aim: None },
    Size { stages: 32, microbatches: 256, aim: Some((2.0, 100.0)) },
    // Only in a full run.
    Size { stages: 64, microbatches: 512, aim: Some((30.0, 200.0)) },
];

/// Makes the frontier of a pipeline, and prints its CPU seconds and the peak of memory in KiB.
pub(crate) fn run(size: &[String]) -> Result<()> {
    let [stages, microbatches] = size else {
        return Err("stages and microbatches are missing".into());
    };
    let bench = BenchProfile::find()?;
    let grown = Grown::uneven(stages.parse()?, microbatches.parse()?);
    let pipeline = grown.pipeline(&bench.profile)?;
    let began = cpu_time()?;
    Frontier::optimize(&pipeline, bench.p2p_power, Options::default(), &|_| {})?;
    let cpu_s = cpu_time()?.saturating_sub(began).as_secs_f64();
    println!("{cpu_s} {}", getrusage(UsageWho::RUSAGE_SELF)?.max_rss());
    Ok(())
}

/// Measures each, next to the first.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let sizes = &SIZES[..extent.of(4, 3)];
    let shrunk = extent.of(1, 4);
    let medians = medians(sizes, shrunk, extent.of(3, 1))?;
    let figure = |figure: Option<f64>, decimals| match figure {
        Some(figure) => Cell::Figure(figure, decimals),
        None => Cell::text("-"),
    };
    let aim = |aim: Option<f64>, decimals| figure(aim.filter(|_| shrunk == 1), decimals);
    let rows: Vec<_> = sizes
        .iter()
        .zip(&medians)
        .map(|(size, &((cpu_s, peak_mb), before))| {
            let (stages, microbatches) = (size.stages / shrunk as u16, size.microbatches / shrunk);
            vec![
                Cell::Text(format!("{stages} x {microbatches}")),
                Cell::Figure(cpu_s, 2),
                figure(before.map(|(cpu_s, _)| cpu_s), 2),
                Cell::Figure(cpu_s / medians[0].0.0, 1),
                aim(size.aim.map(|(cpu_s, _)| cpu_s), 1),
                Cell::Figure(peak_mb, 1),
                figure(before.map(|(_, peak_mb)| peak_mb), 1),
                Cell::Figure(peak_mb / medians[0].0.1, 1),
                aim(size.aim.map(|(_, peak_mb)| peak_mb), 0),
            ]
        })
        .collect();
    report.table(
        "planning_scale",
        &format!("Frontiers of {} plans, all stages different", Options::default().plans),
        &[
            ("pipeline", "stages x microbatches"),
            ("cpu_s", "CPU s"),
            ("cpu_before_s", "before"),
            ("cpu_ratio", "to the first"),
            ("cpu_aim_s", "aim s"),
            ("peak_mb", "peak MB"),
            ("peak_before_mb", "before"),
            ("peak_ratio", "to the first"),
            ("peak_aim_mb", "aim MB"),
        ],
        &rows,
    );
    Ok(())
}

/// The median of each size in some turns, and that of another commit, if there is one.
fn medians(sizes: &[Size], shrunk: u32, turns: usize) -> Result<Vec<(Taken, Option<Taken>)>> {
    let (now, before) = (env::current_exe()?, env::var_os(BEFORE).map(PathBuf::from));
    let mut taken = vec![[Vec::new(), Vec::new()]; sizes.len()];
    for turn in 0..turns {
        for (size, taken) in sizes.iter().zip(&mut taken) {
            // The largest takes as long as all others together.
            if turn > 0 && size.stages >= 64 {
                continue;
            }
            for (program, taken) in [Some(&now), before.as_ref()].into_iter().zip(taken) {
                let Some(program) = program else { continue };
                let stages = size.stages / shrunk as u16;
                taken.push(frontier(program, stages, size.microbatches / shrunk)?);
            }
        }
    }
    let median = |mut taken: Vec<Taken>| {
        taken.sort_by(|a, b| a.0.total_cmp(&b.0));
        taken.get(taken.len() / 2).copied()
    };
    let medians = taken.into_iter();
    Ok(medians.map(|[now, before]| (median(now).unwrap_or_default(), median(before))).collect())
}

/// CPU seconds and the peak of memory of a frontier that a pfo-bench makes.
fn frontier(program: &Path, stages: u16, microbatches: u32) -> Result<Taken> {
    let size = [stages.to_string(), microbatches.to_string()];
    let made = Command::new(program).arg(MAKES_FRONTIER).args(size).output()?;
    if !made.status.success() {
        return Err(String::from_utf8_lossy(&made.stderr).into_owned().into());
    }
    let printed = String::from_utf8(made.stdout)?;
    let (cpu_s, peak_kib) = printed.trim().split_once(' ').ok_or("no figures are printed")?;
    Ok((cpu_s.parse()?, peak_kib.parse::<f64>()? * 1024.0 / 1e6))
}
