//! The agents, and what becomes of what they ask for: at `pfod`, and on the way to the store.

use std::collections::BTreeSet;

use pfo_fleet::{Action, Event, Participant, Report, Seen, SwapAnswer, View, Write};

use super::{AWAY_MS, Broken, Happens, TICK_MS, VETOED, World, name};
use crate::schedules::pfod::ran_of;

impl World {
    pub(super) fn start(&mut self, node: usize) {
        if self.nodes[node].agent.is_some() {
            return;
        }
        let mut agent = Participant::new(name(node), self.settings, self.now);
        assert!(agent.on(Event::Tick(self.now)).iter().all(|action| *action == Action::Look));
        self.nodes[node].agent = Some(agent);
        self.nodes[node].view = View::Part;
        let life = self.nodes[node].life;
        self.after(1, node, Happens::Ask(life, Box::new(Action::Look)));
        self.after(TICK_MS, node, Happens::Tick);
        self.connect(node);
    }

    /// Gives the agent an event, and does what it asks for.
    pub(super) fn give(&mut self, node: usize, event: Event) {
        let Some(agent) = &mut self.nodes[node].agent else { return };
        let actions = agent.on(event);
        for action in actions {
            self.act(node, action);
        }
    }

    pub(super) fn act(&mut self, node: usize, action: Action) {
        if self.shows {
            println!("{:>6} n{node}     → {action:?}", self.now);
        }
        let (life, connection) = (self.nodes[node].life, self.nodes[node].connection);
        let delay = self.delay();
        match action {
            Action::Tell(told) => {
                self.tell_sweep(node, &told);
                self.told.push(told);
            }
            Action::Measure { .. } => {}
            Action::Watch(view) => {
                self.nodes[node].view = view;
                if self.nodes[node].is_connected {
                    self.ask_to_watch(node, AWAY_MS);
                }
            }
            Action::Look | Action::Load(..) | Action::Swap { .. } => {
                self.after(delay, node, Happens::Ask(life, Box::new(action)));
            }
            Action::Fetch(slices) => {
                let fetched = if self.is_unlucky() { BTreeSet::new() } else { slices };
                let event = Box::new(Event::Fetched(fetched));
                self.after(delay, node, Happens::Deliver(life, None, event));
            }
            write => {
                if self.is_unlucky() {
                    let event = Box::new(Event::Written(kind_of(&write), None));
                    self.after(delay, node, Happens::Deliver(life, None, event));
                    if self.rng.bool() {
                        return;
                    }
                }
                self.after(delay, node, Happens::Write(life, connection, Box::new(write)));
            }
        }
    }

    /// A request reaches `pfod`, even if the agent that made it has died since.
    pub(super) fn ask_pfod(&mut self, node: usize, life: u64, action: Action) {
        let moves = self.broken == Broken::StepsMove;
        let nodes = self.nodes.len() as u32;
        let is_astray = action == Action::Look
            && (self.astray.0 == node && self.astray.1.contains(&self.now)
                || self.is_unlucky() && self.rng.u8(0..4) == 0);
        let astray = is_astray.then(|| "no permission".into());
        let pfod = &mut self.nodes[node].pfod;
        let is_away = pfod.is_away;
        let event = match action {
            Action::Look if is_away => Event::Looked(None),
            Action::Look if pfod.is_alone => Event::Looked(None),
            Action::Look => {
                let seen = pfod.show(node, nodes, self.step_ms);
                Event::Looked(Some(Seen { shown: !is_astray, astray, ..seen }))
            }
            Action::Load(number, _) if pfod.is_alone && !is_away => {
                Event::Loaded(number, Some(Err("no rank of the job is here".into())))
            }
            Action::Load(number, run) if node == self.vetoes && ran_of(&run) == VETOED => {
                Event::Loaded(number, (!is_away).then(|| Err("no such clock".into())))
            }
            Action::Load(number, _) => Event::Loaded(number, (!is_away).then_some(Ok(()))),
            Action::Swap { .. } if is_away => Event::Swapped(SwapAnswer::Unknown),
            Action::Swap { run, at, after } => {
                Event::Swapped(pfod.swap(ran_of(&run), (at, after), moves))
            }
            other => unreachable!("{other:?} is nothing for pfod"),
        };
        let event = match event {
            Event::Swapped(_) if self.is_unlucky() => Event::Swapped(SwapAnswer::Unknown),
            event => event,
        };
        let delay = self.delay();
        self.after(delay, node, Happens::Deliver(life, None, Box::new(event)));
    }
}

pub(super) fn kind_of(action: &Action) -> Write {
    match action {
        Action::Join(_) => Write::Join,
        Action::Report(Report { .. }) => Write::Report,
        Action::Propose { .. } => Write::Propose,
        Action::Arm(..) => Write::Arm,
        Action::Decide(..) => Write::Decide,
        other => unreachable!("{other:?} is no write"),
    }
}
