//! What a node has measured of a trial, as it goes through the store, and the whole of it.

use pfo_fleet::Node;
use pfo_protocol::{
    AgentResponse, DaemonMessage, Frame, RecordedTrial, Refusal, RefusalCode, SamplePage, TrialStep,
};
use pfo_store::LARGEST_SLICE;

use crate::record::TrialSamples;

/// What is known of a trial: the whole of it, and its instructions one by one.
pub(super) type Measured = (RecordedTrial, TrialSamples);

/// Bytes of one instruction, at most.
const SAMPLE: usize = 96;

/// For how many instructions of each rank of a node there is room one by one: they may take half of what it
/// hands in.
pub(super) fn room_for_samples(ranks: usize) -> usize {
    (LARGEST_SLICE / 2 / SAMPLE).checked_div(ranks).unwrap_or(0)
}

fn frame_of(response: AgentResponse) -> Option<Vec<u8>> {
    DaemonMessage::AgentResponse(response).to_frame().ok()
}

/// The bytes of what a node hands in: a frame with the trial, and others with its instructions.
pub(super) fn part_of(measured: Result<Measured, Refusal>) -> Vec<u8> {
    let part = match measured {
        Ok((trial, mut samples)) => {
            let pages = std::iter::from_fn(|| samples.next_page());
            let pages = pages.map(|page| frame_of(AgentResponse::Samples(Some(page))));
            let trial = frame_of(AgentResponse::Recorded(Box::new(trial)));
            std::iter::once(trial).chain(pages).collect::<Option<Vec<_>>>().map(|all| all.concat())
        }
        Err(refusal) => frame_of(AgentResponse::Refused(refusal)),
    };
    let too_much = || {
        let what = format!("more was measured than {LARGEST_SLICE} bytes");
        let refusal = Refusal::new(RefusalCode::Malformed, what, "measure fewer steps at once");
        frame_of(AgentResponse::Refused(refusal))
    };
    part.filter(|part| part.len() <= LARGEST_SLICE).or_else(too_much).unwrap_or_default()
}

/// What a node has measured.
///
/// # Errors
/// Why it has not, or that it is something else.
pub(super) fn measured_in(part: &[u8]) -> Result<Measured, Refusal> {
    let mut rest = part;
    let mut next = || {
        let frame = Frame::first_of(rest).ok().flatten()?;
        rest = rest.get(frame.total_bytes()..).unwrap_or_default();
        match DaemonMessage::from_payload(frame.kind, frame.payload) {
            Ok(DaemonMessage::AgentResponse(response)) => Some(response),
            _ => None,
        }
    };
    let trial = match next() {
        Some(AgentResponse::Recorded(trial)) => *trial,
        Some(AgentResponse::Refused(refusal)) => return Err(refusal),
        _ => {
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                "it has handed in what is no trial",
                "install the same release of pfo-agent on every node",
            ));
        }
    };
    let mut samples = TrialSamples::default();
    while let Some(AgentResponse::Samples(Some(SamplePage { rank, samples: page, dropped }))) =
        next()
    {
        samples.add(rank, page, dropped);
    }
    Ok((trial, samples))
}

/// Adds up what every node has measured, that of the asking one first. A step takes as long as on the
/// node on which all of them took longest: begins on different nodes cannot be compared. Its energy is
/// that of all ranks.
///
/// # Errors
/// The first node that has measured other steps.
pub(super) fn whole(parts: Vec<(Node, Measured)>) -> Result<Option<Measured>, Node> {
    let mut parts = parts.into_iter();
    let Some((_, (mut whole, mut samples))) = parts.next() else { return Ok(None) };
    for (node, (part, of_part)) in parts {
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
        samples.append(of_part);
    }
    whole.trial.ranks.sort_by_key(|rank| rank.rank);
    whole.ranks.sort_by_key(|rank| rank.rank);
    samples.sort();
    Ok(Some((whole, samples)))
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Doubt, Instruction, InstructionSample, Mhz, Rank, Unit};

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
        let part = |trial: &RecordedTrial| part_of(Ok((trial.clone(), TrialSamples::default())));
        assert_eq!(measured_in(&part(&trial)).unwrap().0, trial);
        let refusal = Refusal::new(RefusalCode::NoPlan, "no", "yes");
        assert_eq!(measured_in(&part_of(Err(refusal.clone()))).unwrap_err(), refusal);
        for wrong in [&b""[..], b"{}", &part(&trial)[..9]] {
            assert!(measured_in(wrong).unwrap_err().message.contains("no trial"));
        }
        let long = part(&measured(0, &vec![(1.0, 5.0); 50_000]));
        assert!(long.len() < LARGEST_SLICE);
        assert_eq!(measured_in(&long).unwrap_err().remedy, "measure fewer steps at once");
    }

    #[test]
    fn as_many_instructions_as_there_is_room_for_are_handed_in_with_the_trial() {
        let sample = || InstructionSample {
            step: u64::MAX,
            unit: Unit::new(Instruction::Forward, u32::MAX),
            began_ns: u64::MAX,
            ended_ns: u64::MAX,
            mhz: Some(Mhz(1410)),
            observed: Some((Mhz(1410), u64::MAX)),
            throttle_reasons: u64::MAX,
            counter_j: Some(1.0),
            counter_refreshes: u32::MAX,
            left_out: Some(Doubt::Settling),
        };
        let (ranks, trial) = (8, measured(0, &[(1.0, 5.0)]));
        let room = room_for_samples(ranks as usize);
        let of_node = |first: u32| {
            let mut samples = TrialSamples::default();
            for rank in first..first + ranks {
                samples.add(Rank(rank), (0..room).map(|_| sample()).collect(), 7);
            }
            measured_in(&part_of(Ok((trial.clone(), samples)))).unwrap()
        };
        let parts = vec![(node("a"), of_node(8)), (node("b"), of_node(0))];
        let (_, mut samples) = whole(parts).unwrap().unwrap();
        let pages = std::iter::from_fn(|| samples.next_page());
        let pages = pages.map(|page| (page.rank.0, page.samples.len(), page.dropped));
        assert!(pages.eq((0..2 * ranks).map(|rank| (rank, room, 7))));
    }

    #[test]
    fn the_whole_has_the_times_of_the_slowest_node_and_the_energy_and_ranks_of_all() {
        let one = (node("b"), measured(1, &[(1.0, 5.0), (1.2, 6.0)]));
        let other = (node("a"), measured(0, &[(1.1, 50.0), (1.15, 60.0)]));
        let with = |(node, trial): &(Node, RecordedTrial)| {
            (node.clone(), (trial.clone(), TrialSamples::default()))
        };
        let (both, _) = whole(vec![with(&one), with(&other)]).unwrap().unwrap();
        let step = |time_s, energy_j| TrialStep { time_s, energy_j: Some(energy_j) };
        assert_eq!(both.trial.steps, [step(1.1, 55.0), step(1.15, 66.0)]);
        let ranks: Vec<_> = both.trial.ranks.iter().map(|rank| rank.rank).collect();
        assert_eq!(ranks, [Rank(0), Rank(1)]);
        assert_eq!(both.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), ranks);
        let mut later = other;
        later.1.trial.first_step += 1;
        assert_eq!(whole(vec![with(&one), with(&later)]).unwrap_err(), node("a"));
        assert!(whole(Vec::new()).unwrap().is_none());
    }
}
