//! `pfoctl plan sample`: some plans of a frontier as files, to be run and measured one by one.

use clap::Args;
use pfo_planner::Frontier;

use super::export::load;
use super::format::Format;
use super::{Failure, directory};
use crate::error::Error;
use crate::output::Output;
use crate::progress::Progress;
use crate::text::harmless;

/// Write every n-th plan of a frontier, and the fastest, as files
///
/// From the plan of least energy on; numbers in file names rise with speed, as lowtime's do.
#[derive(Args)]
pub(crate) struct Sample {
    /// What `plan optimize` or `plan import` wrote
    #[arg(value_name = "FRONTIER")]
    frontier: String,

    /// Take every n-th plan
    #[arg(short = 'n', long = "every", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,

    /// The format of the files
    #[arg(long, value_enum, default_value_t = Format::Pfo)]
    format: Format,

    /// The directory to make; it must not exist or be empty
    #[arg(short, long, value_name = "DIR")]
    output: String,
}

impl Sample {
    pub(super) fn run(self, output: &mut Output) -> Result<(), Error> {
        let frontier = load(&self.frontier)?;
        let places = slowest_first(&frontier);
        let chosen = every(places.len(), self.every as usize);
        let progress = Progress::new("writing plans");
        let files = chosen.iter().enumerate().map(|(done, &number)| {
            progress.show(done as f64 / chosen.len() as f64);
            let plan = frontier.plan(places[number]).map_err(Failure::BadRequest)?;
            let text = self.format.write(&plan).map_err(Failure::BadRequest)?;
            Ok((self.format.file_name(number), text))
        });
        directory::write(&self.output, files)?;
        drop(progress);
        output.text(&format!(
            "{}\n",
            harmless(&format!("{}: {} of {} plans", self.output, chosen.len(), places.len()))
        ))
    }
}

/// The places of a frontier's points, from the one of least energy to the fastest.
pub(super) fn slowest_first(frontier: &Frontier) -> Vec<usize> {
    let mut least_j = f64::INFINITY;
    let mut places: Vec<usize> = frontier
        .plans()
        .enumerate()
        .filter(|(_, plan)| {
            let is_cheaper = plan.iteration_energy_j < least_j;
            least_j = least_j.min(plan.iteration_energy_j);
            is_cheaper
        })
        .map(|(place, _)| place)
        .collect();
    places.reverse();
    places
}

/// Every `step`-th of `count` numbers, and the last.
fn every(count: usize, step: usize) -> Vec<usize> {
    let mut chosen: Vec<usize> = (0..count).step_by(step).collect();
    if chosen.last().is_some_and(|&last| last + 1 < count) {
        chosen.push(count - 1);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_every_nth_and_the_last() {
        assert_eq!(every(10, 4), [0, 4, 8, 9]);
        assert_eq!(every(9, 4), [0, 4, 8]);
        assert_eq!(every(3, 100), [0, 2]);
        assert_eq!(every(1, 1), [0]);
    }
}
