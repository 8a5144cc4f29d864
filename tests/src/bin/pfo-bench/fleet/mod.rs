//! A job on many nodes: agents with a simulated `pfod` each, against three real members of etcd.

mod agents;
mod real_agent;

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pfo_fleet::{PlanCut, Purpose, Run, Terms, Told, View};
use pfo_protocol::Pid;
use pfo_store::{Asked, Etcd, Store};
use pfo_tests::{EtcdCluster, EtcdSetup};
use pfo_vocabulary::Uid;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use self::agents::{Agents, STAGES, job, runtime, settings};
use crate::Result;
use crate::extent::Extent;
use crate::proc_status::Process;
use crate::report::{Cell, Report};
use crate::samples::Samples;

const MEMBERS: usize = 3;

/// Bytes of a plan, over all stages.
const PLAN: usize = 128 * 1024;

/// Nothing that is waited for takes longer.
const PATIENCE: Duration = Duration::from_secs(180);

/// How often an agent writes what it has measured.
const ROUND_S: f64 = 10.0;

/// Rounds of a day.
const ROUNDS_A_DAY: f64 = 86_400.0 / ROUND_S;

/// Clients that write without a pause while the leader is killed.
const PROBES: usize = 8;

/// A figure, and what it should be at most.
struct Figure {
    what: String,
    figure: f64,
    unit: &'static str,
    aim: Option<f64>,
}

fn figure(what: impl Into<String>, figure: f64, unit: &'static str, aim: Option<f64>) -> Figure {
    Figure { what: what.into(), figure, unit, aim }
}

/// Measures a job on so many nodes, or on as many as belong to the extent.
pub(crate) fn measure(nodes: Option<usize>, extent: Extent, report: &mut Report) -> Result<()> {
    // Each agent has a connection to each member.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let setup = EtcdSetup { members: MEMBERS, ..EtcdSetup::default() };
    let Some(mut etcd) = EtcdCluster::start(&setup) else {
        report.note("The fleet is not measured: etcd, etcdctl or openssl is not installed.");
        return Ok(());
    };
    let nodes = (nodes.unwrap_or(extent.of(1000, 48)) / STAGES).max(1) * STAGES;
    let mut figures = Vec::from(real_agent::measure(&etcd, extent)?);
    let own = Process(Pid(std::process::id()));
    let (began, before) = (Instant::now(), own.memory()?);
    let agents = Agents::start(&etcd, nodes)?;
    let runtime = runtime()?;
    runtime.block_on(joined(&agents))?;
    figures.push(figure("all have joined the job", began.elapsed().as_secs_f64(), "s", Some(3.0)));
    let grown_kib = own.memory()?.rss_kib.saturating_sub(before.rss_kib) as f64;
    figures.push(figure(
        "an agent's part in the job: resident",
        grown_kib / nodes as f64,
        "KiB",
        None,
    ));
    let mut swaps = true;
    for label in ["first", "second"] {
        swaps = swaps && extended(&mut figures, swap(&etcd, &agents, label), report);
    }
    figures.extend(steady(&etcd, &agents, extent)?);
    let gap_s = gap(&mut etcd)?;
    figures.push(figure("without an answer, leader killed", gap_s, "s", Some(3.0)));
    if swaps {
        extended(&mut figures, swap(&etcd, &agents, "third (a member away)"), report);
    }
    let rows: Vec<_> = figures
        .into_iter()
        .map(|Figure { what, figure, unit, aim }| {
            let aim = aim.map_or_else(|| Cell::text("-"), |aim| Cell::Figure(aim, 1));
            vec![Cell::Text(what), Cell::Figure(figure, 2), aim, Cell::text(unit)]
        })
        .collect();
    report.table(
        "fleet",
        &format!(
            "One job on {nodes} nodes, simulated in one process, and {MEMBERS} members of etcd"
        ),
        &[("what", "what"), ("figure", "figure"), ("aim", "aim, at most"), ("unit", "unit")],
        &rows,
    );
    Ok(())
}

/// Takes in what was measured of a swap, or says why there is nothing. Returns whether there is.
fn extended(figures: &mut Vec<Figure>, swap: Result<[Figure; 4]>, report: &mut Report) -> bool {
    match swap {
        Ok(measured) => {
            figures.extend(measured);
            true
        }
        Err(error) => {
            report.note(&format!("A swap of the fleet is not measured: {error}."));
            false
        }
    }
}

/// Waits until the first agent sees all members.
async fn joined(agents: &Agents) -> Result<()> {
    let all = async {
        loop {
            let (answer, shown) = oneshot::channel();
            agents.first().send(Asked::Show(View::Whole, answer)).await?;
            let shared = shown.await?.shared;
            if shared.is_some_and(|shared| shared.members.len() == agents.jobs.len()) {
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, all).await.map_err(|_| "not all agents have joined the job")?
}

/// Swaps the whole job, and waits until every node has changed.
fn swap(etcd: &EtcdCluster, agents: &Agents, label: &str) -> Result<[Figure; 4]> {
    let before = agents.jobs[0].swaps().len();
    let began = Instant::now();
    let (attempts, step) = runtime()?.block_on(async {
        let store = Etcd::open(&settings(etcd, "node-0".parse()?)).await?;
        let mut stages = Vec::new();
        for stage in 0..STAGES {
            let slice = format!("{label} {stage} ").repeat(PLAN / STAGES);
            stages.push(store.publish(&job()?, &slice.as_bytes()[..PLAN / STAGES]).await?);
        }
        let run = Run::Plan(PlanCut {
            label: label.into(),
            num_microbatches: 1,
            predicted: None,
            stages,
        });
        timeout(PATIENCE, committed(agents, run))
            .await
            .map_err(|_| format!("none is committed within {} s", PATIENCE.as_secs()))?
    })?;
    let committed_s = began.elapsed().as_secs_f64();
    let mut asked = Vec::new();
    for job in &agents.jobs {
        asked.push(loop {
            match job.swaps().get(before) {
                Some(swap) if swap.at == step => break swap.asked,
                Some(swap) => {
                    return Err(format!("a node changes at {}, not {step}", swap.at).into());
                }
                None if began.elapsed() > PATIENCE => return Err("a node does not change".into()),
                None => thread::sleep(Duration::from_millis(5)),
            }
        });
    }
    // The next swap waits for this one.
    while agents.jobs[0].next_step() <= step + 1 {
        thread::sleep(Duration::from_millis(5));
    }
    let first = asked.iter().min().copied().unwrap_or(began);
    let mut samples = Samples::default();
    samples.extend(asked.iter().map(|asked| (*asked - first).as_nanos() as u64));
    let fan_out = samples.percentiles();
    Ok([
        figure(format!("{label} swap: committed after"), committed_s, "s", Some(3.0)),
        figure(format!("{label} swap: attempts"), f64::from(attempts), "", None),
        figure(format!("{label} swap: decision fans out, p50"), fan_out.p50_us / 1e3, "ms", None),
        figure(
            format!("{label} swap: decision fans out, p99"),
            fan_out.p99_us / 1e3,
            "ms",
            Some(500.0),
        ),
    ])
}

/// Wishes until the nodes agree. Returns how often, and the step at which they change.
async fn committed(agents: &Agents, run: Run) -> Result<(u32, u64)> {
    for attempts in 1.. {
        let (answer, told) = oneshot::channel();
        let (run, purpose) = (Some(run.clone()), Purpose::Swap);
        let asked = Asked::Run {
            run,
            by_uid: Uid(1000),
            purpose,
            terms: Terms::default(),
            holder: None,
            answer,
        };
        agents.first().send(asked).await?;
        match told.await? {
            Told::Committed { step, .. } => return Ok((attempts, step)),
            other => eprintln!("swap, attempt {attempts}: {other:?}"),
        }
        sleep(Duration::from_millis(200)).await;
    }
    Err("no attempt is left".into())
}

/// Every agent writes what it has measured as fast as etcd takes it, and not every 10 s: some minutes of a
/// day in a few seconds, from which the rest of the day follows, as all of it is alike.
fn steady(etcd: &EtcdCluster, agents: &Agents, extent: Extent) -> Result<[Figure; 5]> {
    agents.write_measured();
    let own = Process(Pid(std::process::id()));
    let (rounds, size) = (extent.of(30, 5), etcd.size());
    let (began, ticks) = (Instant::now(), own.cpu_ticks()?);
    (0..rounds).for_each(|_| agents.write_measured());
    let (took_s, grown) = (began.elapsed().as_secs_f64(), etcd.size().saturating_sub(size));
    let busy_s = own.cpu_ticks()?.saturating_sub(ticks) as f64 / 100.0;
    let (rounds, nodes) = (f64::from(rounds), agents.jobs.len() as f64);
    let per_round_mb = grown as f64 / 1e6 / rounds;
    Ok([
        figure("writes per second that agents need", nodes / ROUND_S, "/s", None),
        figure("writes per second that etcd took", nodes * rounds / took_s, "/s", None),
        figure("etcd grows in 5 min", per_round_mb * 300.0 / ROUND_S, "MB", None),
        figure("etcd writes in a day", per_round_mb * ROUNDS_A_DAY / 1e3, "GB", None),
        figure(
            "an agent on a core for it in a day",
            busy_s / nodes / rounds * ROUNDS_A_DAY,
            "s",
            None,
        ),
    ])
}

/// Kills the leader. Returns the longest time for which etcd answered one of some clients nothing.
fn gap(etcd: &mut EtcdCluster) -> Result<f64> {
    let leader = etcd.leader();
    runtime()?.block_on(async {
        let mut probes = Vec::new();
        for probe in 0..PROBES {
            let store = Etcd::open(&settings(etcd, format!("probe-{probe}").parse()?)).await?;
            probes.push(tokio::spawn(longest_gap(store)));
        }
        sleep(Duration::from_secs(2)).await;
        etcd.kill(leader);
        let mut longest = Duration::ZERO;
        for probe in probes {
            longest = longest.max(probe.await??);
        }
        Ok(longest.as_secs_f64())
    })
}

async fn longest_gap(store: Etcd) -> std::result::Result<Duration, String> {
    let job = job().map_err(|error| error.to_string())?;
    store.publish(&job, b"probe").await.map_err(|error| error.to_string())?;
    let (began, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
    while began.elapsed() < Duration::from_secs(12) || last.elapsed() > Duration::from_secs(1) {
        if store.publish(&job, b"probe").await.is_ok() {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        if began.elapsed() > PATIENCE {
            return Err("etcd does not answer any more".into());
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(longest)
}
