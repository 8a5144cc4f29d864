//! Somebody who sweeps a job from a node: trial after trial, some of which come to nothing, with a swap for
//! good in between now and then, until the sweep is over or who runs it is gone.

use pfo_fleet::{Event, Length, Purpose, Terms, Told};
use pfo_vocabulary::Uid;

use super::{Calm, Happens, QUIET_MS, TROUBLE_MS, VETOED, World};
use crate::schedules::observer::Ran;
use crate::schedules::pfod::plan;

const LENGTH: Length = Length { settling_steps: 1, steps: 3, samples: false };

/// When the last trial is wished: a sweep may outlast the trouble.
const LAST_MS: u64 = TROUBLE_MS + QUIET_MS / 2;

/// A sweep that somebody runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    number: u64,
    /// Trials that are to come, and attempts that may come to nothing.
    left: u8,
    patience: u8,
    /// Whether the last one is wished, after which there is none.
    ends: bool,
    is_trial: bool,
}

/// What there was in the sweeps of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Swept {
    /// The most trials that took place one after the other, with nothing between them.
    pub(crate) in_a_row: u32,
    row: u32,
    /// Trials that a node vetoed, or for which one was too late.
    pub(crate) aborted: u32,
    /// Swaps for good with trials before and after them.
    pub(crate) swaps_between: u32,
    /// Sweeps that came to their end.
    pub(crate) ended: u32,
}

impl World {
    /// Plays a schedule, and says what there was in its sweeps.
    pub(crate) fn swept(mut self) -> Swept {
        self.play();
        self.swept
    }

    pub(super) fn plan_sweeps(&mut self) {
        let nodes = self.nodes.len();
        for _ in 0..self.rng.u8(1..3) {
            let (when, node) = (self.rng.u64(700..2000), self.rng.usize(0..nodes));
            self.at(when, node, Happens::Sweep);
        }
    }

    pub(super) fn begin_sweep(&mut self, node: usize) {
        if self.nodes[node].agent.is_none() || self.nodes[node].sweep.is_some() {
            return;
        }
        self.sweeps += 1;
        let left = if self.calm == Calm::Yes { 3 } else { self.rng.u8(2..7) };
        let sweep = Sweep { number: self.sweeps, left, patience: 8, ends: false, is_trial: false };
        self.nodes[node].sweep = Some(sweep);
        self.go_on(node, sweep.number);
    }

    /// Wishes the next trial of a sweep, or ends it.
    pub(super) fn go_on(&mut self, node: usize, number: u64) {
        let Some(mut sweep) = self.nodes[node].sweep.filter(|sweep| sweep.number == number) else {
            return;
        };
        let is_calm = self.calm == Calm::Yes;
        if self.now >= LAST_MS && !is_calm {
            return self.let_go(node);
        }
        let is_swap_between = !is_calm && self.rng.u8(0..6) == 0;
        let (ran, purpose) = match sweep.left.checked_sub(1) {
            None if is_calm || self.rng.u8(0..3) > 0 => {
                sweep.ends = true;
                let kept = if self.rng.bool() { self.new_ran() } else { 0 };
                (kept, Purpose::LastOfTrials)
            }
            // Who runs it is killed.
            None => return self.let_go(node),
            Some(_) if is_swap_between => (self.new_ran(), Purpose::LastOfTrials),
            Some(left) => {
                sweep.left = left;
                let is_vetoed = !is_calm && self.rng.u8(0..8) == 0;
                (if is_vetoed { VETOED } else { self.new_ran() }, Purpose::Trial(LENGTH))
            }
        };
        sweep.is_trial = matches!(purpose, Purpose::Trial(_));
        self.nodes[node].sweep = Some(sweep);
        let run = plan(ran, self.nodes.len());
        self.give(node, Event::Wished(run, Uid(1), purpose, Terms::default()));
    }

    fn new_ran(&mut self) -> Ran {
        let ran = self.next_ran;
        self.next_ran = ran.checked_add(1).unwrap();
        ran
    }

    /// Who sweeps at a node hears what became of the last wish there, which may have been another one's.
    pub(super) fn tell_sweep(&mut self, node: usize, told: &Told) {
        let Some(sweep) = &mut self.nodes[node].sweep else { return };
        let number = sweep.number;
        match told {
            Told::Committed { .. } if sweep.ends => self.swept.ended += 1,
            Told::Committed { .. } if sweep.is_trial => self.swept.row += 1,
            Told::Committed { .. } => {
                self.swept.swaps_between += u32::from(self.swept.row > 0);
                self.swept.row = 0;
            }
            Told::Aborted(..) => self.swept.aborted += 1,
            _ => {}
        }
        self.swept.in_a_row = self.swept.in_a_row.max(self.swept.row);
        let pause = match told {
            Told::Committed { .. } if sweep.ends => {
                self.nodes[node].sweep = None;
                return;
            }
            Told::Committed { step, .. } => {
                let last = step + u64::from(LENGTH.settling_steps + LENGTH.steps);
                last.saturating_sub(self.nodes[node].pfod.next) * self.step_ms
            }
            _ => match sweep.patience.checked_sub(1) {
                Some(patience) => {
                    (sweep.patience, sweep.ends) = (patience, false);
                    self.rng.u64(50..600)
                }
                None => return self.after(1, node, Happens::LetGo),
            },
        };
        self.after(pause + 1, node, Happens::Next(number));
    }

    /// Who runs trials at a node is gone.
    pub(super) fn let_go(&mut self, node: usize) {
        self.nodes[node].sweep = None;
        self.give(node, Event::LetGo);
    }
}
