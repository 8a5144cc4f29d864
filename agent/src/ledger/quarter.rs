//! Quarters of nodes on virtual time, simulated apart from everything else here: what the sums of the
//! ledgers say of each month, and what their nodes tell a fleet, has to hold what is true, no joule is in
//! two, and no sum falls.
//!
//! Jobs come and go, half of them over two nodes whose ledgers share their comparisons. Plans save or
//! lose, steps scatter, agents and `pfod` are restarted or read again what they have read, clocks jump,
//! and nodes are lost and come back with another ledger, some by another name.

use std::collections::BTreeMap;
use std::path::Path;

use pfo_protocol::{JobView, SavedEnergy, Savings, SavingsBy, Tariff};

use crate::ledger::booked::Booked;
use crate::ledger::comparison::{Compared, Turn};
use crate::ledger::example::example;
use crate::ledger::months::{self, Told};
use crate::ledger::query::{Known, Span};
use crate::ledger::saving::NORMAL_REACH;
use crate::ledger::store::Store;
use crate::ledger::tariff::Prices;
use crate::ledger::weeks::Random;
use crate::ledger::windows::{Windows, Work};

const HOUR_S: u64 = 3600;

/// How often agents look. The real ones do a thousand times as often, which changes no sum.
const TICK_S: u64 = 6 * HOUR_S;

/// October, November and December, and their ticks.
const MONTHS: [(&str, u64); 3] = [("2026-10", 31 * 4), ("2026-11", 30 * 4), ("2026-12", 31 * 4)];

/// The first of October 2026, UTC.
const BEGINS_UNIX_S: u64 = 1_790_812_800;

const STEPS_OF_TICK: u64 = 1000;

/// What a step of a whole job takes under its plan, in joules, and how much that scatters.
const STEP_J: f64 = 1000.0;
const NOISE: f64 = 0.01;

/// Ticks from one write of a ledger to the next.
const WRITTEN_EVERY: u64 = 8;

/// How many nodes there are, and how many ticks jobs last: at least, and at most beyond that.
#[derive(Clone, Copy)]
struct Cluster {
    nodes: usize,
    lasts: (u64, f64),
}

const FEW: Cluster = Cluster { nodes: 3, lasts: (8, 40.0) };

/// In a quarter, it runs about 2,000 jobs.
const MANY: Cluster = Cluster { nodes: 50, lasts: (2, 9.2) };

/// What runs on one node or on two.
struct Running {
    label: String,
    nodes: Vec<usize>,
    /// The share by which default clocks take more, and what that changes by with each tick.
    saving: f64,
    drift: f64,
    ends: u64,
    compared: u64,
}

/// A node: what its `pfod` has counted, and its agent.
struct Node {
    name: String,
    store: Option<Store>,
    windows: Windows,
    run: u64,
    session: u64,
    swap: u64,
    counted: (u64, f64),
    /// By how much its clock is off.
    ahead_s: i64,
    waits: Vec<(Work, Compared)>,
    entries: Vec<crate::ledger::windows::Entry>,
    newest: Vec<Booked>,
}

struct Quarter<'a> {
    random: Random,
    directory: &'a Path,
    lasts: (u64, f64),
    tick: u64,
    nodes: Vec<Node>,
    /// The sums of the ledgers that were lost, and how many of these there are.
    gone: Booked,
    lost: u32,
    /// What nodes have told the fleet, by their names.
    told: BTreeMap<String, Vec<u8>>,
    running: Vec<Running>,
    started: u64,
    /// In this month.
    true_saved_j: f64,
    true_used_j: f64,
}

impl Node {
    fn now(&self, tick: u64) -> u64 {
        (BEGINS_UNIX_S + tick * TICK_S).saturating_add_signed(self.ahead_s)
    }

    fn job(&self, label: &str, is_whole: bool) -> JobView {
        let (steps, energy_j) = self.counted;
        let mut job = example(label, self.swap, self.session, steps);
        job.job = label.parse().unwrap();
        job.ranks.truncate(if is_whole { 2 } else { 1 });
        let ranks = job.ranks.len() as f64;
        for rank in &mut job.ranks {
            rank.window.as_mut().unwrap().energy_j = Some(energy_j / ranks);
        }
        job
    }

    fn write(&mut self) {
        let store = self.store.as_mut().unwrap();
        store.append(&self.entries, &self.waits).unwrap();
        self.entries.clear();
        self.waits.clear();
        let accounts = store.accounts().unwrap();
        let now: Vec<_> = accounts.iter().map(|account| account.booked).collect();
        for (before, now) in self.newest.iter().zip(&now) {
            assert!(!falls(before, now), "{now:?} after {before:?}");
        }
        assert!(now.len() >= self.newest.len());
        self.newest = now;
    }

    fn sum(&self) -> Booked {
        self.newest.iter().fold(Booked::default(), and)
    }

    fn known(&self) -> Vec<Known> {
        self.store.as_ref().unwrap().known((None, None), 0).unwrap()
    }

    /// What this node has to tell, after what it told before.
    fn told(&self, before: &[u8]) -> Vec<u8> {
        let mut told = Told::read(before);
        let ledger = self.store.as_ref().unwrap().identity().unwrap();
        let known = self.known();
        let mut begins = BEGINS_UNIX_S;
        let months = MONTHS.map(|(name, ticks)| {
            let span = Span { since_unix_s: begins, until_unix_s: begins + ticks * TICK_S };
            begins = span.until_unix_s;
            (name.to_owned(), of_span(&known, span))
        });
        told.tell(&ledger, &months.into(), (&Prices::default(), begins));
        told.written(usize::MAX)
    }
}

fn of_span(known: &[Known], span: Span) -> Vec<Known> {
    let mut known = known.to_vec();
    known.iter_mut().for_each(|of| of.windows.retain(|measured| measured.is_in(span)));
    known
}

fn and(sum: Booked, one: &Booked) -> Booked {
    Booked {
        compared_j: sum.compared_j + one.compared_j,
        saved_j: sum.saved_j + one.saved_j,
        lost_j: sum.lost_j + one.lost_j,
        variance_j2: sum.variance_j2 + one.variance_j2,
        ..sum
    }
}

fn falls(before: &Booked, now: &Booked) -> bool {
    now.compared_j < before.compared_j
        || now.saved_j < before.saved_j
        || now.lost_j < before.lost_j
        || now.variance_j2 < before.variance_j2
        || now.slower_s < before.slower_s
        || now.faster_s < before.faster_s
}

impl<'a> Quarter<'a> {
    fn new(Cluster { nodes, lasts }: Cluster, seed: u64, directory: &'a Path) -> Self {
        let node = |index: usize| {
            let mut windows = Windows::default();
            windows.begin("0".into(), Vec::new());
            let name = format!("n{index}");
            Node {
                store: Some(open(&directory.join(&name))),
                name,
                windows,
                run: 0,
                session: 1,
                swap: 1,
                counted: (0, 0.0),
                ahead_s: 0,
                waits: Vec::new(),
                entries: Vec::new(),
                newest: Vec::new(),
            }
        };
        Self {
            random: Random::of(seed),
            directory,
            lasts,
            tick: 0,
            nodes: (0..nodes).map(node).collect(),
            gone: Booked::default(),
            lost: 0,
            told: BTreeMap::new(),
            running: Vec::new(),
            started: 0,
            true_saved_j: 0.0,
            true_used_j: 0.0,
        }
    }

    /// Ends jobs, and begins others on the nodes that are free.
    fn schedule(&mut self) {
        let tick = self.tick;
        self.running.retain(|job| job.ends > tick);
        let of_three = |first: usize| [vec![first, first + 1], vec![first + 2]];
        let count = self.nodes.len();
        for nodes in (0..count).step_by(3).flat_map(of_three) {
            let is_there = nodes.iter().all(|index| *index < count);
            if !is_there || self.running.iter().any(|job| job.nodes == nodes) {
                continue;
            }
            self.started += 1;
            for index in &nodes {
                let node = &mut self.nodes[*index];
                (node.session, node.swap, node.counted) = (node.session + 2, 1, (0, 0.0));
            }
            let saving = 0.3 * self.random.next() - 0.05;
            let (least, more) = self.lasts;
            let lasts = least + (more * self.random.next()) as u64;
            self.running.push(Running {
                label: format!("p{}", self.started),
                nodes,
                saving,
                drift: 0.001 * (self.random.next() - 0.5),
                ends: tick + lasts,
                compared: 0,
            });
            let job = self.running.len() - 1;
            // The first comparisons of a guard follow at once.
            for _ in 0..3 {
                self.compare(job);
            }
        }
    }

    /// What steps take that scatter.
    fn scattered(&mut self, steps: u64, step_j: f64) -> Turn {
        let energy_j = (0..steps).map(|_| step_j * (1.0 + NOISE * self.random.normal())).sum();
        Turn { steps, time_s: steps as f64, energy_j }
    }

    fn compare(&mut self, job: usize) {
        let saving = self.running[job].saving;
        let default = self.scattered(2, STEP_J * (1.0 + saving));
        let plan = self.scattered(8, STEP_J);
        let Running { label, nodes, compared, .. } = &mut self.running[job];
        *compared += 1;
        // What the job's nodes agree on has the time of one of them. One second is one comparison.
        let at_unix_s = self.nodes[nodes[0]].now(self.tick) + *compared % 60;
        for index in nodes.iter() {
            let node = &mut self.nodes[*index];
            let view = node.job(label, nodes.len() == 1);
            let work = Work::of(&view, view.plan.as_ref().unwrap());
            node.waits.push((work, Compared { at_unix_s, default, plan }));
        }
    }

    fn run(&mut self) {
        for job in 0..self.running.len() {
            if self.random.one_in(2.0) {
                self.compare(job);
            }
            let of_step =
                STEP_J * (1.0 + NOISE * self.random.normal() / (STEPS_OF_TICK as f64).sqrt());
            let used_j = of_step * STEPS_OF_TICK as f64;
            let Running { label, nodes, saving, drift, .. } = &mut self.running[job];
            self.true_saved_j += used_j * *saving;
            self.true_used_j += used_j;
            *saving += *drift;
            // Two thirds are on the first of two nodes.
            let shares: &[f64] = if nodes.len() == 2 { &[2.0 / 3.0, 1.0 / 3.0] } else { &[1.0] };
            for (index, share) in nodes.iter().zip(shares) {
                let node = &mut self.nodes[*index];
                node.counted.0 += STEPS_OF_TICK;
                node.counted.1 += used_j * share;
                let (view, now) = (node.job(label, nodes.len() == 1), node.now(self.tick));
                let over = node.windows.see(std::slice::from_ref(&view), now);
                node.entries.extend(over);
                // The same again, as after a broken connection.
                let over = node.windows.see(&[view], now);
                node.entries.extend(over);
            }
        }
    }

    /// Something happens to a node.
    fn happen(&mut self, index: usize) {
        if self.random.one_in(20.0) {
            // The agent ends in order, which writes all, and another one comes.
            let node = &mut self.nodes[index];
            node.entries.extend(node.windows.end());
            node.write();
            node.store = None;
            let store = open(&self.directory.join(&node.name));
            let reached = store.reached(&node.run.to_string()).unwrap();
            node.windows = Windows::default();
            node.windows.begin(node.run.to_string(), reached);
            node.store = Some(store);
        }
        if self.random.one_in(40.0) {
            let node = &mut self.nodes[index];
            (node.run, node.counted) = (node.run + 1, (0, 0.0));
            let over = node.windows.begin(node.run.to_string(), Vec::new());
            node.entries.extend(over);
        }
        // A clock that has jumped is put right within the tick.
        let has_jumped = self.random.one_in(60.0);
        let hours = (6.0 * (self.random.next() - 0.5)) * HOUR_S as f64;
        self.nodes[index].ahead_s = if has_jumped { hours as i64 } else { 0 };
        if self.random.one_in(400.0) {
            self.lose(index);
        }
    }

    /// A node tells the fleet what it has, is gone with its job, and comes back without its ledger.
    fn lose(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.entries.extend(node.windows.end());
        node.write();
        self.tell(index);
        self.gone = and(self.gone, &self.nodes[index].sum());
        self.lost += 1;
        self.running.retain(|job| !job.nodes.contains(&index));
        let has_other_name = self.random.one_in(2.0);
        let node = &mut self.nodes[index];
        node.store = None;
        if has_other_name {
            node.name = format!("n{index}-{}", self.lost);
        } else {
            std::fs::remove_file(self.directory.join(&node.name)).unwrap();
        }
        (node.run, node.counted, node.newest) = (node.run + 1, (0, 0.0), Vec::new());
        node.store = Some(open(&self.directory.join(&node.name)));
        node.windows = Windows::default();
        node.windows.begin(node.run.to_string(), Vec::new());
    }

    fn tell(&mut self, index: usize) {
        let node = &self.nodes[index];
        let before = self.told.remove(&node.name).unwrap_or_default();
        self.told.insert(node.name.clone(), node.told(&before));
    }

    /// Lives through the quarter: of each month what is true and what the sums say.
    fn live(&mut self) -> Vec<(f64, SavedEnergy)> {
        let mut months = Vec::new();
        for (_, ticks) in MONTHS {
            let before = self.sums();
            let ends = self.tick + ticks;
            while self.tick < ends {
                self.schedule();
                self.run();
                self.tick += 1;
                for index in 0..self.nodes.len() {
                    self.happen(index);
                    if self.tick == ends {
                        // A row covers ten minutes at most, so a month's end splits ten minutes at most.
                        let node = &mut self.nodes[index];
                        node.entries.extend(node.windows.end());
                    }
                    if self.tick.is_multiple_of(WRITTEN_EVERY) || self.tick == ends {
                        self.nodes[index].write();
                    }
                }
            }
            months.push((self.true_saved_j, increase(&before, &self.sums())));
            self.true_saved_j = 0.0;
        }
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            node.entries.extend(node.windows.end());
            node.write();
            self.tell(index);
        }
        // A write whose answer was lost is repeated.
        self.tell(0);
        months
    }

    fn sums(&self) -> Booked {
        self.nodes.iter().map(Node::sum).fold(self.gone, |sum, one| and(sum, &one))
    }

    /// What `pfoctl savings --fleet` says of the quarter's energy, and of each month.
    fn told(&self) -> (f64, [Savings; 3]) {
        let told = self.told.iter().map(|(name, bytes)| (name.clone(), Told::read(bytes)));
        let (told, by) = (told.collect(), (SavingsBy::Job, &Tariff::default()));
        let months = MONTHS.map(|(month, _)| months::merged(&told, month, by, |_, _| true).total);
        (months.iter().map(|month| month.energy_j).sum(), months)
    }
}

/// The ledger of a node, which no power failure will hit.
fn open(path: &Path) -> Store {
    let store = Store::open(path).unwrap();
    store.set_hasty();
    store
}

/// By how much the sums have risen, as Prometheus would have it.
fn increase(before: &Booked, after: &Booked) -> SavedEnergy {
    let net_j = |of: &Booked| of.saved_j - of.lost_j;
    let estimate_j = net_j(after) - net_j(before);
    let reach_j = NORMAL_REACH * (after.variance_j2 - before.variance_j2).sqrt();
    let (low_j, high_j) = (estimate_j - reach_j, estimate_j + reach_j);
    SavedEnergy { low_j, estimate_j, high_j, shown: low_j > 0.0 || high_j < 0.0 }
}

/// Counts over many quarters. Each month's interval holds the truth or not, by the node's sums and by the
/// fleet's months; a month may be shown to save; and both name the joules that were saved.
#[derive(Debug, Default)]
struct Lived {
    by_sums: [u32; 3],
    by_fleet: [u32; 3],
    shown: u32,
    saved_by_sums_j: f64,
    saved_by_fleet_j: f64,
    jobs: u64,
    lost: u32,
}

fn live(cluster: Cluster, quarters: u64) -> Lived {
    let mut lived = Lived::default();
    for seed in 0..quarters {
        let directory = tempfile::tempdir().unwrap();
        let mut quarter = Quarter::new(cluster, seed, directory.path());
        let months = quarter.live();
        let (used_j, told) = quarter.told();
        for (month, ((true_j, stated), of_fleet)) in months.into_iter().zip(told).enumerate() {
            let holds = |said: &SavedEnergy| (said.low_j..=said.high_j).contains(&true_j);
            let of_fleet = of_fleet.saved.unwrap();
            lived.by_sums[month] += u32::from(holds(&stated));
            lived.by_fleet[month] += u32::from(holds(&of_fleet));
            lived.shown += u32::from(stated.shown);
            lived.saved_by_fleet_j += of_fleet.estimate_j;
        }
        let (sums, true_j) = (quarter.sums(), quarter.true_used_j);
        assert!(used_j <= true_j * (1.0 + 1e-9), "{used_j} of {true_j} J");
        assert!(used_j >= 0.98 * true_j, "{used_j} of {true_j} J");
        assert!(sums.compared_j <= used_j * (1.0 + 1e-9), "{sums:?} of {used_j} J");
        lived.saved_by_sums_j += sums.saved_j - sums.lost_j;
        lived.jobs += quarter.started;
        lived.lost += quarter.lost;
    }
    lived
}

fn assert_true(lived: &Lived, quarters: u32) {
    let least = (quarters * 93).div_ceil(100);
    assert!(lived.by_sums.iter().all(|held| *held >= least), "{lived:?}");
    assert!(lived.by_fleet.iter().all(|held| *held >= least), "{lived:?}");
    assert!(lived.shown * 10 >= quarters * 3 * 9, "{lived:?}");
    assert!((lived.saved_by_sums_j / lived.saved_by_fleet_j - 1.0).abs() < 0.01, "{lived:?}");
    assert!(lived.lost > 0, "{lived:?}");
}

#[test]
fn months_of_a_few_nodes_hold_the_truth_in_93_of_100_quarters() {
    assert_true(&live(FEW, 100), 100);
}

/// `PFO_QUARTERS` is how many quarters of 50 nodes are lived through.
#[test]
fn months_of_fifty_nodes_and_two_thousand_jobs_hold_the_truth() {
    let asked = std::env::var("PFO_QUARTERS").ok().and_then(|count| count.parse().ok());
    let quarters = asked.unwrap_or(1);
    let lived = live(MANY, quarters.into());
    assert_true(&lived, quarters);
    assert!((1900..2100).contains(&(lived.jobs / u64::from(quarters))), "{lived:?}");
    println!("{lived:?}");
}
