//! The store: what it takes from the agents, and what it lets them see of that.

use pfo_fleet::{Action, Change, Event, View};

use super::{AWAY_MS, Broken, Happens, KEEP_ALIVE_MS, LEASE_MS, World, kind_of, name};
use crate::schedules::pfod::ran_of;

impl World {
    pub(super) fn connect(&mut self, node: usize) {
        let to = &self.nodes[node];
        if to.is_cut || to.is_connected || to.agent.is_none() {
            return;
        }
        // The end of the connection before is known first.
        let delay = AWAY_MS + self.delay();
        self.nodes[node].is_connected = true;
        self.after(delay, node, Happens::KeepAlive);
        self.ask_to_watch(node, AWAY_MS);
    }

    /// Asks the store for another watch in place of the one before. If that is lost, the agent connects
    /// again.
    pub(super) fn ask_to_watch(&mut self, node: usize, after: u64) {
        let to = &mut self.nodes[node];
        to.watch += 1;
        to.watches = None;
        let watch = to.watch;
        let delay = after + self.delay();
        if self.is_unlucky() {
            self.disconnect(node);
            self.after(delay, node, Happens::Reconnect);
        } else {
            self.after(delay, node, Happens::Watch(watch));
        }
    }

    pub(super) fn begin_watch(&mut self, node: usize, watch: u64) {
        let delay = self.delay();
        let to = &mut self.nodes[node];
        if !to.is_connected || to.watch != watch {
            return;
        }
        to.watches = Some(to.view);
        to.watched_until = [self.now + delay; 2];
        let seen = self.shared.clone().seen(to.view, &name(node));
        let snapshot = Box::new(Event::Snapshot(to.view, seen));
        let deliver = Happens::Deliver(to.life, Some(watch), snapshot);
        self.after(delay, node, deliver);
    }

    pub(super) fn disconnect(&mut self, node: usize) {
        let to = &mut self.nodes[node];
        if !to.is_connected {
            return;
        }
        (to.is_connected, to.watches) = (false, None);
        to.connection += 1;
        to.watch += 1;
        let life = to.life;
        self.after(AWAY_MS, node, Happens::Deliver(life, None, Box::new(Event::StoreAway)));
    }

    pub(super) fn keep_alive(&mut self, node: usize) {
        if self.nodes[node].is_connected {
            self.nodes[node].lease_until = self.now + LEASE_MS;
            self.after(LEASE_MS, node, Happens::Expire);
            self.after(KEEP_ALIVE_MS, node, Happens::KeepAlive);
        }
    }

    pub(super) fn expire(&mut self, node: usize) {
        let name = name(node);
        if self.now >= self.nodes[node].lease_until && self.shared.members.contains_key(&name) {
            self.publish(&Change::Member(name, None));
        }
    }

    /// A write reaches the store: even if its agent has died since, but not through a link that was
    /// cut.
    pub(super) fn write(&mut self, node: usize, (life, connection): (u64, u64), action: Action) {
        let kind = kind_of(&action);
        let is_through = self.nodes[node].connection == connection || self.rng.bool();
        let taken = is_through.then(|| self.commit(node, action));
        let answer = Box::new(Event::Written(kind, taken));
        let delay = self.delay();
        self.after(delay, node, Happens::Deliver(life, None, answer));
    }

    pub(super) fn commit(&mut self, node: usize, action: Action) -> bool {
        let me = name(node);
        match action {
            Action::Join(member) => {
                self.nodes[node].lease_until = self.now + LEASE_MS;
                self.after(LEASE_MS, node, Happens::Expire);
                self.publish(&Change::Member(me, Some(member)));
            }
            Action::Report(report) => {
                self.observer.report(node, &report);
                self.publish(&Change::Report(me, report));
            }
            Action::Propose { number, proposal, forget_below } => {
                let is_next = number == self.shared.newest() + 1;
                let again = self.broken == Broken::SwapsTwice && number == self.shared.newest();
                if !is_next && !again {
                    return false;
                }
                self.observer.proposal(number, &proposal, ran_of(&proposal.run));
                if again {
                    self.publish(&Change::Forgotten(number));
                }
                self.publish(&Change::Proposal(number, proposal));
                let old: Vec<_> =
                    self.shared.swaps.range(..forget_below).map(|(number, _)| *number).collect();
                old.into_iter().for_each(|number| self.publish(&Change::Forgotten(number)));
            }
            Action::Arm(number, answer) => {
                if number == 0 || self.shared.newest() != number {
                    return false;
                }
                self.publish(&Change::Answer(number, me, answer));
            }
            Action::Decide(number, decision) => {
                let Some(swap) = self.shared.swaps.get(&number) else { return false };
                if swap.decision.is_some() && self.broken != Broken::DecisionsChange {
                    return false;
                }
                self.observer.decision(number, &decision);
                self.publish(&Change::Decision(number, decision));
            }
            other => unreachable!("{other:?} is no write"),
        }
        true
    }

    pub(super) fn publish(&mut self, change: &Change) {
        self.shared.apply(change.clone());
        for node in 0..self.nodes.len() {
            let Some(view) = self.nodes[node].watches else { continue };
            if !view.shows(change, &name(node)) {
                continue;
            }
            let of_swaps = matches!(
                change,
                Change::Proposal(..) | Change::Decision(..) | Change::Forgotten(_)
            );
            let order = usize::from(of_swaps && view == View::Part);
            let when = self.now + self.delay();
            let to = &mut self.nodes[node];
            to.watched_until[order] = to.watched_until[order].max(when);
            let (when, life, watch) = (to.watched_until[order], to.life, to.watch);
            let event = Box::new(Event::Changed(change.clone()));
            self.at(when, node, Happens::Deliver(life, Some(watch), event));
        }
    }
}
