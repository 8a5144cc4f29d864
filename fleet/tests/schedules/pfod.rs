//! What a simulated `pfod` runs.

use pfo_fleet::{Degrees, Digest, Gpus, Place, PlanCut, Run, Runs, Seen, SwapAnswer};
use pfo_vocabulary::{DpRank, Rank, Stage, TpRank};

use crate::schedules::observer::Ran;

/// How a `pfod` that was killed comes back, after a step at default clocks.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Return {
    /// As it was, at once or when its rank begins a step.
    Whole,
    /// It changes at once to what it should have changed to later.
    Early,
    /// It says that it runs what it ran, and stays at default clocks for some more steps.
    Idle,
}

#[derive(Default)]
pub(crate) struct Pfod {
    pub(crate) is_away: bool,
    /// Whether it came back, and its rank has yet to find it.
    pub(crate) is_alone: bool,
    /// Steps that still run at default clocks because it was killed, and whether the next of them is the
    /// one that may.
    defaults: u64,
    may_default: bool,
    /// The next step.
    pub(crate) next: u64,
    /// How many swaps it has begun.
    swaps_begun: u64,
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
            swap: self.swaps_begun,
            held: None,
            slow: Vec::new(),
            astray: None,
            shown: false,
        }
    }

    pub(crate) fn die(&mut self) {
        self.is_away = true;
    }

    /// Comes back. `finds` says whether it finds its rank at once.
    pub(crate) fn come_back(&mut self, returns: Return, finds: bool) {
        if !std::mem::take(&mut self.is_away) {
            return;
        }
        (self.is_alone, self.defaults, self.may_default) = (!finds, 1, true);
        match returns {
            Return::Whole => {}
            Return::Early => {
                let now = self.next;
                self.swaps.iter_mut().for_each(|(from, _)| *from = now.min(*from));
            }
            Return::Idle => self.defaults = 4,
        }
    }

    /// What its rank runs in the step that it begins now, and whether that is because it was killed.
    pub(crate) fn begin_step(&mut self) -> (Ran, bool) {
        let runs = self.swaps.iter().rfind(|(from, _)| *from <= self.next);
        let runs = runs.map_or(0, |(_, ran)| *ran);
        self.next += 1;
        if self.is_away {
            return (0, true);
        }
        self.is_alone = false;
        let may_default = std::mem::take(&mut self.may_default);
        match self.defaults.checked_sub(1) {
            Some(rest) => {
                self.defaults = rest;
                (0, may_default)
            }
            None => (runs, false),
        }
    }

    /// As `pfod` does it: at exactly the step that is named or not at all; a swap whose step has
    /// yet to come is replaced. Only after the swap that was seen, as every request of an agent says.
    pub(crate) fn swap(
        &mut self,
        ran: Ran,
        (at, after): (Option<u64>, u64),
        moves: bool,
    ) -> SwapAnswer {
        if self.is_alone {
            return SwapAnswer::Refused("no rank of the job is here".into());
        }
        if after != self.swaps_begun {
            return SwapAnswer::Refused("there was another swap".into());
        }
        let at = match at {
            Some(at) if at < self.next && moves => self.next,
            Some(at) if at < self.next => return SwapAnswer::Refused("begun already".into()),
            at => at.unwrap_or(self.next),
        };
        self.swaps.retain(|(from, _)| *from < self.next);
        self.swaps.push((at, ran));
        self.swaps_begun += 1;
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
