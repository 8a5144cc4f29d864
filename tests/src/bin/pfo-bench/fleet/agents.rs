//! The agents of one job, with everything but a `pfod`: what drives them, their clients of etcd and
//! their connections are those of a real agent.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pfo_fleet::{Degrees, Gpus, Node, Place, Run, Runs, Seen, Settings, SwapAnswer};
use pfo_store::{Asked, Etcd, EtcdSettings, JobId, LocalJob, Measured, Slices, Store, drive};
use pfo_tests::EtcdCluster;
use pfo_vocabulary::{DpRank, Mhz, Rank, Stage, TpRank, Uid};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};

use crate::Result;

/// Stages of the job; each node has one.
pub(crate) const STAGES: usize = 8;

/// GPUs of a node.
const GPUS: usize = 8;

const STEP: Duration = Duration::from_millis(500);

/// What agents have configured unless an administrator changes it.
const LEASE_S: u16 = 15;

/// The node whose certificate all of them show.
const CERTIFIED: &str = "node-a";

pub(crate) fn job() -> Result<JobId> {
    Ok(JobId { uid: Uid(1000), name: "pipeline".parse()?, run: None })
}

pub(crate) fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// How a node of this name reaches etcd.
pub(crate) fn settings(etcd: &EtcdCluster, node: Node) -> EtcdSettings {
    let settings = etcd.settings(CERTIFIED, Ipv4Addr::LOCALHOST);
    EtcdSettings { node, lease_s: LEASE_S, ..settings }
}

/// One node's part in the job: 8 ranks of one stage, of one replica.
pub(crate) struct SimJob {
    index: usize,
    nodes: usize,
    began: Instant,
    swaps: Mutex<Vec<Swap>>,
}

/// A swap that `pfod` was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Swap {
    pub(crate) asked: Instant,
    pub(crate) at: u64,
    slice: Vec<u8>,
}

impl SimJob {
    fn stage(&self) -> Stage {
        Stage((self.index % STAGES) as u16)
    }

    pub(crate) fn next_step(&self) -> u64 {
        (self.began.elapsed().as_millis() / STEP.as_millis()) as u64 + 1
    }

    fn slice(&self, run: &Run, slices: &Slices) -> Vec<u8> {
        let digest = run.slice(self.stage());
        digest.and_then(|digest| slices.get(&digest)).cloned().unwrap_or_default()
    }

    /// The swaps so far.
    pub(crate) fn swaps(&self) -> Vec<Swap> {
        self.swaps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl LocalJob for SimJob {
    async fn look(&self) -> Option<Seen> {
        let replica = self.index / STAGES;
        let place = |shard: usize| Place {
            rank: Rank((self.index * GPUS + shard) as u32),
            stage: self.stage(),
            dp: DpRank(replica as _),
            tp: TpRank(shard as _),
        };
        let runs = self.swaps().pop().map_or(Runs::DefaultClocks, |swap| {
            let digest = pfo_store::digest_of(&swap.slice);
            Runs::Slices(BTreeMap::from([(self.stage(), digest)]))
        });
        Some(Seen {
            degrees: Degrees {
                pp: STAGES as u32,
                dp: (self.nodes / STAGES) as u32,
                tp: GPUS as u32,
            },
            places: (0..GPUS).map(place).collect(),
            gpus: Gpus {
                models: vec!["NVIDIA A100-SXM4-80GB".into(); GPUS],
                clocks: (210..=1410).step_by(15).map(Mhz).collect(),
            },
            next_step: Some(self.next_step()),
            step_ms: Some(STEP.as_millis() as u64),
            runs,
            swap: self.swaps().len() as u64,
            held: None,
            slow: Vec::new(),
            astray: None,
            shown: true,
        })
    }

    async fn load(&self, _: &Run, _: &Slices) -> Option<std::result::Result<(), String>> {
        Some(Ok(()))
    }

    async fn measure(&self, _: u64, _: u32, _: bool) -> Vec<u8> {
        Vec::new()
    }

    async fn swap(&self, run: &Run, slices: &Slices, at: Option<u64>, after: u64) -> SwapAnswer {
        let (slice, next) = (self.slice(run, slices), self.next_step());
        let at = at.unwrap_or(next);
        if at < next {
            return SwapAnswer::Refused(format!("step {at} has begun"));
        }
        let mut swaps = self.swaps.lock().unwrap_or_else(PoisonError::into_inner);
        if after != swaps.len() as u64 {
            return SwapAnswer::Refused("there was another swap".into());
        }
        swaps.push(Swap { asked: Instant::now(), at, slice });
        SwapAnswer::At(at)
    }
}

/// Agents that run.
pub(crate) struct Agents {
    pub(crate) jobs: Vec<Arc<SimJob>>,
    asked: Vec<mpsc::Sender<Asked>>,
    rounds: watch::Sender<usize>,
    written: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Agents {
    fn drop(&mut self) {
        // The threads end with the channel.
        self.rounds = watch::Sender::default();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Agents {
    /// Starts them, in a thread for each core.
    pub(crate) fn start(etcd: &EtcdCluster, nodes: usize) -> Result<Self> {
        let (began, job) = (Instant::now(), job()?);
        let (rounds, round) = watch::channel(0);
        let sim = |index| Arc::new(SimJob { index, nodes, began, swaps: Mutex::default() });
        let mut agents = Self {
            jobs: (0..nodes).map(sim).collect(),
            asked: Vec::new(),
            rounds,
            written: Arc::default(),
            threads: Vec::new(),
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut shares: Vec<Vec<_>> = (0..cores).map(|_| Vec::new()).collect();
        for (index, local) in agents.jobs.iter().enumerate() {
            let (ask, asked) = mpsc::channel(1);
            agents.asked.push(ask);
            let settings = settings(etcd, format!("node-{index}").parse()?);
            shares[index % cores].push((settings, Arc::clone(local), asked));
        }
        for share in shares {
            let runtime = runtime()?;
            let (job, mut over) = (job.clone(), round.clone());
            let (round, written) = (round.clone(), Arc::clone(&agents.written));
            agents.threads.push(thread::spawn(move || {
                runtime.block_on(async move {
                    for (settings, local, asked) in share {
                        let me = (settings.node.clone(), Settings::default());
                        let store = Etcd::open(&settings).await;
                        let Ok(store) = store.inspect_err(|error| eprintln!("{error}")) else {
                            return;
                        };
                        let store = Arc::new(store);
                        let measures = measures(
                            Arc::clone(&store),
                            job.clone(),
                            round.clone(),
                            Arc::clone(&written),
                        );
                        tokio::spawn(measures);
                        tokio::spawn(drive(store, job.clone(), me, local, asked));
                    }
                    while over.changed().await.is_ok() {}
                });
            }));
        }
        Ok(agents)
    }

    /// What the first agent is asked by.
    pub(crate) fn first(&self) -> &mpsc::Sender<Asked> {
        &self.asked[0]
    }

    /// Every agent writes once what it has measured, as it does every 10 s.
    pub(crate) fn write_measured(&self) {
        let before = self.written.load(Relaxed);
        self.rounds.send_modify(|round| *round += 1);
        while self.written.load(Relaxed) < before + self.jobs.len() {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Writes what was measured, in every round.
async fn measures(
    store: Arc<Etcd>,
    job: JobId,
    mut round: watch::Receiver<usize>,
    written: Arc<AtomicUsize>,
) {
    let measured = |swap| Measured {
        swap,
        plan: Some("1410.5 ms, 98.2 kJ".into()),
        ranks: GPUS,
        time_s: 0.500_123_456,
        energy_j: Some(1_234.567_89),
    };
    // As many swaps as an agent remembers.
    let measured: Vec<_> = (1..=8).map(measured).collect();
    while round.changed().await.is_ok() {
        while store.measure(&job, &measured).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        written.fetch_add(1, Relaxed);
    }
}
