//! A store, nodes with an agent and a `pfod` each, and everything between them that takes its time,
//! gets lost or dies. Times are in milliseconds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use fastrand::Rng;
use pfo_fleet::{
    Action, Change, Event, Length, Node, OnPartition, Participant, Purpose, Report, Settings,
    Shared, SwapAnswer, Told, Write,
};
use pfo_vocabulary::Uid;

use crate::observer::{Observer, Ran};
use crate::pfod::{Pfod, plan, ran_of};

/// How long things go wrong, when to look for the first time afterwards whether everything has
/// converged, and when it must have.
const TROUBLE_MS: u64 = 6000;
const QUIET_MS: u64 = 8000;
const END_MS: u64 = 60_000;

const LEASE_MS: u64 = 1000;
const KEEP_ALIVE_MS: u64 = 300;
const TICK_MS: u64 = 250;
const LEAD_MS: u64 = 600;

/// How long an agent takes to know that its connection to the store has ended.
const AWAY_MS: u64 = 10;

/// Whether anything goes wrong at all.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Calm {
    Yes,
    No,
}

/// What does not keep its promise to the agents.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Broken {
    Nothing,
    DecisionsChange,
    StepsMove,
    SwapsTwice,
}

/// Something that happens to one node.
#[derive(Debug)]
enum Happens {
    Step,
    Tick,
    KeepAlive,
    Expire,
    /// An event for the agent, if it has lived since and the connection to the store, if the event
    /// is from there, has lasted.
    Deliver(u64, Option<u64>, Box<Event>),
    /// A write reaches the store.
    Write(u64, u64, Box<Action>),
    /// A request reaches `pfod`.
    Ask(u64, Box<Action>),
    Wish(Ran, Purpose),
    LetGo,
    Crash,
    Start,
    Cut,
    Heal,
    PfodDies,
    PfodStarts,
}

struct SimNode {
    agent: Option<Participant>,
    /// Counts the agents of this node, and its connections to the store.
    life: u64,
    connection: u64,
    is_cut: bool,
    watches: bool,
    /// When the last event of the watch arrives.
    watched_until: u64,
    lease_until: u64,
    pfod: Pfod,
}

pub(crate) struct World {
    rng: Rng,
    calm: Calm,
    broken: Broken,
    now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    happens: BTreeMap<u64, Happens>,
    nodes: Vec<SimNode>,
    settings: Settings,
    step_ms: u64,
    /// The longest delay of most messages, and the share of those that take longer or get lost.
    delay_ms: u64,
    trouble_percent: u64,
    shared: Shared,
    told: Vec<Told>,
    observer: Observer,
    pub(crate) shows: bool,
}

fn name(node: usize) -> Node {
    format!("n{node}").parse().unwrap()
}

impl World {
    pub(crate) fn new(seed: u64, calm: Calm, broken: Broken) -> Self {
        let mut rng = Rng::with_seed(seed);
        let is_calm = calm == Calm::Yes;
        let on_partition = if rng.bool() {
            OnPartition::Keep
        } else {
            OnPartition::DefaultClocks(LEASE_MS + 1000)
        };
        let number = rng.usize(2..5);
        let start = |_| SimNode {
            agent: None,
            life: 0,
            connection: 0,
            is_cut: false,
            watches: false,
            watched_until: 0,
            lease_until: 0,
            pfod: Pfod::default(),
        };
        let mut world = Self {
            calm,
            broken,
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            happens: BTreeMap::new(),
            nodes: (0..number).map(start).collect(),
            settings: Settings { lead_ms: LEAD_MS, slack: 2, on_partition },
            step_ms: rng.u64(60..250),
            delay_ms: if is_calm { 20 } else { *rng.choice(&[5, 50, 250]).unwrap() },
            trouble_percent: if is_calm { 0 } else { rng.u64(0..12) },
            shared: Shared::default(),
            told: Vec::new(),
            observer: Observer::of(number),
            shows: false,
            rng,
        };
        world.plan_schedule();
        world
    }

    fn plan_schedule(&mut self) {
        let nodes = self.nodes.len();
        for node in 0..nodes {
            let (step, start) = (self.rng.u64(0..100), self.rng.u64(0..500));
            self.at(step, node, Happens::Step);
            self.at(start, node, Happens::Start);
        }
        let is_calm = self.calm == Calm::Yes;
        for wish in 1..self.rng.u8(3..6) {
            let when = if is_calm { u64::from(wish) * 2500 } else { self.rng.u64(800..TROUBLE_MS) };
            let node = self.rng.usize(0..nodes);
            let is_trial = !is_calm && self.rng.u8(0..3) == 0;
            let length = Length { settling_steps: 1, steps: 5 };
            let purpose = if is_trial { Purpose::Trial(length) } else { Purpose::Swap };
            self.at(when, node, Happens::Wish(wish, purpose));
            let lasts = self.rng.u64(1..4000);
            self.at((when + lasts).min(TROUBLE_MS + 2), node, Happens::LetGo);
        }
        if is_calm {
            return;
        }
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

    fn at(&mut self, when: u64, node: usize, what: Happens) {
        self.order += 1;
        self.queue.push(Reverse((when, self.order, node)));
        self.happens.insert(self.order, what);
    }

    fn after(&mut self, delay: u64, node: usize, what: Happens) {
        self.at(self.now + delay, node, what);
    }

    fn delay(&mut self) -> u64 {
        let longest = if self.is_unlucky() { 1500 } else { self.delay_ms };
        1 + self.rng.u64(0..longest)
    }

    fn is_unlucky(&mut self) -> bool {
        self.now < TROUBLE_MS && self.rng.u64(0..100) < self.trouble_percent
    }

    /// # Errors
    /// If the nodes ran what they must not, or did not converge.
    pub(crate) fn run(mut self) -> Result<(), String> {
        let mut judged_ms = TROUBLE_MS + QUIET_MS;
        while let Some(Reverse((when, order, node))) = self.queue.pop() {
            if when > judged_ms {
                if self.has_converged().is_ok() || when > END_MS {
                    break;
                }
                judged_ms += QUIET_MS;
            }
            self.now = when;
            let what = self.happens.remove(&order).unwrap();
            if self.shows && !matches!(what, Happens::Tick | Happens::KeepAlive | Happens::Expire) {
                println!("{when:>6} n{node} {what:?}");
            }
            self.happen(node, what);
        }
        self.observer.judge()?;
        self.has_converged()
    }

    fn happen(&mut self, node: usize, what: Happens) {
        match what {
            Happens::Step => self.step(node),
            Happens::Tick => {
                if self.nodes[node].agent.is_some() {
                    self.give(node, Event::Tick(self.now));
                    self.after(TICK_MS, node, Happens::Tick);
                }
            }
            Happens::KeepAlive => self.keep_alive(node),
            Happens::Expire => self.expire(node),
            Happens::Deliver(life, connection, event) => {
                let to = &self.nodes[node];
                if to.life == life && connection.is_none_or(|through| through == to.connection) {
                    self.give(node, *event);
                }
            }
            Happens::Write(life, connection, action) => {
                self.write(node, (life, connection), *action);
            }
            Happens::Ask(life, action) => self.ask_pfod(node, life, *action),
            Happens::Wish(ran, purpose) => {
                let run = plan(ran, self.nodes.len());
                self.give(node, Event::Wished(run, Uid(1), purpose));
            }
            Happens::LetGo => self.give(node, Event::LetGo),
            Happens::Crash => {
                self.nodes[node].agent = None;
                self.nodes[node].life += 1;
                self.disconnect(node);
            }
            Happens::Start => self.start(node),
            Happens::Cut => {
                self.nodes[node].is_cut = true;
                self.disconnect(node);
            }
            Happens::Heal => {
                self.nodes[node].is_cut = false;
                self.connect(node);
            }
            Happens::PfodDies => self.nodes[node].pfod.is_away = true,
            Happens::PfodStarts => self.nodes[node].pfod.is_away = false,
        }
    }

    /// A rank begins its next step, unless it is ahead of another one already.
    fn step(&mut self, node: usize) {
        let slowest = self.nodes.iter().map(|node| node.pfod.next).min().unwrap();
        let pfod = &mut self.nodes[node].pfod;
        if pfod.next <= slowest {
            let runs = pfod.swaps.iter().rfind(|(from, _)| *from <= pfod.next);
            self.observer.ran[node].push(runs.map_or(0, |(_, ran)| *ran));
            pfod.next += 1;
            self.after(self.step_ms, node, Happens::Step);
        } else {
            self.after(5, node, Happens::Step);
        }
    }

    fn start(&mut self, node: usize) {
        if self.nodes[node].agent.is_some() {
            return;
        }
        let mut agent = Participant::new(name(node), self.settings, self.now);
        assert!(agent.on(Event::Tick(self.now)).iter().all(|action| *action == Action::Look));
        self.nodes[node].agent = Some(agent);
        let life = self.nodes[node].life;
        self.after(1, node, Happens::Ask(life, Box::new(Action::Look)));
        self.after(TICK_MS, node, Happens::Tick);
        self.connect(node);
    }

    fn connect(&mut self, node: usize) {
        let to = &self.nodes[node];
        if to.is_cut || to.watches || to.agent.is_none() {
            return;
        }
        // The end of the connection before is known first.
        let delay = AWAY_MS + self.delay();
        let to = &mut self.nodes[node];
        to.watches = true;
        to.watched_until = self.now + delay;
        let deliver = Happens::Deliver(
            to.life,
            Some(to.connection),
            Box::new(Event::Snapshot(self.shared.clone())),
        );
        self.after(delay, node, deliver);
        self.after(delay, node, Happens::KeepAlive);
    }

    fn disconnect(&mut self, node: usize) {
        let to = &mut self.nodes[node];
        if !to.watches {
            return;
        }
        to.watches = false;
        to.connection += 1;
        let life = to.life;
        self.after(AWAY_MS, node, Happens::Deliver(life, None, Box::new(Event::StoreAway)));
    }

    fn keep_alive(&mut self, node: usize) {
        if self.nodes[node].watches {
            self.nodes[node].lease_until = self.now + LEASE_MS;
            self.after(LEASE_MS, node, Happens::Expire);
            self.after(KEEP_ALIVE_MS, node, Happens::KeepAlive);
        }
    }

    fn expire(&mut self, node: usize) {
        let name = name(node);
        if self.now >= self.nodes[node].lease_until && self.shared.members.contains_key(&name) {
            self.publish(&Change::Member(name, None));
        }
    }

    /// Gives the agent an event, and does what it asks for.
    fn give(&mut self, node: usize, event: Event) {
        let Some(agent) = &mut self.nodes[node].agent else { return };
        let actions = agent.on(event);
        for action in actions {
            self.act(node, action);
        }
    }

    fn act(&mut self, node: usize, action: Action) {
        if self.shows {
            println!("{:>6} n{node}     → {action:?}", self.now);
        }
        let (life, connection) = (self.nodes[node].life, self.nodes[node].connection);
        let delay = self.delay();
        match action {
            Action::Tell(told) => self.told.push(told),
            Action::Measure { .. } => {}
            Action::Look | Action::Load(..) | Action::Swap(..) => {
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

    /// A write reaches the store: even if its agent has died since, but not through a link that was
    /// cut.
    fn write(&mut self, node: usize, (life, connection): (u64, u64), action: Action) {
        let kind = kind_of(&action);
        let is_through = self.nodes[node].connection == connection || self.rng.bool();
        let taken = is_through.then(|| self.commit(node, action));
        let answer = Box::new(Event::Written(kind, taken));
        let delay = self.delay();
        self.after(delay, node, Happens::Deliver(life, None, answer));
    }

    fn commit(&mut self, node: usize, action: Action) -> bool {
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
                if !self.shared.swaps.contains_key(&number) {
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

    fn publish(&mut self, change: &Change) {
        self.shared.apply(change.clone());
        for node in 0..self.nodes.len() {
            if !self.nodes[node].watches {
                continue;
            }
            let when = self.now + self.delay();
            let to = &mut self.nodes[node];
            to.watched_until = to.watched_until.max(when);
            let (when, life, connection) = (to.watched_until, to.life, to.connection);
            let event = Box::new(Event::Changed(change.clone()));
            self.at(when, node, Happens::Deliver(life, Some(connection), event));
        }
    }

    /// A request reaches `pfod`, even if the agent that made it has died since.
    fn ask_pfod(&mut self, node: usize, life: u64, action: Action) {
        let moves = self.broken == Broken::StepsMove;
        let nodes = self.nodes.len() as u32;
        let pfod = &mut self.nodes[node].pfod;
        let is_away = pfod.is_away;
        let event = match action {
            Action::Look if is_away => Event::Looked(None),
            Action::Look => Event::Looked(Some(pfod.show(node, nodes, self.step_ms))),
            Action::Load(number, _) => Event::Loaded(number, (!is_away).then_some(Ok(()))),
            Action::Swap(..) if is_away => Event::Swapped(SwapAnswer::Unknown),
            Action::Swap(run, at) => Event::Swapped(pfod.swap(ran_of(&run), at, moves)),
            other => unreachable!("{other:?} is nothing for pfod"),
        };
        let event = match event {
            Event::Swapped(_) if self.is_unlucky() => Event::Swapped(SwapAnswer::Unknown),
            event => event,
        };
        let delay = self.delay();
        self.after(delay, node, Happens::Deliver(life, None, Box::new(event)));
    }

    fn has_converged(&self) -> Result<(), String> {
        let committed = self.observer.committed();
        let due = committed.last().map_or(0, |(_, ran)| *ran);
        for (node, steps) in self.observer.ran.iter().enumerate() {
            if steps.last() != Some(&due) {
                return Err(format!("node {node} runs {:?} at the end, not {due}", steps.last()));
            }
        }
        let newest = self.shared.committed().next();
        if let Some((number, _)) = newest.filter(|(_, proposal)| proposal.trial.is_some()) {
            return Err(format!("trial {number} goes on, and nobody runs it"));
        }
        if let Some((number, _)) = self.shared.undecided() {
            return Err(format!("swap {number} is not decided"));
        }
        let behind = self.shared.behind();
        if self.shared.members.len() != self.nodes.len() || !behind.is_empty() {
            return Err(format!(
                "at the end {:?} take part, and {behind:?} are behind: {:?}",
                self.shared.members.keys(),
                self.shared.reports
            ));
        }
        if self.calm == Calm::Yes {
            let done = |told: &&Told| matches!(told, Told::Committed { .. });
            let (done, all) = (self.told.iter().filter(done).count(), self.told.len());
            if self.observer.has_late() || done != all || all < 2 {
                return Err(format!(
                    "{done} of {all} wishes took place: {:?}",
                    self.shared.reports
                ));
            }
        }
        Ok(())
    }
}

fn kind_of(action: &Action) -> Write {
    match action {
        Action::Join(_) => Write::Join,
        Action::Report(Report { .. }) => Write::Report,
        Action::Propose { .. } => Write::Propose,
        Action::Arm(..) => Write::Arm,
        Action::Decide(..) => Write::Decide,
        other => unreachable!("{other:?} is no write"),
    }
}
