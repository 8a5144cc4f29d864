//! What a node has measured of a trial, as it goes through the store, and the whole of it.

use pfo_fleet::Node;
use pfo_protocol::{
    AgentResponse, DaemonMessage, Frame, RecordedTrial, Refusal, RefusalCode, TrialStep,
};
use pfo_store::LARGEST_SLICE;

/// The bytes of what a node hands in.
pub(super) fn part_of(measured: Result<RecordedTrial, Refusal>) -> Vec<u8> {
    let of = |response| DaemonMessage::AgentResponse(response).to_frame().ok();
    let measured = match measured {
        Ok(trial) => AgentResponse::Recorded(Box::new(trial)),
        Err(refusal) => AgentResponse::Refused(refusal),
    };
    let fits = of(measured).filter(|frame| frame.len() <= LARGEST_SLICE);
    let too_much = || {
        let what = format!("more was measured than {LARGEST_SLICE} bytes");
        let refusal = Refusal::new(RefusalCode::Malformed, what, "measure fewer steps at once");
        of(AgentResponse::Refused(refusal))
    };
    fits.or_else(too_much).unwrap_or_default()
}

/// What a node has measured.
///
/// # Errors
/// Why it has not, or that it is something else.
pub(super) fn measured_in(part: &[u8]) -> Result<RecordedTrial, Refusal> {
    let frame = Frame::first_of(part).ok().flatten();
    let message =
        frame.and_then(|frame| DaemonMessage::from_payload(frame.kind, frame.payload).ok());
    match message {
        Some(DaemonMessage::AgentResponse(AgentResponse::Recorded(trial))) => Ok(*trial),
        Some(DaemonMessage::AgentResponse(AgentResponse::Refused(refusal))) => Err(refusal),
        _ => Err(Refusal::new(
            RefusalCode::LimitReached,
            "it has handed in what is no trial",
            "install the same release of pfo-agent on every node",
        )),
    }
}

/// Adds up what every node has measured, that of the asking one first. A step takes as long as on the
/// node on which all of them took longest: begins on different nodes cannot be compared. Its energy is
/// that of all ranks.
///
/// # Errors
/// The first node that has measured other steps.
pub(super) fn whole(parts: Vec<(Node, RecordedTrial)>) -> Result<Option<RecordedTrial>, Node> {
    let mut parts = parts.into_iter();
    let Some((_, mut whole)) = parts.next() else { return Ok(None) };
    for (node, part) in parts {
        let steps = |trial: &RecordedTrial| (trial.trial.first_step, trial.trial.steps.len());
        if steps(&part) != steps(&whole) {
            return Err(node);
        }
        let took_s = |steps: &[TrialStep]| steps.iter().map(|step| step.time_s).sum::<f64>();
        let is_slower = took_s(&part.trial.steps) > took_s(&whole.trial.steps);
        for (step, other) in whole.trial.steps.iter_mut().zip(&part.trial.steps) {
            if is_slower {
                step.time_s = other.time_s;
            }
            step.energy_j = step.energy_j.zip(other.energy_j).map(|(one, other)| one + other);
        }
        whole.trial.ranks.extend(part.trial.ranks);
        whole.ranks.extend(part.ranks);
    }
    whole.trial.ranks.sort_by_key(|rank| rank.rank);
    whole.ranks.sort_by_key(|rank| rank.rank);
    Ok(Some(whole))
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Instruction, Rank};

    use super::*;
    use crate::sweep::tests::trial;

    fn node(name: &str) -> Node {
        name.parse().unwrap()
    }

    fn measured(rank: u32, steps: &[(f64, f64)]) -> RecordedTrial {
        let mut one = trial(1.0, &[&[(Instruction::Forward, 0.5, Some(1.0))]]);
        let step =
            |&(time_s, energy_j): &(f64, f64)| TrialStep { time_s, energy_j: Some(energy_j) };
        one.trial.steps = steps.iter().map(step).collect();
        (one.trial.ranks[0].rank, one.ranks[0].rank) = (Rank(rank), Rank(rank));
        one
    }

    #[test]
    fn a_part_is_read_as_it_was_handed_in_and_nothing_else_is_one() {
        let trial = measured(3, &[(1.0, 5.0)]);
        assert_eq!(measured_in(&part_of(Ok(trial.clone()))), Ok(trial.clone()));
        let refusal = Refusal::new(RefusalCode::NoPlan, "no", "yes");
        assert_eq!(measured_in(&part_of(Err(refusal.clone()))), Err(refusal));
        for wrong in [&b""[..], b"{}", &part_of(Ok(trial))[..9]] {
            assert!(measured_in(wrong).unwrap_err().message.contains("no trial"));
        }
        let long = part_of(Ok(measured(0, &vec![(1.0, 5.0); 50_000])));
        assert!(long.len() < LARGEST_SLICE);
        assert_eq!(measured_in(&long).unwrap_err().remedy, "measure fewer steps at once");
    }

    #[test]
    fn the_whole_has_the_times_of_the_slowest_node_and_the_energy_and_ranks_of_all() {
        let one = (node("b"), measured(1, &[(1.0, 5.0), (1.2, 6.0)]));
        let other = (node("a"), measured(0, &[(1.1, 50.0), (1.15, 60.0)]));
        let both = whole(vec![one.clone(), other.clone()]).unwrap().unwrap();
        let step = |time_s, energy_j| TrialStep { time_s, energy_j: Some(energy_j) };
        assert_eq!(both.trial.steps, [step(1.1, 55.0), step(1.15, 66.0)]);
        let ranks: Vec<_> = both.trial.ranks.iter().map(|rank| rank.rank).collect();
        assert_eq!(ranks, [Rank(0), Rank(1)]);
        assert_eq!(both.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), ranks);
        let mut later = other;
        later.1.trial.first_step += 1;
        assert_eq!(whole(vec![one, later]), Err(node("a")));
        assert_eq!(whole(Vec::new()), Ok(None));
    }
}
