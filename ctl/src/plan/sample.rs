//! `pfoctl plan sample`: writes some plans of a frontier as files, to be run and measured one by
//! one.

use clap::Args;

use crate::arguments::number;
use crate::error::Error;
use crate::output::Output;
use crate::planning::directory;
use crate::planning::format::Format;
use crate::planning::frontier_file::{load, slowest_first};
use crate::planning::written::without_waits;
use crate::progress::Progress;
use crate::text::harmless;

/// Write every n-th plan of a frontier, and the fastest, as files
///
/// Plans are counted from the one of least energy; numbers in file names rise with speed, as those
/// of lowtime do.
#[derive(Args)]
pub(crate) struct Sample {
    /// The frontier, as `plan optimize` or `plan import` writes it
    #[arg(value_name = "FRONTIER")]
    frontier: String,

    /// Write every n-th plan
    #[arg(short = 'n', long = "every", value_name = "N", value_parser = number::positive)]
    every: u32,

    /// Format of the files
    #[arg(long, value_enum, default_value_t = Format::Pfo)]
    format: Format,

    /// The directory to write; it must be empty or not exist
    #[arg(short, long, value_name = "DIR")]
    output: String,
}

impl Sample {
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let frontier = load(&self.frontier)?;
        let places = slowest_first(&frontier);
        let chosen = every(places.len(), self.every as usize);
        let progress = Progress::new("writing plans");
        let files = chosen.iter().enumerate().map(|(done, &number)| {
            progress.show(done as f64 / chosen.len() as f64);
            let plan = frontier.plan(places[number])?;
            let plan = without_waits(&plan, &frontier, self.format)?.unwrap_or(plan);
            let text = self.format.write(&plan)?;
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
