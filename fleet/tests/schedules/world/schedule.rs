//! What is to happen in a schedule: who wishes what, and what goes wrong meanwhile.

use pfo_fleet::{Length, Purpose};

use super::{Calm, Happens, TROUBLE_MS, World};

impl World {
    pub(super) fn plan_schedule(&mut self) {
        let nodes = self.nodes.len();
        for node in 0..nodes {
            let (step, start) = (self.rng.u64(0..100), self.rng.u64(0..500));
            self.at(step, node, Happens::Step);
            self.at(start, node, Happens::Start);
        }
        let is_calm = self.calm != Calm::No;
        if self.calm == Calm::Astray || !is_calm && self.rng.u8(0..3) == 0 {
            let since = if is_calm { 3000 } else { self.rng.u64(0..TROUBLE_MS) };
            let until = if is_calm { 12_000 } else { TROUBLE_MS };
            self.astray.1 = since..until;
        }
        if self.calm == Calm::Yes && self.rng.bool() {
            let node = self.rng.usize(0..nodes);
            self.at(2500, node, Happens::Sweep);
            return;
        }
        let is_swept = !is_calm && self.rng.u8(0..3) == 0;
        if is_swept {
            self.plan_sweeps();
        }
        let wishes = if is_swept { self.rng.u8(1..3) } else { self.rng.u8(3..6) };
        for wish in 1..wishes {
            let when = if is_calm { u64::from(wish) * 2500 } else { self.rng.u64(800..TROUBLE_MS) };
            let node = self.rng.usize(0..nodes);
            // What a GPU refuses may be wished for once more.
            let wish = if self.calm == Calm::Astray { wish.min(3) } else { wish };
            let length = Length { settling_steps: 1, steps: 5, samples: false };
            let purpose = match self.rng.u8(0..6) {
                0 if !is_calm => Purpose::Comparison(length),
                1 if !is_calm => Purpose::Trial(length),
                _ => Purpose::Swap,
            };
            let is_exact = !is_calm && purpose == Purpose::Swap && self.rng.u8(0..4) == 0;
            let ahead = is_exact.then(|| self.rng.u64(2..30));
            self.at(when, node, Happens::Wish(wish, purpose, ahead));
            if matches!(purpose, Purpose::Trial(_) | Purpose::Comparison(_)) {
                // Trials of one node follow each other.
                let next = (when + self.rng.u64(100..2000)).min(TROUBLE_MS);
                self.at(next, node, Happens::Wish(wish + 10, purpose, None));
                let lasts = self.rng.u64(1..4000);
                self.at((next + lasts).min(TROUBLE_MS + 2), node, Happens::LetGo);
            }
            let lasts = self.rng.u64(1..4000);
            self.at((when + lasts).min(TROUBLE_MS + 2), node, Happens::LetGo);
        }
        if !is_calm {
            self.plan_trouble();
        }
    }

    fn plan_trouble(&mut self) {
        let nodes = self.nodes.len();
        for _ in 0..self.rng.u32(0..8) {
            let (when, node) = (self.rng.u64(300..TROUBLE_MS), self.rng.usize(0..nodes));
            let longest = *self.rng.choice(&[50, 500, 3000]).unwrap();
            let lasts = self.rng.u64(1..longest);
            let (begin, end) = match self.rng.u8(0..3) {
                0 => (Happens::Crash, Happens::Start),
                1 => (Happens::Cut, Happens::Heal),
                _ => (Happens::PfodDies, Happens::PfodStarts),
            };
            self.at(when, node, begin);
            self.at((when + lasts).min(TROUBLE_MS), node, end);
        }
        // Afterwards all is well.
        for node in 0..nodes {
            self.at(TROUBLE_MS, node, Happens::Heal);
            self.at(TROUBLE_MS, node, Happens::PfodStarts);
            self.at(TROUBLE_MS + 1, node, Happens::Start);
        }
    }
}
