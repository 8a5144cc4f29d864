//! Starting the ranks, passing signals on, and collecting what they report.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{self, Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvidia_ml::driver::Driver;
use nvidia_ml::work::profile_csv;

use crate::args::LaunchArgs;
use crate::error::TrainerError;
use crate::identity::Identity;
use crate::inherited::let_inherit;
use crate::misbehaviour::Misbehaviour;
use crate::rank_report::RankEvent;
use crate::report::{Progress, TrainingReport};
use crate::settings::{GpuName, RankSettings};
use crate::stop;

/// Trains as the arguments say; true if all ranks came to a good end.
pub(crate) fn launch(args: LaunchArgs) -> Result<bool, TrainerError> {
    let (json, progress) = (args.json, args.progress);
    let settings = settings(args)?;
    let ranks = Arc::new(Mutex::new(Vec::new()));
    let requests = pass_signals_on(ranks.clone())?;
    let mut children = start(&settings)?;
    ranks
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .extend(children.iter().map(|rank| Pid::from_raw(rank.id() as i32)));
    if requests.load(Ordering::Acquire) > 0 {
        // It came before there was anybody to pass it on to.
        signal_all(&ranks, Signal::SIGTERM);
    }

    let mut report = TrainingReport::new(&settings);
    for (rank, event) in events(&mut children) {
        if let Some(Progress { step, time_s }) = report.add(rank, event)
            && progress
        {
            eprintln!("step {step} done in {time_s:.3} s");
        }
    }
    for (rank, child) in children.iter_mut().enumerate() {
        let status = child.wait().map_err(TrainerError::system("wait for a rank"))?;
        report.end(rank, status);
    }
    report.finish(requests.load(Ordering::Acquire) > 0);
    let text = if json { report.to_json() } else { report.to_text() };
    // A reader that went away has seen enough.
    let _ = writeln!(io::stdout().lock(), "{text}");
    Ok(report.all_went_well())
}

fn settings(args: LaunchArgs) -> Result<Vec<RankSettings>, TrainerError> {
    let stages = match (&args.profile, args.stages) {
        (None, stages) => usize::from(stages.unwrap_or(4)),
        (Some(path), wanted) => {
            let found = profile_csv::read(path)?.len();
            if let Some(wanted) = wanted.map(usize::from)
                && wanted != found
            {
                return Err(TrainerError::Stages { path: path.clone(), found, wanted });
            }
            found
        }
    };
    let replicas = usize::from(args.replicas);
    let ranks = stages * replicas;
    check_places(&args, ranks)?;
    let gpus = if args.gpus.is_empty() { (0..ranks).collect() } else { args.gpus };
    if gpus.len() != ranks {
        return Err(TrainerError::GpuCount { named: gpus.len(), ranks });
    }
    check_gpus(&args.state, &args.socket, &gpus)?;
    let identity = match (&args.user, args.uid) {
        (Some(name), _) => Some(Identity::of_user(name, &args.groups)?),
        (None, Some(uid)) => Some(Identity::of_uid(uid, args.gid, &args.groups)?),
        (None, None) => None,
    };
    let job = args
        .job
        .or_else(|| env::var("PFO_JOB").ok().filter(|job| !job.is_empty()))
        .unwrap_or_else(|| format!("sim-{}", process::id()));
    let misbehaviour = Misbehaviour::from(args.misbehaviour);
    let settings = |(rank, gpu)| RankSettings {
        state: of_rank(&args.state, rank).unwrap_or_default(),
        stage: rank % stages,
        stages,
        replica: rank / stages,
        replicas,
        gpu,
        gpu_name: args.gpu_name,
        microbatches: args.microbatches,
        steps: args.steps,
        step_pause_ms: args.step_pause_ms,
        transfer_ms: args.transfer_ms,
        profile: args.profile.clone(),
        time_scale: args.time_scale,
        job: job.clone(),
        socket: of_rank(&args.socket, rank),
        with_pfo: !args.no_pfo,
        clocks: args.clocks,
        identity: identity.clone(),
        misbehaviour: misbehaviour.clone(),
        tcp: args.tcp.clone(),
        namespace: args.namespace.get(rank).cloned(),
        patience_s: args.patience_s,
        previous_fd: None,
        next_fd: None,
        replica_fds: Vec::new(),
        launcher: process::id() as i32,
    };
    Ok(gpus.into_iter().enumerate().map(settings).collect())
}

/// Checks that every rank has an address and a namespace, if any has.
fn check_places(args: &LaunchArgs, ranks: usize) -> Result<(), TrainerError> {
    for (what, named) in [("addresses", args.tcp.len()), ("namespaces", args.namespace.len())] {
        if named > 0 && named != ranks {
            return Err(TrainerError::PlaceCount { what, named, ranks });
        }
    }
    Ok(())
}

/// Checks that every rank has a GPU of its own.
fn check_gpus(states: &[PathBuf], sockets: &[PathBuf], gpus: &[usize]) -> Result<(), TrainerError> {
    let ranks = gpus.len();
    for named in [states.len(), sockets.len()] {
        if named > 1 && named != ranks {
            return Err(TrainerError::MachineCount { named, ranks });
        }
    }
    let machine = |rank| of_rank(states, rank).unwrap_or_default();
    let machines: Vec<_> = (0..ranks).map(machine).collect();
    for (rank, &gpu) in gpus.iter().enumerate() {
        Driver::open(&machines[rank])?.gpu(gpu)?;
        let is_same = |other: usize| (&machines[other], gpus[other]) == (&machines[rank], gpu);
        if (0..rank).any(is_same) {
            return Err(TrainerError::GpuTwice(gpu));
        }
    }
    Ok(())
}

/// That of a rank, of which there is one for each or one for all.
fn of_rank(paths: &[PathBuf], rank: usize) -> Option<PathBuf> {
    paths.get(rank).or(paths.last()).cloned()
}

/// Starts all ranks, each with its ends of the sockets to its neighbours and no others.
fn start(settings: &[RankSettings]) -> Result<Vec<Child>, TrainerError> {
    let mut children = Vec::new();
    let mut previous = None;
    let replicas = between_replicas(settings).map_err(TrainerError::system("join replicas"))?;
    for (rank, replicas) in settings.iter().zip(replicas) {
        let is_last = rank.stage + 1 == rank.stages;
        let pair = if is_last || !rank.tcp.is_empty() { None } else { Some(UnixStream::pair()) };
        let started = pair.transpose().and_then(|pair| {
            let (next, previous_of_next) = pair.unzip();
            let child = start_rank(rank, previous.take().as_ref(), next.as_ref(), &replicas)?;
            previous = previous_of_next;
            Ok(child)
        });
        match started {
            Ok(child) => children.push(child),
            Err(source) => {
                // Those that run already have lost their neighbour, and end.
                drop(previous);
                for child in &mut children {
                    let _ = child.wait();
                }
                return Err(TrainerError::System { action: "start a rank", source });
            }
        }
    }
    Ok(children)
}

/// For each rank its ends of the sockets between replicas: of every stage, the first replica has one
/// to each of the others.
fn between_replicas(settings: &[RankSettings]) -> io::Result<Vec<Vec<UnixStream>>> {
    let mut ends: Vec<Vec<UnixStream>> = settings.iter().map(|_| Vec::new()).collect();
    let joined = settings.iter().enumerate();
    for (rank, of_rank) in joined.filter(|(_, rank)| rank.replica > 0 && rank.tcp.is_empty()) {
        let (first, other) = UnixStream::pair()?;
        ends[of_rank.stage].push(first);
        ends[rank].push(other);
    }
    Ok(ends)
}

fn start_rank(
    settings: &RankSettings,
    previous: Option<&UnixStream>,
    next: Option<&UnixStream>,
    replicas: &[UnixStream],
) -> io::Result<Child> {
    previous.into_iter().chain(next).chain(replicas).try_for_each(let_inherit)?;
    let settings = RankSettings {
        previous_fd: previous.map(AsRawFd::as_raw_fd),
        next_fd: next.map(AsRawFd::as_raw_fd),
        replica_fds: replicas.iter().map(AsRawFd::as_raw_fd).collect(),
        ..settings.clone()
    };
    let program = env::current_exe()?;
    let mut command = match &settings.namespace {
        None => Command::new(program),
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(program);
            command
        }
    };
    command.arg("rank").arg(serde_json::to_string(&settings)?);
    if settings.gpu_name == GpuName::Cuda {
        command.env("CUDA_VISIBLE_DEVICES", uuid_of(&settings)?);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

fn uuid_of(settings: &RankSettings) -> io::Result<String> {
    let driver = Driver::open(&settings.state).map_err(io::Error::other)?;
    let gpu = driver.gpu(settings.gpu).map_err(io::Error::other)?;
    Ok(gpu.uuid().to_string())
}

/// All lines of all ranks as they come, until the last rank has closed its end.
fn events(children: &mut [Child]) -> mpsc::IntoIter<(usize, RankEvent)> {
    let (sender, receiver) = mpsc::channel();
    for (rank, child) in children.iter_mut().enumerate() {
        if let Some(output) = child.stdout.take() {
            let sender = sender.clone();
            thread::spawn(move || read_rank(rank, output, &sender));
        }
    }
    receiver.into_iter()
}

fn read_rank(rank: usize, output: ChildStdout, sender: &mpsc::Sender<(usize, RankEvent)>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if let Ok(event) = serde_json::from_str(&line)
            && sender.send((rank, event)).is_err()
        {
            return;
        }
    }
}

/// Passes requests to stop on to the ranks; the second one kills them. Returns their count.
fn pass_signals_on(ranks: Arc<Mutex<Vec<Pid>>>) -> Result<Arc<AtomicUsize>, TrainerError> {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    stop::on_request(move || {
        let first = counted.fetch_add(1, Ordering::AcqRel) == 0;
        signal_all(&ranks, if first { Signal::SIGTERM } else { Signal::SIGKILL });
        // One that was stopped can only end when it runs again.
        signal_all(&ranks, Signal::SIGCONT);
    })
    .map_err(TrainerError::system("wait for signals"))?;
    Ok(requests)
}

fn signal_all(ranks: &Mutex<Vec<Pid>>, signal: Signal) {
    for rank in ranks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        // It may have ended.
        let _ = kill(*rank, signal);
    }
}
