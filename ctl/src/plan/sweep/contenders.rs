//! The plans to run: some of a frontier, evenly spread over it, or the files of a directory.

use std::fs;
use std::path::Path;

use pfo_planner::{Frontier, Plan};

use crate::failure::Failure;
use crate::planning::file;
use crate::planning::format::Format;
use crate::planning::frontier_file::{load, slowest_first};

/// A plan to run, and what to call it.
pub(super) struct Contender {
    pub(super) label: String,
    pub(super) plan: Plan,
}

/// Up to `count` plans of a frontier, or all of a directory.
pub(super) fn read(name: &str, count: usize) -> Result<Vec<Contender>, Failure> {
    if Path::new(name).is_dir() { of_directory(name) } else { of_frontier(&load(name)?, count) }
}

/// From the plan of least energy to the fastest, with the numbers that `plan sample` gives them.
fn of_frontier(frontier: &Frontier, count: usize) -> Result<Vec<Contender>, Failure> {
    let places = slowest_first(frontier);
    let chosen = evenly(places.len(), count).into_iter();
    let contender = |number: usize| -> Result<Contender, Failure> {
        let plan = frontier.plan(places[number])?;
        Ok(Contender { label: Format::Pfo.file_name(number), plan })
    };
    chosen.map(contender).collect()
}

/// By name.
fn of_directory(directory: &str) -> Result<Vec<Contender>, Failure> {
    let failed = |source| Failure::Read { name: directory.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            names.push(path);
        }
    }
    if names.is_empty() {
        return Err(Failure::NoPlansToRun { directory: directory.to_owned() });
    }
    names.sort();
    let contender = |path: &Path| {
        let name = path.to_string_lossy();
        let bytes = file::read(&name)?;
        let plan = Plan::from_json(&bytes).map_err(Failure::bad_file(&name))?;
        let label = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Contender { label, plan })
    };
    names.iter().map(|path| contender(path)).collect()
}

/// `wanted` of `count` numbers, or all, as far apart as they can be; the last is among them.
fn evenly(count: usize, wanted: usize) -> Vec<usize> {
    let gaps = wanted.min(count).max(2) - 1;
    let mut chosen: Vec<usize> = (0..=gaps).map(|gap| gap * (count - 1) / gaps).collect();
    if wanted < chosen.len() || count == 1 {
        chosen.drain(..chosen.len() - 1);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plans_are_spread_over_the_whole_frontier() {
        assert_eq!(evenly(10, 4), [0, 3, 6, 9]);
        assert_eq!(evenly(3, 30), [0, 1, 2]);
        assert_eq!(evenly(5, 1), [4]);
        assert_eq!(evenly(1, 1), [0]);
    }

    proptest! {
        #[test]
        fn as_many_as_are_wanted_are_chosen_each_once(count in 1_usize..500, wanted in 1_usize..60) {
            let chosen = evenly(count, wanted);
            prop_assert_eq!(chosen.len(), wanted.min(count));
            prop_assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert_eq!(chosen.last(), Some(&(count - 1)));
        }
    }
}
