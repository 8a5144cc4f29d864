//! lowtime, the planner of Perseus, and ours: the same profile, as many plans, in one run.

use std::time::Instant;

use pfo_planner::{Filter, Lowtime, Pipeline, Policy, Prediction, Schedule};

use crate::Result;
use crate::bench_profile::BenchProfile;
use crate::excess;
use crate::extent::Extent;
use crate::lowtime_run::{LowtimeRun, UNIT_TIME_S, is_installed};
use crate::lowtime_until as until;
use crate::our_run::OurRun;
use crate::report::{Cell, Report};

/// Says how many microbatches a step has; for 96, lowtime takes 20 minutes and more.
const MICROBATCHES: &str = "PFO_BENCH_MICROBATCHES";
const DEFAULT_MICROBATCHES: u32 = 12;
/// Says how lowtime's candidates are chosen: raw (Perseus), effective (Zeus), or both.
const FILTERS: &str = "PFO_BENCH_FILTERS";
const DEFAULT_FILTERS: &str = "raw,effective";

const WHY_MORE: &str = "Over the bound, lowtime's plans take more by its filter (slow clocks that it leaves out), by \
     its fit\n(a curve in place of measured energies) and by rounding (to units of time and to \
     clocks); the last\ncolumn is what ours take more. The ends are a tenth of lowtime's range of \
     times each.";

/// Measures both, and judges what they make by replay.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    if !is_installed() {
        report.note("lowtime is skipped: `make bench` installs it, if it can reach PyPI");
        return Ok(());
    }
    let microbatches = microbatches(extent)?;
    let bench = BenchProfile::find()?;
    let pipeline = Pipeline::new(&bench.profile, Schedule::OneForwardOneBackward, microbatches)?;
    let (mut times, mut claims, mut excesses) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reproductions, mut untils) = (Vec::new(), Vec::new());
    for filter in filters()? {
        let lowtime = LowtimeRun::new(&bench, &pipeline, filter, UNIT_TIME_S)?;
        let plans = lowtime.claimed.len();
        let ours = OurRun::new(&bench, microbatches, plans)?;
        times.push(time(lowtime.name(), plans, lowtime.total_s, ours.optimize_s));
        times.push(time("  its solver alone", plans, lowtime.solve_s, ours.optimize_s));
        // Those beyond the least energy, for stragglers, are in the one file only.
        let (made, files) = (ours.frontier.plans().len(), ours.frontier.points().len());
        times.push(time("pfo, one file", made, ours.optimize_s, ours.optimize_s));
        let sampled_s = ours.optimize_s + ours.sample_s;
        times.push(time("pfo, plan files too", files, sampled_s, ours.optimize_s));
        claims.push(claim(lowtime.name(), &lowtime.claimed, &lowtime.replayed));
        let (claimed, replayed) = ours.claims(&bench)?;
        claims.push(claim("pfo", &claimed, &replayed));
        excesses.extend(excess::rows(&lowtime, &ours.frontier, &pipeline, bench.p2p_power)?);
        untils.push(until::row(&lowtime, &ours.frontier, &bench, UNIT_TIME_S, extent)?);
        reproductions.push(reproduction(&lowtime, &pipeline, &bench)?);
    }
    let stages = bench.profile.num_stages();
    let pipeline = format!("{stages} stages x {microbatches} microbatches ({})", bench.name);
    report.table(
        "lowtime",
        &format!("lowtime and pfo from a profile to plans: {pipeline}"),
        &[("what", "what"), ("plans", "plans"), ("s", "s"), ("ratio", "times pfo's")],
        &times,
    );
    report.table(
        "claims",
        "What replays differ from claims by",
        &[
            ("planner", "planner"),
            ("time_least", "time % from"),
            ("time_most", "to"),
            ("energy_least", "energy % from"),
            ("energy_most", "to"),
        ],
        &claims,
    );
    report.table(
        "excess",
        "Energy of lowtime's replayed plans over ours in the same time, and both over the bound",
        &excess::COLUMNS,
        &excesses,
    );
    report.note(WHY_MORE);
    untils.extend(until::others(&bench, extent, report)?);
    report.table("lowtime_until", until::TITLE, &until::COLUMNS, &untils);
    for reproduction in reproductions {
        report.note(&reproduction);
    }
    Ok(())
}

fn microbatches(extent: Extent) -> Result<u32> {
    match std::env::var(MICROBATCHES) {
        Ok(text) => {
            Ok(text.parse().map_err(|_| format!("{MICROBATCHES} is {text:?}, no number"))?)
        }
        Err(_) => Ok(extent.of(DEFAULT_MICROBATCHES, 2)),
    }
}

fn filters() -> Result<Vec<Filter>> {
    let names = std::env::var(FILTERS).unwrap_or_else(|_| DEFAULT_FILTERS.to_owned());
    let filter = |name| match name {
        "raw" => Ok(Filter::Raw),
        "effective" => Ok(Filter::Effective),
        _ => Err(format!("{FILTERS} has {name:?}, which is neither raw nor effective").into()),
    };
    names.split(',').map(filter).collect()
}

fn time(what: &str, plans: usize, seconds: f64, ours_s: f64) -> Vec<Cell> {
    let ratio = Cell::Figure(seconds / ours_s, 1);
    vec![Cell::text(what), Cell::count(plans as u64), Cell::Figure(seconds, 3), ratio]
}

fn claim(planner: &str, claimed: &[Prediction], replayed: &[Prediction]) -> Vec<Cell> {
    let mut row = vec![Cell::text(planner)];
    for quantity in [|p: &Prediction| p.iteration_time_s, |p: &Prediction| p.iteration_energy_j] {
        let percent = claimed
            .iter()
            .zip(replayed)
            .map(|(claimed, replayed)| 100.0 * (quantity(replayed) / quantity(claimed) - 1.0));
        row.push(Cell::Figure(percent.clone().fold(f64::INFINITY, f64::min), 3));
        row.push(Cell::Figure(percent.fold(f64::NEG_INFINITY, f64::max), 3));
    }
    row
}

/// How close `plan compare` comes to lowtime itself.
fn reproduction(lowtime: &LowtimeRun, pipeline: &Pipeline, bench: &BenchProfile) -> Result<String> {
    let policy = Policy::Lowtime(Lowtime { filter: lowtime.filter, ..Lowtime::default() });
    let began = Instant::now();
    let outcome = policy.outcome(pipeline, bench.p2p_power, &|_| {})?;
    let took_s = began.elapsed().as_secs_f64();
    let replayed: Vec<_> = outcome.plans.iter().filter_map(|plan| plan.predicted).collect();
    let off = |ours: &[Prediction], theirs: &[Prediction]| {
        let pairs = || ours.iter().zip(theirs);
        let most = |of: fn(&Prediction) -> f64| {
            pairs()
                .map(|(ours, theirs)| 100.0 * (of(ours) / of(theirs) - 1.0).abs())
                .fold(0.0, f64::max)
        };
        (most(|p| p.iteration_time_s), most(|p| p.iteration_energy_j))
    };
    let (claims, replays) =
        (off(&outcome.claims, &lowtime.claimed), off(&replayed, &lowtime.replayed));
    Ok(format!(
        "`pfoctl plan compare` reproduces {} in {took_s:.2} s: {} plans for {}; claims differ by up \
         to {:.6} % (time)\nand {:.6} % (energy), replays by up to {:.3} % and {:.3} %.",
        lowtime.name(),
        outcome.plans.len(),
        lowtime.claimed.len(),
        claims.0,
        claims.1,
        replays.0,
        replays.1,
    ))
}
