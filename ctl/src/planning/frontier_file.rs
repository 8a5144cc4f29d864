//! Frontier files: read, walked through, and described in a line.

use pfo_planner::{Deadline, Frontier, Point};

use super::file;
use crate::failure::Failure;
use crate::status::quantity::{joules, seconds};

pub(crate) fn load(name: &str) -> Result<Frontier, Failure> {
    Frontier::from_bytes(&file::read(name)?).map_err(Failure::bad_file(name))
}

/// The places of a frontier's points, from the one of least energy to the fastest.
pub(crate) fn slowest_first(frontier: &Frontier) -> Vec<usize> {
    let cheapest_s = frontier.seconds(Deadline::MinEnergy);
    let mut least_j = f64::INFINITY;
    let mut places: Vec<usize> = frontier
        .plans()
        .enumerate()
        .take_while(|(_, plan)| plan.iteration_time_s <= cheapest_s)
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

/// How many plans a frontier has, and its ends.
pub(crate) fn summary(name: &str, frontier: &Frontier) -> String {
    let written = |point: Option<Point>| {
        point.map_or_else(String::new, |point| {
            format!("{} {}", seconds(point.iteration_time_s), joules(point.iteration_energy_j))
        })
    };
    let points = frontier.points();
    let first = written(frontier.points().next());
    match points.len() {
        1 => format!("{name}: one plan, {first}: no other saves energy"),
        plans => {
            let last = written(points.last());
            format!("{name}: {plans} plans, from {first} (fastest) to {last} (least energy)")
        }
    }
}
