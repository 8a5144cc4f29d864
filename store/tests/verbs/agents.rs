//! Four participants with everything but a real `pfod`: the store, its client and the driving of
//! events are those of an agent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pfo_fleet::{
    Degrees, Gpus, Incomplete, Length, Place, PlanCut, Purpose, Run, Runs, Seen, Settings,
    SwapAnswer, Terms, Told,
};
use pfo_store::{Asked, Holder, LocalJob, Slices, Store, drive};
use pfo_vocabulary::{DpRank, Rank, Stage, TpRank, Uid};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{job, node};

const STEP: Duration = Duration::from_millis(20);

/// What one node runs, and has run at each step so far: its slice.
#[derive(Default)]
pub(crate) struct SimJob {
    stage: u16,
    stages: u16,
    step: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ran: Vec<Vec<u8>>,
    swaps: Vec<(u64, Vec<u8>)>,
    begun: u64,
}

impl SimJob {
    fn step(&self) {
        let mut state = self.state.lock().unwrap();
        let step = state.ran.len() as u64;
        let runs = state.swaps.iter().rfind(|(from, _)| *from <= step);
        let runs = runs.map(|(_, slice)| slice.clone()).unwrap_or_default();
        state.ran.push(runs);
    }

    fn ran(&self) -> Vec<Vec<u8>> {
        self.state.lock().unwrap().ran.clone()
    }

    fn slice(&self, run: &Run, slices: &Slices) -> Vec<u8> {
        run.slice(Stage(self.stage)).map(|digest| slices[&digest].clone()).unwrap_or_default()
    }
}

impl LocalJob for SimJob {
    async fn look(&self) -> Option<Seen> {
        let state = self.state.lock().unwrap();
        let stage = Stage(self.stage);
        let (dp, tp) = (DpRank(0), TpRank(0));
        let runs = match state.swaps.last() {
            Some((_, slice)) if !slice.is_empty() => {
                Runs::Slices(BTreeMap::from([(stage, pfo_store::digest_of(slice))]))
            }
            _ => Runs::DefaultClocks,
        };
        Some(Seen {
            degrees: Degrees { pp: self.stages.into(), dp: 1, tp: 1 },
            places: vec![Place { rank: Rank(self.stage.into()), stage, dp, tp }],
            gpus: Gpus::default(),
            next_step: Some(state.ran.len() as u64),
            step_ms: Some(self.step.as_millis() as u64),
            runs,
            swap: state.begun,
            held: None,
            slow: Vec::new(),
            astray: None,
            shown: true,
        })
    }

    async fn load(&self, run: &Run, slices: &Slices) -> Option<Result<(), String>> {
        let slice = self.slice(run, slices);
        let fits = !slice.starts_with(b"too fast");
        Some(if fits { Ok(()) } else { Err("stage asks for 9999 MHz".into()) })
    }

    async fn measure(&self, first_step: u64, steps: u32, _: bool) -> Vec<u8> {
        let last = first_step + u64::from(steps) - 1;
        while (self.ran().len() as u64) <= last + 1 {
            sleep(STEP).await;
        }
        format!("steps {first_step} to {last} of stage {}", self.stage).into_bytes()
    }

    async fn swap(&self, run: &Run, slices: &Slices, at: Option<u64>, after: u64) -> SwapAnswer {
        let slice = self.slice(run, slices);
        let mut state = self.state.lock().unwrap();
        let next = state.ran.len() as u64;
        match at {
            Some(at) if at < next => SwapAnswer::Refused(format!("step {at} has begun")),
            _ if after != state.begun => SwapAnswer::Refused("there was another swap".into()),
            at => {
                let at = at.unwrap_or(next);
                state.swaps.retain(|(from, _)| *from < next);
                state.swaps.push((at, slice));
                state.begun += 1;
                SwapAnswer::At(at)
            }
        }
    }
}

/// What a user asks for, on terms like any other.
fn wish_for(
    run: Option<Run>,
    purpose: Purpose,
    (holder, answer): (Option<Holder>, oneshot::Sender<Told>),
) -> Asked {
    Asked::Run { run, by_uid: Uid(1), purpose, terms: Terms::default(), holder, answer }
}

/// Trials are measured on every node, and end when who runs them is gone.
pub(crate) async fn trials_end_with_who_runs_them<S: Store>(stores: Vec<S>) {
    let fleet = Fleet::new(stores, STEP);
    let (_, first) = fleet.swap(0, "first").await;
    fleet.begins(first).await;
    let run = fleet.plan("tried").await;
    let (holds, holder) = oneshot::channel();
    let (answer, told) = oneshot::channel();
    let purpose = Purpose::Trial(Length { settling_steps: 1, steps: 5, samples: false });
    let asked = wish_for(Some(run), purpose, (Some(holder), answer));
    fleet.agents[1].0.send(asked).await.unwrap();
    let told = timeout(Duration::from_secs(60), told).await.expect("no answer").unwrap();
    let Told::Committed { number, step } = told else { panic!("{told:?}") };
    for index in 0..fleet.jobs.len() {
        let part = format!("steps {} to {} of stage {index}", step + 1, step + 5).into_bytes();
        let handed_in = async {
            let store = &fleet.stores[0];
            while store.handed_in(&job("7"), number, &node(&name(index))).await
                != Ok(Some(part.clone()))
            {
                sleep(STEP).await;
            }
        };
        timeout(Duration::from_secs(60), handed_in).await.expect("nothing handed in");
    }
    let refused = fleet.wish(2, fleet.plan("other").await).await;
    assert_eq!(refused, Told::Held(node(&name(1))));

    drop(holds);
    let back = async {
        while fleet.jobs.iter().any(|job| job.ran().last().is_some_and(|slice| !slice.is_empty())) {
            sleep(STEP).await;
        }
    };
    timeout(Duration::from_secs(60), back).await.expect("the trial goes on");
    let ran: Vec<_> = fleet.jobs.iter().map(|job| job.ran()).collect();
    let steps = ran.iter().map(Vec::len).min().unwrap();
    for step in 0..steps {
        let is_tried = |ran: &Vec<Vec<u8>>| ran[step].starts_with(b"tried");
        let tried = ran.iter().filter(|ran| is_tried(ran)).count();
        assert!(tried == 0 || tried == ran.len(), "{tried} nodes at step {step}");
    }
    // What ran before the trials is what a rollback leads to.
    let (answer, told) = oneshot::channel();
    let asked = wish_for(None, Purpose::Swap, (None, answer));
    fleet.agents[3].0.send(asked).await.unwrap();
    let told = timeout(Duration::from_secs(60), told).await.expect("no answer").unwrap();
    let Told::Committed { step, .. } = told else { panic!("{told:?}") };
    fleet.begins(step).await;
    assert_eq!(fleet.running("first", step), fleet.jobs.len());
}

/// The name of a node.
pub(crate) fn name(index: usize) -> String {
    match index {
        0..4 => format!("node-{}", char::from(b'a' + index as u8)),
        _ => format!("node-{index}"),
    }
}

/// A job with a stage on each node, whose steps begin everywhere at once.
pub(crate) struct Fleet<S> {
    stores: Vec<Arc<S>>,
    jobs: Vec<Arc<SimJob>>,
    agents: Vec<(mpsc::Sender<Asked>, JoinHandle<()>)>,
}

impl<S: Store> Fleet<S> {
    pub(crate) fn new(stores: Vec<S>, step: Duration) -> Self {
        let stages = stores.len() as u16;
        let sim = |stage| Arc::new(SimJob { stage, stages, step, ..SimJob::default() });
        let stores: Vec<_> = stores.into_iter().map(Arc::new).collect();
        let mut fleet = Self { stores, jobs: (0..stages).map(sim).collect(), agents: Vec::new() };
        let trained = fleet.jobs.clone();
        tokio::spawn(async move {
            loop {
                trained.iter().for_each(|job| job.step());
                sleep(step).await;
            }
        });
        fleet.agents = (0..fleet.jobs.len()).map(|index| fleet.start(index)).collect();
        fleet
    }

    fn start(&self, index: usize) -> (mpsc::Sender<Asked>, JoinHandle<()>) {
        let (ask, asked) = mpsc::channel(1);
        let settings = Settings { lead_ms: 1000, ..Settings::default() };
        let me = (node(&name(index)), settings);
        let (store, local) = (Arc::clone(&self.stores[index]), Arc::clone(&self.jobs[index]));
        (ask, tokio::spawn(drive(store, job("7"), me, local, asked)))
    }

    /// Kills an agent, and what it holds in the store with it.
    pub(crate) fn kill(&mut self, index: usize) {
        self.agents[index].1.abort();
    }

    pub(crate) fn restart(&mut self, index: usize, store: S) {
        self.stores[index] = Arc::new(store);
        self.agents[index] = self.start(index);
    }

    async fn plan(&self, label: &str) -> Run {
        let mut stages = Vec::new();
        for stage in 0..self.jobs.len() {
            let slice = format!("{label} {stage}");
            stages.push(self.stores[0].publish(&job("7"), slice.as_bytes()).await.unwrap());
        }
        let label = label.to_owned();
        // A proposal is known again by its figures, which have to be read as they were written.
        let predicted = Some((31.245_270_191_439_438, 121.487_919_511_619_45));
        Run::Plan(PlanCut { label, num_microbatches: 1, predicted, stages })
    }

    /// What becomes of a wish that is made at a node.
    async fn wish(&self, index: usize, run: Run) -> Told {
        let (answer, told) = oneshot::channel();
        self.agents[index]
            .0
            .send(wish_for(Some(run), Purpose::Swap, (None, answer)))
            .await
            .unwrap();
        timeout(Duration::from_secs(60), told).await.expect("no answer").unwrap()
    }

    /// Wishes until the job is complete and the store answers.
    pub(crate) async fn swap(&self, index: usize, label: &str) -> (u64, u64) {
        let run = self.plan(label).await;
        loop {
            match self.wish(index, run.clone()).await {
                Told::Committed { number, step } => return (number, step),
                Told::Incomplete(Incomplete::Missing { .. } | Incomplete::Nobody)
                | Told::Away
                | Told::NotNow(_) => {
                    sleep(Duration::from_millis(100)).await;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn begins(&self, step: u64) {
        while (self.jobs[0].ran().len() as u64) <= step {
            sleep(STEP).await;
        }
    }
}

/// Swaps, vetoes, killed agents: through all of it, the nodes run the same at each step.
pub(crate) async fn all_nodes_change_at_the_same_step<S: Store>(
    stores: Vec<S>,
    again: impl AsyncFn() -> S,
) {
    let mut fleet = Fleet::new(stores, STEP);
    let (one, first) = fleet.swap(0, "first").await;
    fleet.begins(first).await;

    let vetoed = fleet.plan("too fast").await;
    let Told::Aborted(why, 1) = fleet.wish(1, vetoed).await else { panic!() };
    assert!(why.to_string().contains("stage asks for 9999 MHz"), "{why}");

    // The others go on without the agent that is gone, and change nothing: its ranks would not.
    fleet.kill(3);
    fleet.restart(3, again().await);
    let (last, second) = fleet.swap(2, "second").await;
    assert!(one == 1 && last >= 3, "{one} {last}");
    fleet.begins(second + 2).await;

    let ran: Vec<_> = fleet.jobs.iter().map(|job| job.ran()).collect();
    for step in 0..=second {
        let expected = if step >= second {
            "second"
        } else if step >= first {
            "first"
        } else {
            ""
        };
        for (stage, ran) in ran.iter().enumerate() {
            let slice = String::from_utf8_lossy(&ran[step as usize]);
            let runs = slice.strip_suffix(&format!(" {stage}")).unwrap_or(&slice);
            assert_eq!(runs, expected, "stage {stage} at step {step}");
        }
    }
}

impl<S: Store> Fleet<S> {
    /// How many nodes run what they should at a step.
    pub(crate) fn running(&self, label: &str, step: u64) -> usize {
        let runs = |job: &&Arc<SimJob>| {
            job.ran().get(step as usize).is_some_and(|slice| slice.starts_with(label.as_bytes()))
        };
        self.jobs.iter().filter(runs).count()
    }
}
