//! A job over four nodes, each with a machine, a pfod and an agent of its own, which agree over a
//! real etcd with TLS and roles. What ran at which step is read from the histories of the simulated
//! drivers.

#[path = "../../../store/tests/verbs/server.rs"]
mod server;
mod trials;
mod tune;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use nvidia_ml::driver::{Driver, Gpu};
use pfo_protocol::{FleetJob, FleetOutcome, Request, Response};
use pfo_tests::{Identity, Node, Ran, Rank, Setup, TestPlan, control, wait};
use server::Server;

const JOB: &str = "pipeline";
const NODES: [&str; 4] = ["node-a", "node-b", "node-c", "node-d"];
const STAGES: u32 = NODES.len() as u32;
const MICROBATCHES: u32 = 2;

/// Long enough for a clock to be set while an instruction runs.
const INSTRUCTION: Duration = Duration::from_millis(8);

/// Longer than a swap of the whole job takes, with all of its attempts.
const PATIENCE: Duration = Duration::from_secs(90);

/// How late a pfod may be that gets no processor time.
const LATE: Duration = Duration::from_secs(3);

/// The plans of the test, by the lowest clock of each, in MHz.
const PLANS: [u32; 2] = [900, 1200];

fn plan(base: u32) -> TestPlan {
    TestPlan::distinct(STAGES, MICROBATCHES, base)
}

/// Four nodes of one fleet, and a job with a stage on each.
struct Cluster {
    // Ends before the daemons that it uses.
    training: Training,
    nodes: Vec<Node>,
    store: Server,
}

/// A rank on each node; all begin each step together.
struct Training {
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
    fn start() -> Option<Self> {
        let store = Server::start()?;
        let nodes: Vec<_> = NODES.iter().map(|name| start_node(name, &store)).collect();
        let training = Training::start(&nodes);
        let cluster = Self { training, nodes, store };
        cluster.until("every node has the whole job", |job| {
            job.nodes.len() == NODES.len() && job.problem.is_none()
        });
        Some(cluster)
    }

    /// The job as an agent sees it.
    fn job(&self, node: usize) -> Option<FleetJob> {
        self.nodes[node].find_watched(JOB)?.fleet
    }

    /// Waits until the job is so for every agent.
    fn until(&self, what: &str, so: impl Fn(&FleetJob) -> bool) {
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
    fn swap(&mut self, node: usize, arguments: &[&str], meanwhile: impl FnOnce(&mut Self)) {
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

    fn file(&self, node: usize, base: u32) -> String {
        self.nodes[node].plan_file(&format!("{base}.json"), &plan(base).to_json())
    }

    /// Waits until the last steps of all nodes ran a plan.
    fn until_all_run(&self, base: u32) {
        let last = || self.training.last();
        wait::until_within(PATIENCE, || match last() {
            ran if ran.iter().all(|ran| *ran == Some(base)) => Ok(()),
            ran => Err(ran),
        })
        .unwrap_or_else(|ran| panic!("{ran:?} instead of {base}"));
    }

    /// Waits until every node runs at default clocks, and no GPU is locked.
    fn until_at_default_clocks(&self) {
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
    /// since all of them ran one.
    fn assert_same_everywhere(&self) {
        let late: Vec<_> = (0..NODES.len()).map(|node| self.late_steps(node)).collect();
        let ran: Vec<_> = self.training.ran.iter().map(|ran| ran.lock().unwrap().clone()).collect();
        let steps = ran.iter().map(Vec::len).min().unwrap();
        let first = (0..steps).find(|step| ran.iter().all(|ran| ran[*step].is_some())).unwrap();
        (first..steps).for_each(|step| {
            let in_time = (0..NODES.len()).filter(|node| !late[*node].contains(&(step as u64)));
            let plans: BTreeSet<_> = in_time.map(|node| ran[node][step]).collect();
            assert!(plans.len() <= 1, "step {step} of {steps}: {plans:?}, late {late:?}");
        });
    }

    /// The steps for which a node is reported late, as a node that is not it shows.
    fn late_steps(&self, node: usize) -> std::ops::Range<u64> {
        let job = self.job((node + 1) % NODES.len()).unwrap();
        let member = job.nodes.iter().find(|member| member.node == NODES[node]);
        let late = member.and_then(|member| member.late.as_ref());
        late.map_or(0..0, |late| late.from_step..late.until_step.unwrap_or(u64::MAX))
    }
}

fn start_node(name: &str, store: &Server) -> Node {
    let mut node = Node::create(&Setup::default());
    let settings = store.settings(name);
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

    /// The plans that the nodes ran last.
    fn last(&self) -> Vec<Option<u32>> {
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

/// Trains for a step. Returns the plan of which the driver was asked for the last clock meanwhile, or
/// whose last clock is still locked: a pfod that gets no processor time until the last instruction
/// has begun finds the lock of the step before, which is right.
fn step(rank: &Rank, stage: u32, gpu: Gpu<'_>) -> Option<u32> {
    let before = gpu.set_call_count();
    let plan_of =
        |mhz| PLANS.into_iter().find(|base| plan(*base).clocks(stage).last() == Some(&mhz));
    let ran = || gpu.set_calls_since(before).iter().rev().find_map(|call| plan_of(call.max.0));
    let locked = || gpu.view().unwrap().timeline.last().lock;
    rank.session.step_begin();
    for position in 0..rank.order().len() {
        rank.begin(position);
        sleep(INSTRUCTION);
        // The driver is asked for the last clock of a plan while the last instruction runs, sooner
        // or later; at default clocks it is asked for nothing.
        if position + 1 == rank.order().len() && before > 0 {
            let patience = if locked().is_some() { LATE } else { LATE / 10 };
            let _ = wait::until_within(patience, || ran().ok_or(()));
        }
        rank.session.instruction_end();
    }
    let plan = ran().or_else(|| plan_of(locked()?.max.0));
    rank.session.step_end();
    plan
}

#[test]
fn all_nodes_change_at_the_same_step_whatever_is_killed() {
    let Some(mut cluster) = Cluster::start() else { return };
    let [first, second] = PLANS.map(|base| cluster.file(0, base));
    cluster.swap(0, &["plan", "swap", JOB, &first], |_| {});
    cluster.until_all_run(PLANS[0]);
    for (number, node) in (0..).zip(&cluster.nodes) {
        let request = Request::PlanRead(control::job(JOB));
        let Ok(Response::Plan(Some(table))) = node.control().ask(request) else { panic!() };
        let present = |stage: u32| !table.stages()[stage as usize].is_empty();
        assert!((0..STAGES).all(|stage| present(stage) == (stage == number)), "cut by stage");
    }

    // An agent is killed while its node is asked to arm the swap, and comes back.
    cluster.swap(1, &["plan", "swap", JOB, &second], |cluster| {
        sleep(Duration::from_millis(700));
        cluster.nodes[2].kill_agent();
        cluster.nodes[2].start_agent();
    });
    cluster.until_all_run(PLANS[1]);

    // The agent that was asked is killed: the others finish what it began, or nobody changes.
    let before = cluster.job(3).unwrap().swap.unwrap().number;
    let rollback = ["plan", "rollback", JOB];
    let mut asked = cluster.nodes[0].begin_pfoctl(&Identity::own(), &rollback);
    cluster.until("the rollback is proposed", |job| {
        job.swap.as_ref().is_some_and(|swap| swap.number > before)
    });
    cluster.nodes[0].kill_agent();
    asked.wait().unwrap();
    cluster.nodes[0].start_agent();
    cluster.until("the rollback is decided", |job| {
        job.nodes.len() == NODES.len()
            && job.swap.as_ref().is_some_and(|swap| swap.outcome != FleetOutcome::Open)
    });
    if cluster.job(0).unwrap().swap.unwrap().outcome != FleetOutcome::Committed {
        cluster.swap(0, &rollback, |_| {});
    }
    cluster.until_all_run(PLANS[0]);
    cluster.until("no node is late", |job| {
        job.nodes.iter().all(|node| node.late.as_ref().is_none_or(|late| late.until_step.is_some()))
    });
    cluster.assert_same_everywhere();
}

#[test]
fn a_plan_that_is_called_like_a_trial_at_one_clock_is_run_as_the_plan_that_it_is() {
    let Some(mut cluster) = Cluster::start() else { return };
    let name = format!("all at {} MHz", PLANS[0]);
    let file = cluster.nodes[0].plan_file(&name, &plan(PLANS[0]).to_json());
    cluster.swap(0, &["plan", "swap", JOB, &file], |_| ());
    cluster.until_all_run(PLANS[0]);
    // As long as a node takes to look at what it runs, several times.
    sleep(Duration::from_secs(3));
    let job = cluster.job(1).unwrap();
    assert!(job.nodes.iter().all(|node| node.late.is_none()), "{job:?}");
    cluster.assert_same_everywhere();
}

#[test]
fn a_plan_that_one_node_cannot_run_is_loaded_nowhere() {
    let Some(cluster) = Cluster::start() else { return };
    let no_clock = |stage, _| if stage + 1 == STAGES { 901 } else { 900 };
    let plan = TestPlan::new(STAGES, MICROBATCHES, no_clock).to_json();
    let file = cluster.nodes[0].plan_file("vetoed.json", &plan);
    let vetoed = cluster.nodes[0].pfoctl(&Identity::own(), &["plan", "swap", JOB, &file]);
    assert_ne!(vetoed.code, Some(0), "{vetoed:?}");
    assert!(vetoed.stderr.contains("node node-d: ") && vetoed.stderr.contains("901 MHz"));
    for node in &cluster.nodes {
        let job = node.find_job(JOB).unwrap();
        assert_eq!((job.plan, job.loaded), (None, None));
    }
}

#[test]
fn a_plan_stays_in_force_without_the_store_and_its_loss_is_shown() {
    let Some(mut cluster) = Cluster::start() else { return };
    let [first, second] = PLANS.map(|base| cluster.file(0, base));
    cluster.swap(2, &["plan", "swap", JOB, &first], |_| {});
    cluster.until_all_run(PLANS[0]);
    cluster.until("its steps are measured", |job| job.step.is_some());
    let whole_j = cluster.job(1).unwrap().step.and_then(|step| step.energy_j).unwrap();
    for node in &cluster.nodes {
        let window = node.find_job(JOB).unwrap().windows.pop().unwrap();
        let own_j = window.iteration_energy_j.unwrap();
        assert!(whole_j > 2.0 * own_j, "{whole_j} J of four nodes, {own_j} J of one");
    }
    let user = Identity::own();
    let status = cluster.nodes[3].pfoctl(&user, &["status", "--job", JOB]).printed();
    assert!(NODES.iter().all(|node| status.contains(node)), "{status}");
    assert!(status.contains("J on all nodes together"), "{status}");
    let nodes = cluster.nodes[3].pfoctl(&user, &["fleet", "status"]).printed();
    assert!(NODES.iter().all(|node| nodes.contains(node)), "{nodes}");
    let checked = cluster.nodes[3].pfoctl(&user, &["fleet", "check"]).printed();
    assert!(checked.contains("what node node-d may do there: ok"), "{checked}");

    cluster.store.kill();
    cluster.until("the store is away", |job| job.store_away_s.is_some());
    let refused = cluster.nodes[0].pfoctl(&user, &["plan", "swap", JOB, &second]);
    assert!(refused.stderr.contains("the store does not answer"), "{refused:?}");
    let checked = cluster.nodes[0].pfoctl(&user, &["fleet", "check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let status = cluster.nodes[1].pfoctl(&user, &["status"]).printed();
    assert!(status.contains("the store of the fleet has not answered"), "{status}");
    cluster.until_all_run(PLANS[0]);

    cluster.store.restart();
    cluster.until("the store is back", |job| {
        job.store_away_s.is_none() && job.nodes.len() == NODES.len()
    });
    cluster.swap(0, &["plan", "swap", JOB, &second], |_| {});
    cluster.until_all_run(PLANS[1]);
    let alone = cluster.nodes[0].pfoctl(&user, &["plan", "swap", JOB, &first, "--at-step", "9999"]);
    assert_eq!(alone.code, Some(2), "{alone:?}");
    let of_one_node: [&[&str]; 2] =
        [&["plan", "guard", JOB, "2%"], &["job", "straggler", JOB, "1.2"]];
    for arguments in of_one_node {
        let refused = cluster.nodes[0].pfoctl(&user, arguments);
        assert_ne!(refused.code, Some(0), "{refused:?}");
        assert!(refused.stderr.contains("has ranks on other nodes"), "{refused:?}");
    }
    cluster.assert_same_everywhere();
}
