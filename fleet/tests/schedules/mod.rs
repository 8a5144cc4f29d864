//! The agents of a job under random delays, losses, crashes and restarts of agents and daemons.
//!
//! What counts is what the nodes ran, as their simulated `pfod` knows it; what the agents say of
//! themselves is only taken for their excuses. `PFO_SCHEDULES` is how many schedules are run
//! (`make schedules`: a million), and `PFO_SCHEDULE` runs one again and shows it.

mod observer;
mod pfod;
mod world;

use std::thread;

use pfod::Return;
use world::{Broken, Calm, Swept, World};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs schedules from `first` on, on two threads. Returns the first one that something is wrong
/// with, and what.
fn first_wrong(first: u64, number: u64, calm: Calm, broken: Broken) -> Option<(u64, String)> {
    let run = move |offset: u64| {
        let seeds = (first + offset..first + number).step_by(2);
        seeds.into_iter().find_map(|seed| Some((seed, World::new(seed, calm, broken).run().err()?)))
    };
    let found = [0, 1].map(|offset| thread::spawn(move || run(offset)));
    found.into_iter().filter_map(|thread| thread.join().unwrap()).min()
}

#[test]
fn no_two_nodes_run_different_plans_at_a_step_unless_one_is_reported_late() {
    if let Some(seed) = number("PFO_SCHEDULE") {
        let mut world = World::new(seed, Calm::No, Broken::Nothing);
        world.shows = true;
        assert_eq!(world.run(), Ok(()));
        return;
    }
    let schedules = number("PFO_SCHEDULES").unwrap_or(1000);
    let wrong = first_wrong(0, schedules, Calm::No, Broken::Nothing);
    if let Some((seed, why)) = wrong {
        panic!("{why}\nPFO_SCHEDULE={seed} shows it");
    }
}

#[test]
fn where_nothing_fails_every_swap_takes_place_and_nobody_is_late() {
    assert_eq!(first_wrong(0, 200, Calm::Yes, Broken::Nothing), None);
}

#[test]
fn every_swap_takes_place_while_a_gpu_of_one_node_refuses_its_clocks() {
    assert_eq!(first_wrong(0, 200, Calm::Astray, Broken::Nothing), None);
}

#[test]
fn sweeps_have_several_trials_in_a_row_aborted_ones_and_swaps_between_them() {
    let swept: Vec<_> =
        (0..400).map(|seed| World::new(seed, Calm::No, Broken::Nothing).swept()).collect();
    let have = |so: fn(&Swept) -> bool| swept.iter().filter(|swept| so(swept)).count();
    let found = [
        have(|swept| swept.in_a_row >= 3),
        have(|swept| swept.aborted > 0),
        have(|swept| swept.swaps_between > 0),
        have(|swept| swept.ended > 0),
    ];
    assert!(found.iter().all(|schedules| *schedules >= 10), "of 400 schedules {found:?}");
}

#[test]
fn a_store_that_lets_decisions_be_overwritten_is_found_out() {
    let found = first_wrong(0, 3000, Calm::No, Broken::DecisionsChange);
    assert!(found.is_some_and(|(_, why)| why.contains("was not committed")));
}

#[test]
fn a_pfod_that_moves_swaps_whose_step_is_past_is_found_out() {
    let found = first_wrong(0, 3000, Calm::No, Broken::StepsMove);
    assert!(found.is_some_and(|(_, why)| why.contains("is not reported late")));
}

#[test]
fn a_store_that_creates_a_swap_twice_is_found_out() {
    assert!(first_wrong(0, 3000, Calm::No, Broken::SwapsTwice).is_some());
}

#[test]
fn a_pfod_that_comes_back_and_changes_before_the_step_is_found_out() {
    let found = first_wrong(0, 3000, Calm::No, Broken::Returns(Return::Early));
    assert!(found.is_some_and(|(_, why)| why.contains("was not committed")));
}

#[test]
fn a_pfod_that_comes_back_and_does_not_run_what_it_says_is_found_out() {
    let found = first_wrong(0, 3000, Calm::No, Broken::Returns(Return::Idle));
    assert!(found.is_some_and(|(_, why)| why.contains("is not reported late")));
}
