//! A budget of the fleet from a file of one node: all nodes follow it within its ramps, and all say what is
//! wrong with it.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use pfo_tests::{Node, needs_root, wait};
use serde_json::Value;

use super::budgets::{
    AT, LOCAL, ROOM, SITES_W, admin, beside_the_whole, drawn_w, is_slowed, setup, status,
    until_below,
};
use super::cluster::{NODES, PATIENCE};
use super::staged::Staged;

/// The node with the file.
const FILED: usize = 2;

/// Seconds from the upper level to the lower one, and until the lower one holds.
const RAMP_S: f64 = 12.0;
const AHEAD_S: f64 = 18.0;

/// The level is that of the last decision, which may have been so long ago, and rises from there.
const SILENT_S: f64 = 6.0;

/// What a level may be off because times and powers are written with few digits, in watts.
const DIGITS_W: f64 = 2.0;

fn unix_s() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Puts another file in the place of the one of the budget, as a whole.
fn replace(node: &Node, content: &str) -> String {
    let new = node.plan_file("new.csv", content.as_bytes());
    let path = node.directory().join("day.csv");
    fs::rename(new, &path).unwrap();
    path.display().to_string()
}

fn budget(node: &Node) -> Value {
    status(node)["budgets"][0].take()
}

fn level_w(node: &Node) -> Option<f64> {
    budget(node)["budget_w"].as_f64()
}

/// Looks at the level of every node again and again, until it is there on all.
fn until_all_at(nodes: &[Node], wanted_w: f64, mut look: impl FnMut(usize, f64, f64)) {
    let at = wait::until_within(PATIENCE, || {
        let levels_w: Vec<_> = nodes.iter().map(level_w).collect();
        let now_s = unix_s();
        for (number, level_w) in levels_w.iter().enumerate() {
            level_w.iter().for_each(|level_w| look(number, now_s, *level_w));
        }
        let is_there = |level_w: &Option<f64>| {
            level_w.is_some_and(|level_w| (level_w - wanted_w).abs() < DIGITS_W)
        };
        if levels_w.iter().all(is_there) { Ok(()) } else { Err(levels_w) }
    });
    at.unwrap_or_else(|levels_w| panic!("{levels_w:?} instead of {wanted_w} W"));
}

/// Waits until every node says this of the file; returns since when it is so.
fn until_all_say(nodes: &[Node], why: &str) -> u64 {
    let said = |node: &Node| {
        let file = budget(node)["file"].take();
        let is_so = file["why"].as_str().is_some_and(|said| said.contains(why))
            && file["node"] == NODES[FILED];
        if is_so { Ok(file["since_unix_s"].as_u64().unwrap()) } else { Err(file) }
    };
    let all = || nodes.iter().map(said).collect::<Result<Vec<_>, _>>();
    let since = wait::until_within(PATIENCE, all)
        .unwrap_or_else(|file| panic!("{file} instead of {why:?}"));
    assert!(since.iter().all(|one| *one == since[0]), "{since:?}");
    since[0]
}

/// Every way in which the file may be wrong: all nodes say so, and what it said before stays in force.
fn file_is_wrong(nodes: &mut [Node], path: &Path, low_w: f64) {
    let _ = replace(&nodes[FILED], "0,much\n");
    let since = until_all_say(nodes, "line 1");
    let _ = replace(&nodes[FILED], "");
    assert_eq!(until_all_say(nodes, "there is no budget"), since);
    fs::remove_file(path).unwrap();
    assert_eq!(until_all_say(nodes, "cannot read"), since);
    nodes[FILED].kill_agent();
    nodes[FILED].start_agent();
    until_all_at(nodes, low_w, |_, _, level_w| assert!((level_w - low_w).abs() < DIGITS_W));
    assert_eq!(until_all_say(nodes, "cannot read"), since);
    let text = admin(&nodes[AT], &["budget", "status"]);
    let path = path.display().to_string();
    for said in [NODES[FILED], &path, "No such file", "said before stays in force"] {
        assert!(text.contains(said), "{said} in {text}");
    }
    // Once for each thing that is wrong, whichever agent finds it.
    let warned = |node: &Node| node.agent_log().matches("last valid content").count();
    let warned: Vec<_> = nodes.iter().map(warned).collect();
    assert_eq!(warned, [0, 0, 3, 0]);
}

#[test]
fn a_file_of_one_node_is_followed_by_all_within_the_ramps_and_all_say_what_is_wrong_with_it() {
    needs_root!();
    let Some(mut staged) = Staged::start_with(setup) else { return };
    let other = beside_the_whole(&staged.nodes);
    let full_w = drawn_w(&staged.nodes, 3.0);
    let [top_w, low_w] = [0.95, 0.8].map(|share| SITES_W + share * (full_w - SITES_W));
    let ramp_w = (top_w - low_w) / RAMP_S;

    let falls_s = (unix_s() + AHEAD_S).ceil();
    let series = format!("at,budget\n0,{top_w:.0}W\n{falls_s:.0},{low_w:.0}W  # dear\n");
    let path = replace(&staged.nodes[FILED], &series);
    let ramp = format!("{ramp_w:.3}W");
    let set = ["budget", "set", "--from", &path, "--for", "fleet", "--down", &ramp, "--up", &ramp];
    let _ = admin(&staged.nodes[FILED], &set);
    // It begins at what is drawn. A level that is seen late is one of before, so it may only be above.
    let (mut between, mut first_w) = (0, [None; NODES.len()]);
    until_all_at(&staged.nodes, low_w, |number, now_s, level_w| {
        let first_w: f64 = *first_w[number].get_or_insert(level_w);
        let least_w = first_w.min(top_w).min(low_w + ramp_w * (falls_s - now_s).max(0.0));
        assert!(level_w > least_w - DIGITS_W, "{level_w} W, not {least_w} W, at {now_s}");
        between += usize::from(level_w > low_w + DIGITS_W && level_w < top_w - DIGITS_W);
    });
    assert!(between > 0, "it fell at once");
    until_below(&staged.nodes, low_w);
    staged.until_all_run(|label| label.contains(" in budget "));
    assert!(is_slowed(&staged.nodes[AT], LOCAL), "{}", status(&staged.nodes[AT]));

    file_is_wrong(&mut staged.nodes, Path::new(&path), low_w);

    let rises_s = unix_s() - SILENT_S;
    let most_w = full_w + low_w - top_w;
    let _ = replace(&staged.nodes[FILED], &format!("0,{most_w:.0}W\n"));
    until_all_at(&staged.nodes, most_w, |_, now_s, level_w| {
        let most_w = low_w + ramp_w * (now_s - rises_s);
        assert!(level_w < most_w + DIGITS_W, "{level_w} W, not {most_w} W, at {now_s}");
    });
    for node in &staged.nodes {
        node.until_so("nothing is wrong with the file", || budget(node)["file"].is_null());
    }
    staged.nodes[FILED].until_agent_logged("is followed again");
    other.stop();
    staged.training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn the_power_of_all_nodes_is_never_above_a_ramp_that_falls_or_rises() {
    needs_root!();
    let Some(staged) = Staged::start_with(setup) else { return };
    let nodes = &staged.nodes;
    let other = beside_the_whole(nodes);
    let full_w = drawn_w(nodes, 5.0);
    let low_w = SITES_W + 0.8 * (full_w - SITES_W);
    let ramp = format!("{:.3}W", (full_w - low_w) / 60.0);
    for to_w in [low_w, full_w] {
        let to = format!("{to_w:.0}W");
        let _ = admin(
            &nodes[AT],
            &["budget", "set", &to, "--for", "fleet", "--down", &ramp, "--up", &ramp],
        );
        nodes[AT].until_so("a level", || level_w(&nodes[AT]).is_some());
        for _ in 0..20 {
            let before_w = level_w(&nodes[AT]).unwrap();
            let drawn_w = drawn_w(nodes, 4.0);
            let most_w = before_w.max(level_w(&nodes[AT]).unwrap());
            println!("{drawn_w:.0} W, {before_w:.0} W allowed");
            assert!(drawn_w < ROOM * most_w, "{drawn_w} W of {most_w} W");
        }
    }
    other.stop();
    staged.training.stop();
}
