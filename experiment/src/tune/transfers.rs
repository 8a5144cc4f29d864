//! How long a job's transfers take: from the end of an instruction to the begin of one on another
//! stage that waited for nothing else.

use std::collections::HashMap;

use pfo_planner::{Instruction, Pipeline, Profile, Stage, StageUnit, Unit};
use pfo_protocol::{Doubt, DpRank, InstructionSample, Rank, SamplePage, TpRank, TrialResult};

use crate::report::Transfers;

/// Fewer do not give a time.
const ENOUGH: usize = 8;

/// Transfers that take a smaller share of the shortest instruction change no plan.
const NEGLIGIBLE: f64 = 0.005;

/// Who runs an instruction: the step, the stage, and the rank's place in it.
type Place = (u64, Stage, DpRank, TpRank);

/// When an instruction ran, and when the one before it on its rank ended, in nanoseconds.
struct Ran {
    free_ns: u64,
    began_ns: u64,
    ended_ns: u64,
}

/// Those of a trial, from its instructions one by one.
pub(crate) fn of(pipeline: &Pipeline, trial: &TrialResult, samples: &[SamplePage]) -> Transfers {
    let ran = ran(trial, samples);
    let mut waits_ns = Vec::new();
    for (waiting, awaited) in pipeline.hand_overs() {
        let Some(receivers) = ran.get(&waiting.stage).and_then(|on| on.get(&unit(&waiting))) else {
            continue;
        };
        for (&(step, _, dp_rank, tp_rank), receiver) in receivers {
            let sender = |sender: &StageUnit| {
                let place = (step, sender.stage, dp_rank, tp_rank);
                ran.get(&sender.stage)?.get(&unit(sender))?.get(&place)
            };
            let Some(senders) = awaited.iter().map(sender).collect::<Option<Vec<_>>>() else {
                continue;
            };
            let Some(sent_ns) = senders.iter().map(|ran| ran.ended_ns).max() else { continue };
            if receiver.free_ns <= sent_ns {
                waits_ns.push(receiver.began_ns as i64 - sent_ns as i64);
            }
        }
    }
    waits_ns.sort_unstable();
    let hand_overs = waits_ns.len();
    match waits_ns.get(hand_overs / 2) {
        // Before it is sent, nothing arrives: instructions begin before their input is there.
        Some(&median_ns) if hand_overs >= ENOUGH && median_ns >= 0 => {
            Transfers::Measured { median_s: median_ns as f64 / 1e9, hand_overs }
        }
        _ => Transfers::Unknown,
    }
}

impl Transfers {
    /// The time to plan with, if it was measured and matters beside the instructions of a profile.
    pub(crate) fn worth_planning_s(self, profile: &Profile) -> Option<f64> {
        let Self::Measured { median_s, .. } = self else { return None };
        let computing = profile.rows().filter(|(_, instruction, _)| !instruction.is_fixed());
        let shortest_s = computing.map(|(.., row)| row.time_s).fold(f64::INFINITY, f64::min);
        (median_s > NEGLIGIBLE * shortest_s).then_some(median_s)
    }
}

fn unit(of: &StageUnit) -> Unit {
    let &StageUnit { instruction, microbatch, chunk, .. } = of;
    Unit { instruction, microbatch, chunk }
}

/// When each instruction ran, by stage, unit and who ran it.
fn ran(
    trial: &TrialResult,
    samples: &[SamplePage],
) -> HashMap<Stage, HashMap<Unit, HashMap<Place, Ran>>> {
    let ranks: HashMap<Rank, _> = trial.ranks.iter().map(|rank| (rank.rank, rank)).collect();
    let mut ran: HashMap<Stage, HashMap<Unit, HashMap<Place, Ran>>> = HashMap::new();
    let mut before: HashMap<Rank, &InstructionSample> = HashMap::new();
    for page in samples {
        let Some(rank) = ranks.get(&page.rank) else { continue };
        for sample in &page.samples {
            let last = before.insert(page.rank, sample).filter(|last| last.step == sample.step);
            if sample.left_out == Some(Doubt::Mismatched)
                || sample.unit.instruction == Instruction::P2p
            {
                continue;
            }
            let place = (sample.step, rank.stage, rank.dp_rank, rank.tp_rank);
            let InstructionSample { began_ns, ended_ns, .. } = *sample;
            let free_ns = last.map_or(0, |last| last.ended_ns);
            let of_unit = ran.entry(rank.stage).or_default().entry(sample.unit).or_default();
            of_unit.insert(place, Ran { free_ns, began_ns, ended_ns });
        }
    }
    ran
}

#[cfg(test)]
mod tests {
    use pfo_planner::{Microbatch, Schedule};
    use pfo_protocol::TrialRank;

    use super::*;

    const TRANSFER_NS: u64 = 3_000_000;

    fn profile() -> Profile {
        let rows = "stage,instruction,frequency,time,energy\n\
                    0,forward,900,0.1,30\n0,backward,900,0.1,30\n\
                    1,forward,900,0.1,30\n1,backward,900,0.1,30\n";
        Profile::from_csv(rows.as_bytes()).unwrap()
    }

    fn rank(rank: u32) -> TrialRank {
        TrialRank {
            rank: Rank(rank),
            stage: Stage(rank as u16),
            dp_rank: DpRank(0),
            tp_rank: TpRank(0),
            gpu_uuid: "GPU-a".parse().unwrap(),
            gpu_model: "A100".to_owned(),
            time_s: 1.0,
            energy_j: None,
            mismatched_steps: 0,
        }
    }

    fn sample(step: u64, instruction: Instruction, began_ns: u64) -> InstructionSample {
        InstructionSample {
            step,
            unit: Unit { instruction, microbatch: Microbatch(0), ..Unit::new(instruction, 0) },
            began_ns,
            ended_ns: began_ns + 100_000_000,
            mhz: None,
            observed: None,
            throttle_reasons: 0,
            counter_j: None,
            counter_refreshes: 0,
            left_out: None,
        }
    }

    /// Steps of one microbatch on two stages, whose second stage sees this after the first one's end.
    fn of_steps(steps: u64, late_ns: i64) -> Transfers {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for step in 0..steps {
            let begin_ns = step * 1_000_000_000;
            let there_ns = (begin_ns + 100_000_000).checked_add_signed(late_ns).unwrap();
            let back_ns = (there_ns + 200_000_000).checked_add_signed(late_ns).unwrap();
            first.push(sample(step, Instruction::Forward, begin_ns));
            first.push(sample(step, Instruction::Backward, back_ns));
            second.push(sample(step, Instruction::Forward, there_ns));
            second.push(sample(step, Instruction::Backward, there_ns + 100_000_000));
        }
        let page = |rank, samples| SamplePage { rank: Rank(rank), samples, dropped: 0 };
        let ranks = vec![rank(0), rank(1)];
        let trial = TrialResult { plan: None, first_step: 0, steps: Vec::new(), ranks };
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::new(&profile(), schedule, 1).unwrap();
        of(&pipeline, &trial, &[page(0, first), page(1, second)])
    }

    #[test]
    fn what_a_stage_waits_for_after_the_end_of_what_it_needs_is_the_transfer() {
        let measured = of_steps(5, TRANSFER_NS as i64);
        assert_eq!(measured, Transfers::Measured { median_s: 0.003, hand_overs: 10 });
        assert_eq!(measured.worth_planning_s(&profile()), Some(0.003));
    }

    #[test]
    fn transfers_that_hardly_take_time_are_not_planned() {
        assert_eq!(of_steps(5, 400_000).worth_planning_s(&profile()), None);
    }

    #[test]
    fn instructions_that_begin_before_their_input_is_there_say_nothing() {
        assert_eq!(of_steps(5, -40_000_000), Transfers::Unknown);
        assert_eq!(of_steps(3, TRANSFER_NS as i64), Transfers::Unknown, "too few");
    }
}
