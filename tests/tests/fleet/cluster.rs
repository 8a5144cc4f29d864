//! Four nodes of one fleet, and a training over all of them.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use nvidia_ml::driver::{Driver, Gpu};
use pfo_protocol::FleetJob;
use pfo_tests::{EtcdCluster, EtcdSetup, Identity, Link, Node, Ran, Rank, Setup, TestPlan, wait};

pub(crate) const JOB: &str = "pipeline";
pub(crate) const NODES: [&str; 4] = ["node-a", "node-b", "node-c", "node-d"];
pub(crate) const STAGES: u32 = NODES.len() as u32;
pub(crate) const MICROBATCHES: u32 = 2;

/// Long enough for a clock to be set while an instruction runs.
const INSTRUCTION: Duration = Duration::from_millis(8);

/// Longer than a swap of the whole job takes, with all of its attempts.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// How late a pfod may be that gets no processor time.
const LATE: Duration = Duration::from_secs(3);

/// The plans of the test, by the lowest clock of each, in MHz.
pub(crate) const PLANS: [u32; 2] = [900, 1200];

pub(crate) fn plan(base: u32) -> TestPlan {
    TestPlan::distinct(STAGES, MICROBATCHES, base)
}

/// Four nodes of one fleet, and a job with a stage on each.
pub(crate) struct Cluster {
    // Ends before the daemons that it uses.
    pub(crate) training: Training,
    pub(crate) nodes: Vec<Node>,
    pub(crate) store: EtcdCluster,
    /// The steps before this one were the same everywhere.
    checked: Cell<usize>,
    /// A node whose pfod was killed, and the steps in which it may have run at default clocks.
    without_pfod: Option<(usize, Range<usize>)>,
}

/// A rank on each node; all begin each step together.
pub(crate) struct Training {
    is_over: Arc<AtomicBool>,
    ranks: Vec<JoinHandle<()>>,
    /// For each node the plan that it ran at each step, as its driver knows; none if nothing was
    /// set.
    ran: Arc<Vec<Mutex<Vec<Option<u32>>>>>,
}

impl Drop for Training {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        self.ranks.drain(..).for_each(|rank| drop(rank.join()));
    }
}

impl Cluster {
    /// None, which is said, where etcd is not installed.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&EtcdSetup::default(), None)
    }

    /// The same with some etcd, and one node behind a link.
    pub(crate) fn start_with(setup: &EtcdSetup, link: Option<(usize, &Link)>) -> Option<Self> {
        Self::start_after(setup, link, |_| {})
    }

    /// The same, with something that is done before the training starts.
    pub(crate) fn start_after(
        setup: &EtcdSetup,
        link: Option<(usize, &Link)>,
        before: impl FnOnce(&[Node]),
    ) -> Option<Self> {
        let store = EtcdCluster::start(setup)?;
        let nodes = NODES.iter().enumerate().map(|(number, name)| {
            let link = link.filter(|(behind, _)| *behind == number).map(|(_, link)| link);
            start_node(name, &store, link)
        });
        let nodes: Vec<_> = nodes.collect();
        before(&nodes);
        let training = Training::start(&nodes);
        let cluster = Self { training, nodes, store, checked: Cell::default(), without_pfod: None };
        cluster.until("every node has the whole job", |job| {
            job.nodes.len() == NODES.len() && job.problem.is_none()
        });
        Some(cluster)
    }

    /// The job as an agent sees it.
    pub(crate) fn job(&self, node: usize) -> Option<FleetJob> {
        self.nodes[node].find_watched(JOB)?.fleet
    }

    /// Waits until the job is so for every agent.
    pub(crate) fn until(&self, what: &str, so: impl Fn(&FleetJob) -> bool) {
        for (node, name) in NODES.iter().enumerate() {
            let seen = wait::until_within(PATIENCE, || match self.job(node) {
                Some(job) if so(&job) => Ok(()),
                job => Err(format!("{job:?}")),
            });
            seen.unwrap_or_else(|job| panic!("{name}: never so: {what}: {job}"));
        }
    }

    /// Swaps the whole job, asked on some node, while something happens; tries again if the nodes
    /// did not agree.
    pub(crate) fn swap(
        &mut self,
        node: usize,
        arguments: &[&str],
        meanwhile: impl FnOnce(&mut Self),
    ) {
        let arguments = [arguments, &["--wait"]].concat();
        let asked = self.nodes[node].begin_pfoctl(&Identity::own(), &arguments);
        meanwhile(self);
        let mut ran = Ran::from(asked.wait_with_output().unwrap());
        let began = Instant::now();
        while ran.code != Some(0) && !ran.stderr.contains("ran something else") {
            assert!(began.elapsed() < PATIENCE, "{ran:?}");
            sleep(Duration::from_millis(500));
            ran = self.nodes[node].pfoctl(&Identity::own(), &arguments);
        }
    }

    pub(crate) fn file(&self, node: usize, base: u32) -> String {
        self.nodes[node].plan_file(&format!("{base}.json"), &plan(base).to_json())
    }

    /// Waits until the last steps of all nodes ran a plan.
    pub(crate) fn until_all_run(&self, base: u32) {
        let last = || self.training.last();
        wait::until_within(PATIENCE, || match last() {
            ran if ran.iter().all(|ran| *ran == Some(base)) => Ok(()),
            ran => Err(ran),
        })
        .unwrap_or_else(|ran| panic!("{ran:?} instead of {base}"));
    }

    /// Waits until every node runs at default clocks, and no GPU is locked.
    pub(crate) fn until_at_default_clocks(&self) {
        let locks = || {
            let nodes = self.nodes.iter().enumerate();
            nodes.filter_map(|(gpu, node)| node.machine.sm_lock(gpu)).count()
        };
        wait::until_within(PATIENCE, || match (self.training.last(), locks()) {
            (ran, 0) if ran.iter().all(Option::is_none) => Ok(()),
            other => Err(other),
        })
        .unwrap_or_else(|other| panic!("{other:?} instead of default clocks"));
    }

    /// No two nodes ran different plans at a step, unless one of them is reported late for it,
    /// since all of them ran one, or since this was asked last.
    pub(crate) fn assert_same_everywhere(&self) {
        let late: Vec<_> = (0..NODES.len()).map(|node| self.late_steps(node)).collect();
        let ran: Vec<_> = self.training.ran.iter().map(|ran| ran.lock().unwrap().clone()).collect();
        let steps = ran.iter().map(Vec::len).min().unwrap();
        let all_run = |step: &usize| ran.iter().all(|ran| ran[*step].is_some());
        let first = Some(self.checked.get()).filter(|checked| *checked > 0);
        let first = first.or_else(|| (0..steps).find(all_run)).unwrap();
        (first..steps).for_each(|step| {
            let in_time = (0..NODES.len()).filter(|node| {
                let excused = self.without_pfod.as_ref().is_some_and(|(killed, steps)| {
                    killed == node && steps.contains(&step) && ran[*node][step].is_none()
                });
                !excused && !late[*node].contains(&(step as u64))
            });
            let plans: BTreeSet<_> = in_time.map(|node| ran[node][step]).collect();
            let around =
                || ran.iter().map(|ran| &ran[step.saturating_sub(3)..=step]).collect::<Vec<_>>();
            assert!(plans.len() <= 1, "step {step} of {steps}: {:?}, late {late:?}", around());
        });
        self.checked.set(steps);
    }

    /// Waits until every node is there, none is late any more, and all run a plan, or default clocks
    /// with none; then looks at every step so far.
    pub(crate) fn converges(&self, plan: Option<u32>) {
        match plan {
            Some(base) => self.until_all_run(base),
            None => self.until_at_default_clocks(),
        }
        self.until("all nodes are there, and none is late", |job| {
            let late = job.nodes.iter().filter_map(|node| node.late.as_ref());
            job.nodes.len() == NODES.len()
                && job.store_away_s.is_none()
                && late.into_iter().all(|late| late.until_step.is_some())
        });
        self.assert_same_everywhere();
    }

    /// Kills the pfod of a node, and starts it again.
    pub(crate) fn restart_pfod(&mut self, node: usize) {
        let is_leased = |node: &Node, rank| node.find_rank(JOB, rank).is_some();
        let from = self.training.steps();
        self.nodes[node].kill_daemon();
        self.nodes[node].start_daemon();
        let restarted = &self.nodes[node];
        restarted.until_so("the rank is back", || is_leased(restarted, node as u32));
        // What it ran is known to pfod from the next step on, and the step under way is not over.
        self.without_pfod = Some((node, from..self.training.steps() + 3));
    }

    /// Ends the training: no GPU stays locked, and no ledger has an entry.
    pub(crate) fn ends_without_a_lock(self) {
        let Self { training, nodes, .. } = self;
        drop(training);
        for (gpu, node) in nodes.iter().enumerate() {
            node.until_is("nothing is owed", &(None, 0), || {
                (node.machine.sm_lock(gpu).map(|_| ()), node.ledger_entries())
            });
        }
    }

    /// The steps for which a node is reported late, as a node that is not it shows.
    pub(crate) fn late_steps(&self, node: usize) -> Range<u64> {
        let job = self.job((node + 1) % NODES.len()).unwrap();
        let member = job.nodes.iter().find(|member| member.node == NODES[node]);
        let late = member.and_then(|member| member.late.as_ref());
        late.map_or(0..0, |late| late.from_step..late.until_step.unwrap_or(u64::MAX))
    }
}

pub(crate) fn start_node(name: &str, store: &EtcdCluster, link: Option<&Link>) -> Node {
    start_node_with(&Setup::default(), name, store, link)
}

/// The same of another set-up.
pub(crate) fn start_node_with(
    setup: &Setup,
    name: &str,
    store: &EtcdCluster,
    link: Option<&Link>,
) -> Node {
    let address = link.map_or(Ipv4Addr::LOCALHOST, Link::address);
    start_node_at(setup, name, store, (link.map(Link::namespace), address))
}

/// The same in a network namespace from which the store is at this address.
pub(crate) fn start_node_at(
    setup: &Setup,
    name: &str,
    store: &EtcdCluster,
    (namespace, address): (Option<&str>, Ipv4Addr),
) -> Node {
    let agent_namespace = namespace.map(str::to_owned);
    let mut node = Node::create(&Setup { agent_namespace, ..setup.clone() });
    let settings = store.settings(name, address);
    let credentials = settings.credentials.unwrap();
    let fleet = format!(
        "[fleet]\nnode = {name:?}\nendpoints = {:?}\nlease_s = {}\n\
         ca = {:?}\ncertificate = {:?}\nkey = {:?}\n",
        settings.endpoints,
        settings.lease_s,
        credentials.ca,
        credentials.certificate,
        credentials.key
    );
    let mut file = fs::File::options().append(true).open(node.agent_config()).unwrap();
    file.write_all(fleet.as_bytes()).unwrap();
    node.start_daemon();
    node.start_agent();
    node
}

impl Training {
    fn start(nodes: &[Node]) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let pace = Arc::new((Barrier::new(nodes.len()), AtomicBool::new(false)));
        let ran: Arc<Vec<Mutex<Vec<_>>>> =
            Arc::new(nodes.iter().map(|_| Mutex::default()).collect());
        let ranks = (0..).zip(nodes).map(|(number, node)| {
            let rank = Rank::open(node, JOB, number, STAGES, MICROBATCHES);
            let driver = Driver::open(node.machine.state()).unwrap();
            let (is_over, pace, ran) = (is_over.clone(), pace.clone(), ran.clone());
            thread::spawn(move || {
                while goes_on(&pace, &is_over) {
                    let plan = step(&rank, number, driver.gpu(number as usize).unwrap());
                    ran[number as usize].lock().unwrap().push(plan);
                }
            })
        });
        Self { is_over: is_over.clone(), ranks: ranks.collect(), ran: ran.clone() }
    }

    /// How many steps all nodes have run.
    pub(crate) fn steps(&self) -> usize {
        self.ran.iter().map(|ran| ran.lock().unwrap().len()).min().unwrap_or(0)
    }

    /// The first step of each node from one on in which it ran a plan.
    pub(crate) fn first_step_with(&self, base: u32, from: usize) -> [Option<usize>; 4] {
        [0, 1, 2, 3].map(|node: usize| {
            let ran = self.ran[node].lock().unwrap();
            let ran = ran.iter().enumerate().skip(from);
            ran.into_iter().find(|(_, ran)| **ran == Some(base)).map(|(step, _)| step)
        })
    }

    /// The plans that the nodes ran last.
    pub(crate) fn last(&self) -> Vec<Option<u32>> {
        self.ran.iter().map(|ran| ran.lock().unwrap().last().copied().flatten()).collect()
    }
}

/// Waits for the other ranks. All of them end after the same step.
fn goes_on((pace, ends): &(Barrier, AtomicBool), is_over: &AtomicBool) -> bool {
    if pace.wait().is_leader() {
        ends.store(is_over.load(Relaxed), Relaxed);
    }
    pace.wait();
    !ends.load(Relaxed)
}

/// Trains for a step. Returns the plan of which the driver was asked for a clock meanwhile, or whose
/// clock is still locked: a pfod that gets no processor time until the last instruction has begun
/// finds the lock of the step before, which is right.
///
/// The clock of the first instruction says least: pfod asks for it before the step begins, also for
/// that of the next step, and in the place of the last instruction's if it is as late as that.
fn step(rank: &Rank, stage: u32, gpu: Gpu<'_>) -> Option<u32> {
    let before = gpu.set_call_count();
    let plan_of = |mhz: u32, from: usize| {
        PLANS.into_iter().find(|base| plan(*base).clocks(stage)[from..].contains(&mhz))
    };
    let ran = || gpu.set_calls_since(before).iter().rev().find_map(|call| plan_of(call.max.0, 1));
    let locked = || gpu.view().unwrap().timeline.last().lock;
    rank.session.step_begin();
    for position in 0..rank.order().len() {
        rank.begin(position);
        sleep(INSTRUCTION);
        // The driver is asked for a clock of a plan before the last instruction ends, sooner or
        // later; at default clocks it is asked for nothing.
        if position + 1 == rank.order().len() && before > 0 {
            let patience = if locked().is_some() { LATE } else { LATE / 10 };
            let _ = wait::until_within(patience, || ran().ok_or(()));
        }
        rank.session.instruction_end();
    }
    let plan = ran().or_else(|| plan_of(locked()?.max.0, 0));
    rank.session.step_end();
    plan
}
