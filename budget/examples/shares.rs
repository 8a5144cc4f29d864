//! Lets the simulated cluster run below budgets, and prints a line for each, its fields separated by tabs: how many of
//! four jobs have no frontier, the share of their power that the budget leaves to jobs, their progress as a share of
//! what perfect knowledge could have had, the share of the watts that was used, the seconds above the budget, the
//! longest of these in a row, the slowest step, and changes. `cargo run --release --example shares -- JOBS SECONDS`

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/cluster/mod.rs"]
mod cluster;

use std::error::Error;

use cluster::Cluster;
use cluster::kind::kinds;
use cluster::policy::Policy;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next =
        |name: &str| arguments.next().ok_or(format!("usage: shares JOBS SECONDS: no {name}"));
    let (jobs, seconds): (usize, f64) = (next("JOBS")?.parse()?, next("SECONDS")?.parse()?);
    let kinds = kinds();
    for without in cluster::WITHOUT {
        let run = |budget_w: f64| {
            Cluster::new(&kinds, jobs, without, 1).run(
                Policy::Frontiers,
                seconds,
                |_| budget_w,
                |_, _, _| {},
            )
        };
        let full = run(1e12)?;
        for share in cluster::SHARES {
            let outcome = run(Cluster::budget_w(&full, share))?;
            println!(
                "{without}\t{share}\t{}\t{}\t{}\t{}\t{}\t{}",
                outcome.progress / outcome.optimum,
                outcome.used_j / outcome.usable_j,
                outcome.above_s,
                outcome.longest_s,
                outcome.slowest_step_s,
                outcome.changes,
            );
        }
    }
    Ok(())
}
