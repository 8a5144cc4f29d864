//! A store, nodes with an agent and a `pfod` each, and everything between them that takes its time,
//! gets lost or dies. Times are in milliseconds.

mod agents;
mod converged;
mod schedule;
mod store;
mod sweep;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use fastrand::Rng;
use pfo_fleet::{
    Action, Event, Node, OnPartition, Participant, Purpose, Settings, Shared, Terms, Told, View,
};
use pfo_vocabulary::Uid;

use self::agents::kind_of;
use self::sweep::Sweep;
pub(crate) use self::sweep::Swept;
use crate::schedules::observer::{Observer, Ran};
use crate::schedules::pfod::{Pfod, Return, plan};

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

/// What the first trial of a sweep runs. The plan before it is one that a node vetoes.
const FIRST_SWEPT: Ran = 30;
const VETOED: Ran = FIRST_SWEPT - 1;

/// Whether anything goes wrong at all.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Calm {
    Yes,
    /// Nothing, but that the GPU of one node does not do what its `pfod` asks it for, for some time.
    Astray,
    No,
}

/// What does not keep its promise to the agents.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Broken {
    Nothing,
    DecisionsChange,
    StepsMove,
    SwapsTwice,
    /// A `pfod` that was killed comes back otherwise than it was.
    Returns(Return),
}

/// Something that happens to one node.
#[derive(Debug)]
enum Happens {
    Step,
    Tick,
    KeepAlive,
    Expire,
    /// An event for the agent, if it has lived since and the watch, if the event is from there, has
    /// lasted.
    Deliver(u64, Option<u64>, Box<Event>),
    /// The store learns what is to be watched.
    Watch(u64),
    /// A write reaches the store.
    Write(u64, u64, Box<Action>),
    /// A request reaches `pfod`.
    Ask(u64, Box<Action>),
    /// With a step so far ahead, if it is to take place at exactly one.
    Wish(Ran, Purpose, Option<u64>),
    LetGo,
    /// Somebody begins a sweep.
    Sweep,
    /// The sweep with this number continues.
    Next(u64),
    Crash,
    Start,
    Cut,
    Heal,
    Reconnect,
    PfodDies,
    PfodStarts,
}

struct SimNode {
    agent: Option<Participant>,
    /// Counts the agents of this node, its connections to the store, and its watches.
    life: u64,
    connection: u64,
    watch: u64,
    is_cut: bool,
    is_connected: bool,
    /// What it wants to watch, and what the store knows of that.
    view: View,
    watches: Option<View>,
    /// When the last event of the watch arrives: of swaps, and of all else.
    watched_until: [u64; 2],
    lease_until: u64,
    /// The sweep that somebody runs at this node.
    sweep: Option<Sweep>,
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
    /// How many sweeps there were, and what the next trial of one runs.
    sweeps: u64,
    next_ran: Ran,
    swept: Swept,
    /// The node whose `pfod` vetoes a plan.
    vetoes: usize,
    /// The node whose GPU does not do what it is asked for, and from when until when.
    astray: (usize, std::ops::Range<u64>),
    observer: Observer,
    pub(crate) shows: bool,
}

fn name(node: usize) -> Node {
    format!("n{node}").parse().unwrap()
}

impl World {
    pub(crate) fn new(seed: u64, calm: Calm, broken: Broken) -> Self {
        let mut rng = Rng::with_seed(seed);
        let is_calm = calm != Calm::No;
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
            watch: 0,
            is_cut: false,
            is_connected: false,
            view: View::Part,
            watches: None,
            watched_until: [0; 2],
            lease_until: 0,
            sweep: None,
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
            sweeps: 0,
            next_ran: FIRST_SWEPT,
            swept: Swept::default(),
            vetoes: rng.usize(0..number),
            astray: (rng.usize(0..number), 0..0),
            observer: Observer::of(number),
            shows: false,
            rng,
        };
        world.plan_schedule();
        world
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
        self.play();
        self.observer.judge()?;
        self.has_converged()
    }

    fn play(&mut self) {
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
            Happens::Deliver(life, watch, event) => {
                let to = &self.nodes[node];
                if to.life == life && watch.is_none_or(|through| through == to.watch) {
                    self.give(node, *event);
                }
            }
            Happens::Watch(watch) => self.begin_watch(node, watch),
            Happens::Write(life, connection, action) => {
                self.write(node, (life, connection), *action);
            }
            Happens::Ask(life, action) => self.ask_pfod(node, life, *action),
            Happens::Wish(ran, purpose, ahead) => {
                let run = plan(ran, self.nodes.len());
                let at = ahead.map(|steps| self.nodes[node].pfod.next + steps);
                let terms = Terms { at, ..Terms::default() };
                self.give(node, Event::Wished(run, Uid(1), purpose, terms));
            }
            Happens::LetGo => self.let_go(node),
            Happens::Sweep => self.begin_sweep(node),
            Happens::Next(sweep) => self.go_on(node, sweep),
            Happens::Crash => {
                self.disconnect(node);
                // Who measures at this node asks the next agent, or nobody.
                (self.nodes[node].agent, self.nodes[node].sweep) = (None, None);
                self.nodes[node].life += 1;
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
            Happens::Reconnect => self.connect(node),
            Happens::PfodDies => self.nodes[node].pfod.die(),
            Happens::PfodStarts => {
                let returns = match self.broken {
                    Broken::Returns(returns) => returns,
                    _ => Return::Whole,
                };
                let finds = self.rng.bool();
                self.nodes[node].pfod.come_back(returns, finds);
            }
        }
    }

    /// A rank begins its next step, unless it is ahead of another one already.
    fn step(&mut self, node: usize) {
        let slowest = self.nodes.iter().map(|node| node.pfod.next).min().unwrap();
        let pfod = &mut self.nodes[node].pfod;
        if pfod.next <= slowest {
            self.observer.step(node, pfod.begin_step());
            self.after(self.step_ms, node, Happens::Step);
        } else {
            self.after(5, node, Happens::Step);
        }
    }
}
