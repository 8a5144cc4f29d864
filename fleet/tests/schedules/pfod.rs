//! What a simulated `pfod` runs.

use pfo_fleet::{Degrees, Digest, Gpus, Place, PlanCut, Run, Runs, Seen, SwapAnswer};
use pfo_vocabulary::{DpRank, Rank, Stage, TpRank};

use crate::observer::Ran;

#[derive(Default)]
pub(crate) struct Pfod {
    pub(crate) is_away: bool,
    /// The next step.
    pub(crate) next: u64,
    /// From which step on what runs.
    pub(crate) swaps: Vec<(u64, Ran)>,
}

impl Pfod {
    pub(crate) fn show(&self, node: usize, nodes: u32, step_ms: u64) -> Seen {
        let number = node as u16;
        let place =
            Place { rank: Rank(node as u32), stage: Stage(number), dp: DpRank(0), tp: TpRank(0) };
        let runs = match self.swaps.last().map_or(0, |(_, ran)| *ran) {
            0 => Runs::DefaultClocks,
            ran => Runs::Slices([(place.stage, Digest([ran; 32]))].into()),
        };
        Seen {
            degrees: Degrees { pp: nodes, dp: 1, tp: 1 },
            places: vec![place],
            gpus: Gpus::default(),
            next_step: Some(self.next),
            step_ms: Some(step_ms),
            runs,
            held: None,
        }
    }

    /// As `pfod` does it: at exactly the step that is named or not at all; a swap whose step has
    /// yet to come is replaced.
    pub(crate) fn swap(&mut self, ran: Ran, at: Option<u64>, moves: bool) -> SwapAnswer {
        let at = match at {
            Some(at) if at < self.next && moves => self.next,
            Some(at) if at < self.next => return SwapAnswer::Refused("begun already".into()),
            at => at.unwrap_or(self.next),
        };
        self.swaps.retain(|(from, _)| *from < self.next);
        self.swaps.push((at, ran));
        SwapAnswer::At(at)
    }
}

pub(crate) fn plan(ran: Ran, stages: usize) -> Run {
    if ran == 0 {
        return Run::DefaultClocks;
    }
    let stages = vec![Digest([ran; 32]); stages];
    Run::Plan(PlanCut { label: format!("p{ran}"), num_microbatches: 1, predicted: None, stages })
}

pub(crate) fn ran_of(run: &Run) -> Ran {
    run.slice(Stage(0)).map_or(0, |digest| digest.0[0])
}
