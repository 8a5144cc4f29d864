//! The nodes of a job that has ranks on several: which swap of the whole job each one runs.

use pfo_protocol::{
    FleetJob, FleetMember, FleetOutcome, FleetStep, FleetSwap, FleetWindow, JobStatus, Rank, Uid,
};

use super::measured_table::saving_cell;
use super::quantity::{change, joules, seconds};
use super::table::{Cell, Table, Tone, heading};
use crate::output::Look;
use crate::text::harmless;

/// One row for each node of a job that has ranks on other nodes; none if it has none.
pub(crate) fn render(
    job: &JobStatus,
    fleet: Option<&FleetJob>,
    user: &dyn Fn(Uid) -> String,
    look: Look,
) -> Option<String> {
    let fleet = fleet?;
    let mut text = heading(&format!("Nodes of job {} of {}", job.job, user(job.uid)), look);
    let mut table = Table::new(look).left("Node").left("Ranks").right("Swap").left("State");
    for node in &fleet.nodes {
        let (state, tone) = state(node, fleet.swap.as_ref());
        table.row([
            Cell::text(&node.node),
            Cell::text(ranges(&node.ranks)),
            Cell::count(node.swap),
            Cell::text(state).tone(tone),
        ]);
    }
    text += &match (&fleet.nodes[..], fleet.store_away_s) {
        ([], Some(_)) => {
            "Which these are is not known: the store of the fleet does not answer\n".into()
        }
        ([], None) => "Which these are is not known yet\n".into(),
        _ => table.render(),
    };
    if let Some(swap) = &fleet.swap {
        text += &format!("{}\n", harmless(&newest(swap, user)));
    }
    if let Some(FleetStep { time_s, energy_j }) = fleet.step {
        let energy = energy_j.map_or_else(String::new, |energy_j| {
            format!(" and {} on all nodes together", joules(energy_j))
        });
        text += &format!("A step takes {}{energy}\n", seconds(time_s));
    }
    text.extend(beside(fleet).map(|line| format!("{}\n", harmless(&line))));
    text.extend(windows(&fleet.windows, look));
    Some(text)
}

/// The guard, straggler answer and budget of the whole job.
fn beside(fleet: &FleetJob) -> impl Iterator<Item = String> {
    let straggler = fleet.straggler.map(|factor| {
        format!("It runs a plan for a straggler of {factor} times the fastest iteration")
    });
    let answered = fleet.answered_by.as_ref();
    let answered = answered.map(|node| format!("Slow ranks anywhere: node {node} responds"));
    let guarded = fleet.guarded_by.as_ref();
    let guarded = guarded.map(|node| format!("Node {node} compares its plans with default clocks"));
    [straggler, answered, guarded].into_iter().flatten()
}

/// What a step of the whole job took under its last plans, against the first window at default clocks;
/// none if there is nothing to compare.
fn windows(windows: &[FleetWindow], look: Look) -> Option<String> {
    if windows.len() < 2 {
        return None;
    }
    let baseline = windows.iter().find(|window| window.plan.is_none());
    let mut table = Table::new(look)
        .left("Plan")
        .right("Time/step")
        .right("Slowdown")
        .right("Energy/step")
        .right("Saving");
    for window in windows {
        let baseline = baseline.filter(|baseline| !std::ptr::eq(*baseline, window));
        let slowdown = baseline.map(|baseline| window.step.time_s / baseline.step.time_s - 1.0);
        let energy = window.step.energy_j;
        let before = baseline.and_then(|baseline| baseline.step.energy_j);
        let saving = energy.zip(before).map(|(energy_j, before_j)| 1.0 - energy_j / before_j);
        table.row([
            Cell::text(window.plan.as_deref().unwrap_or("default clocks")),
            Cell::text(seconds(window.step.time_s)),
            Cell::option(slowdown.map(change)),
            Cell::option(energy.map(joules)),
            saving.map_or_else(Cell::empty, saving_cell),
        ]);
    }
    Some(format!("\nMeasured on all nodes together:\n{}", table.render()))
}

fn state(node: &FleetMember, newest: Option<&FleetSwap>) -> (String, Tone) {
    let is_due = newest.is_some_and(|newest| {
        newest.outcome == FleetOutcome::Committed && newest.number > node.swap
    });
    match &node.late {
        Some(late) if late.until_step.is_none() => {
            (format!("late since step {}", late.from_step), Tone::Bad)
        }
        _ if is_due => ("changes".to_owned(), Tone::Plain),
        Some(late) if late.swap == node.swap => {
            let until = late.until_step.unwrap_or_default();
            (format!("was late from step {} to {until}", late.from_step), Tone::Plain)
        }
        _ => ("in time".to_owned(), Tone::Plain),
    }
}

fn newest(swap: &FleetSwap, user: &dyn Fn(Uid) -> String) -> String {
    let FleetSwap { number, plan, step, by_uid, by_node, outcome } = swap;
    let plan =
        plan.as_ref().map_or_else(|| "default clocks".to_owned(), |plan| format!("plan {plan}"));
    let outcome = match outcome {
        FleetOutcome::Open => "the nodes have yet to agree".to_owned(),
        FleetOutcome::Committed => "every node agreed".to_owned(),
        FleetOutcome::Aborted(why) => format!("no node changed: {why}"),
    };
    let by = user(*by_uid);
    format!("Swap {number} to {plan} at step {step}, by {by} on node {by_node}: {outcome}")
}

/// What needs attention about the whole of a job.
pub(super) fn problems(fleet: &FleetJob) -> Vec<String> {
    let mut problems = Vec::new();
    problems.extend(fleet.store_away_s.map(|away_s| {
        let away = seconds(away_s);
        format!(
            "the store of the fleet has not answered for at least {away}: its nodes agree on nothing new"
        )
    }));
    problems.extend(
        fleet.problem.as_ref().map(|why| format!("it cannot be changed as a whole: {why}")),
    );
    for node in &fleet.nodes {
        if let Some(late) = node.late.as_ref().filter(|late| late.until_step.is_none()) {
            let (swap, from) = (late.swap, late.from_step);
            let name = &node.node;
            problems.push(format!(
                "node {name} is late for swap {swap} since step {from}: {}",
                late.why
            ));
        }
    }
    problems
}

/// Numbers as people write them: `0-3, 8`.
fn ranges(ranks: &[Rank]) -> String {
    let follows = |a: &Rank, b: &Rank| a.0.checked_add(1) == Some(b.0);
    let range = |ranks: &[Rank]| match ranks {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    ranks.chunk_by(follows).map(range).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use pfo_protocol::FleetLate;

    use super::*;

    fn node(swap: u64, late: Option<FleetLate>) -> FleetMember {
        FleetMember { node: "n".into(), ranks: vec![Rank(0)], swap, late }
    }

    #[test]
    fn ranks_that_follow_each_other_are_one_range() {
        assert_eq!(ranges(&[0, 1, 2, 8, 10, 11].map(Rank)), "0-2, 8, 10-11");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn a_node_is_late_until_it_runs_what_the_others_do() {
        let late = FleetLate { swap: 4, from_step: 9, until_step: None, why: "w".into() };
        assert_eq!(state(&node(3, Some(late.clone())), None).0, "late since step 9");
        let fleet = FleetJob {
            nodes: vec![node(3, Some(late.clone()))],
            problem: None,
            store_away_s: None,
            swap: None,
            step: None,
            windows: Vec::new(),
            guarded_by: None,
            answered_by: None,
            straggler: None,
        };
        assert_eq!(problems(&fleet), ["node n is late for swap 4 since step 9: w"]);
        let over = FleetLate { until_step: Some(12), ..late };
        assert_eq!(state(&node(4, Some(over.clone())), None).0, "was late from step 9 to 12");
        assert_eq!(state(&node(5, Some(over.clone())), None).0, "in time");
        let fleet = FleetJob { nodes: vec![node(4, Some(over))], ..fleet };
        assert!(problems(&fleet).is_empty());
    }

    #[test]
    fn the_windows_of_all_nodes_are_compared_with_the_first_one_at_default_clocks() {
        let window = |plan: Option<&str>, time_s, energy_j| FleetWindow {
            swap: 1,
            plan: plan.map(str::to_owned),
            step: FleetStep { time_s, energy_j },
        };
        let at_default = window(None, 1.0, Some(1000.0));
        assert_eq!(windows(std::slice::from_ref(&at_default), Look::default()), None);
        let planned = window(Some("p.json"), 1.01, Some(850.0));
        let compared = windows(&[at_default, planned.clone()], Look::default()).unwrap();
        let other = window(Some("q.json"), 1.0, None);
        let not_compared = windows(&[planned, other], Look::default()).unwrap();
        insta::assert_snapshot!([compared, not_compared].join("\n"));
    }
}
