//! The thread that connects, sends the hello and reconnects. While there is a lease it only looks, once a
//! second, whether the daemon reads: the end of a connection is noticed by the event that cannot be sent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use pfo_protocol::{
    ClientMessage, ClosingReason, DaemonMessage, GpuListing, GpuName, GpuUuid, Hello,
};

use crate::backoff::Backoff;
use crate::cuda;
use crate::description::CheckedRank;
use crate::devices::{self, Device};
use crate::first_plan;
use crate::gpu::Gpu;
use crate::lease::Lease;
use crate::line::Phase;
use crate::link::{LIST_ANSWER, Link, SESSION_ANSWER};
use crate::problem::{Problem, ProblemCode};
use crate::shared::Shared;
use crate::thread;

/// What this client is called.
const CLIENT: &str = concat!("libpfo ", env!("CARGO_PKG_VERSION"));

/// How long a daemon may take to answer. Longer than a trainer wants to wait: a daemon that systemd
/// has only just started for this connection looks for its GPUs first.
const ANSWER_TIME: Duration = Duration::from_secs(10);
const LONGEST_ANSWER_TIME: Duration = Duration::from_secs(3600);

/// How long the reason may follow the end of a connection.
const LAST_WORD: Duration = Duration::from_millis(500);

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A connection that ends sooner than this was none: the next attempt does not start from scratch.
const STEADY: Duration = Duration::from_secs(1);

const SAY_WHICH: &str =
    "name the GPU when the session is opened (gpu), or set PFO_GPU for each rank";

/// Starts the thread, which ends soon after the session is closed.
pub(crate) fn start(shared: &Arc<Shared>) {
    let background = Arc::clone(shared);
    let builder = Builder::new().name("pfo".into()).stack_size(256 * 1024);
    let started = thread::start(builder, move || run(&background));
    if let Err(error) = started {
        shared.fail(Problem::no_thread(&error));
    }
}

fn run(shared: &Shared) {
    let work = AssertUnwindSafe(|| Connector::new(shared).run());
    if catch_unwind(work).is_err() {
        shared.fail(Problem::internal("its background thread panicked"));
    }
}

struct Connector<'a> {
    shared: &'a Shared,
    backoff: Backoff,
    gpu: Option<GpuName>,
    connected_at: Option<Instant>,
    /// When it was last looked whether the daemon reads.
    looked_at: Option<Instant>,
    /// Whether it is known what became of the plan with which the job begins.
    checked_plan: bool,
}

/// What the state of the session asks of the thread.
enum Task {
    Connect,
    FindOutWhy(Option<Arc<Link>>),
    Stop,
}

impl<'a> Connector<'a> {
    fn new(shared: &'a Shared) -> Self {
        let rank = u64::from(shared.rank.position.rank.0);
        let process = u64::from(std::process::id());
        Self {
            shared,
            backoff: Backoff::new(((rank + 1) << 32 | process).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            gpu: None,
            connected_at: None,
            looked_at: None,
            checked_plan: false,
        }
    }

    fn run(mut self) {
        first_plan::bring(self.shared);
        loop {
            match self.next_task() {
                Task::Stop => return,
                Task::FindOutWhy(link) => self.find_out_why(link),
                Task::Connect => match self.connect() {
                    Ok((link, lease)) => self.hand_over(link, lease),
                    Err(problem) => {
                        self.forget_old_failures();
                        let delay = self.backoff.after(&problem);
                        self.shared.fail(problem);
                        self.shared.pause(delay);
                    }
                },
            }
        }
    }

    fn next_task(&mut self) -> Task {
        let mut line = self.shared.lock();
        loop {
            match &mut line.phase {
                Phase::Closed => return Task::Stop,
                Phase::Connecting => return Task::Connect,
                Phase::Lost(link) => {
                    let link = link.take();
                    line.phase = Phase::Connecting;
                    return Task::FindOutWhy(link);
                }
                Phase::Dormant => line = self.shared.wait(line),
                Phase::Connected(_) => {
                    let looked_at = *self.looked_at.get_or_insert_with(Instant::now);
                    let left = LOOK_EVERY.saturating_sub(looked_at.elapsed());
                    if left.is_zero() {
                        line.look_for_a_hang();
                        self.looked_at = None;
                    } else {
                        line = self.shared.wait_at_most(line, left);
                    }
                }
            }
        }
    }

    /// Learns from a dead connection why it died, and waits as long as that advises.
    fn find_out_why(&mut self, link: Option<Arc<Link>>) {
        let reason = link.map(|link| {
            let reason = link.late_farewell(LAST_WORD);
            reason.unwrap_or_else(|| Problem::lost("the socket failed"))
        });
        let mut line = self.shared.lock();
        if reason.is_some() {
            line.problem = reason;
        }
        let Some(problem) = line.problem.clone() else {
            return;
        };
        drop(line);
        let steady = self.forget_old_failures();
        // The event that found the lease gone is the one that asks for a new one.
        if !(steady && problem.code == ProblemCode::Closed(ClosingReason::Idle)) {
            self.shared.pause(self.backoff.after(&problem));
        }
    }

    /// Lets the delays start from scratch if there was a real connection since the last failure.
    fn forget_old_failures(&mut self) -> bool {
        let connected_at = self.connected_at.take();
        let steady = connected_at.is_some_and(|at| at.elapsed() >= STEADY);
        if steady {
            self.backoff.reset();
        }
        steady
    }

    fn hand_over(&mut self, link: Arc<Link>, lease: Lease) {
        if !std::mem::replace(&mut self.checked_plan, true) {
            first_plan::check(self.shared);
        }
        self.connected_at = Some(Instant::now());
        let mut line = self.shared.lock();
        line.attempt = None;
        line.settled = true;
        match line.phase {
            Phase::Closed => link.goodbye(),
            _ => line.connected(link, lease),
        }
        self.shared.notify();
    }

    fn connect(&mut self) -> Result<(Arc<Link>, Lease), Problem> {
        let gpu = self.gpu()?;
        let link = self.dial()?;
        let hello = ClientMessage::Hello(self.hello(gpu));
        match self.ask(&link, &hello, SESSION_ANSWER, self.devices())? {
            DaemonMessage::Welcome(welcome) => Ok((link, welcome.into())),
            other => Err(unwelcome(other)),
        }
    }

    fn hello(&self, gpu: GpuName) -> Hello {
        let rank = &self.shared.rank;
        Hello {
            client: match &rank.run {
                Some(run) => Hello::client_in_run(CLIENT, run),
                None => CLIENT.to_owned(),
            },
            job: rank.job.clone(),
            position: rank.position.clone(),
            gpu,
            num_microbatches: rank.num_microbatches.map(Into::into),
            next_step: self.shared.lock().next_step(),
        }
    }

    /// Which GPU the rank drives, found out once.
    fn gpu(&mut self) -> Result<GpuName, Problem> {
        if let Some(gpu) = &self.gpu {
            return Ok(gpu.clone());
        }
        let gpu = match &self.shared.rank.gpu {
            Some(Gpu::Uuid(uuid)) => GpuName::Uuid(uuid.clone()),
            Some(Gpu::PciBusId(id)) => GpuName::PciBusId(id.clone()),
            Some(Gpu::CudaOrdinal(ordinal)) if self.shared.rank.gpu_is_named => {
                GpuName::Uuid(self.uuid_of(*ordinal)?)
            }
            launched => GpuName::Uuid(self.driven(launched.as_ref())?),
        };
        self.gpu = Some(gpu.clone());
        Ok(gpu)
    }

    /// The GPU that this process works on, whoever says so: CUDA, or the launcher by its local rank.
    fn driven(&self, launched: Option<&Gpu>) -> Result<GpuUuid, Problem> {
        let launched = match launched {
            Some(Gpu::CudaOrdinal(ordinal)) => Some(*ordinal),
            _ => None,
        };
        match (cuda::only_context(), launched) {
            // A launcher counts the GPUs of the node, CUDA those of the container.
            (Some(ordinal), Some(_)) if self.devices().len() == 1 => self.uuid_of(ordinal),
            (Some(works_on), Some(launched)) if works_on != launched => Err(Problem::unresolved(
                format!(
                    "the launcher's local rank is {launched}, but this process works on cuda:{works_on} only"
                ),
                SAY_WHICH,
            )),
            (Some(ordinal), _) | (None, Some(ordinal)) => self.uuid_of(ordinal),
            (None, None) => self.only_gpu(),
        }
    }

    /// The GPU of a process that nobody gave any, if there is no choice.
    fn only_gpu(&self) -> Result<GpuUuid, Problem> {
        let devices = self.devices();
        if devices.len() == 1 {
            return self.uuid_of(0);
        }
        match &self.gpus_of_the_node(devices)?[..] {
            [only] => Ok(only.uuid.clone()),
            several => Err(Problem::unresolved(
                format!(
                    "nothing says which of {} GPUs rank {} drives",
                    several.len(),
                    self.shared.rank.position.rank.0
                ),
                SAY_WHICH,
            )),
        }
    }

    fn uuid_of(&self, ordinal: u32) -> Result<GpuUuid, Problem> {
        let CheckedRank { gpu_is_named, cuda, .. } = &self.shared.rank;
        let devices = self.devices();
        let openable = devices.len();
        // A launcher's local rank counts the GPUs of the node, of which this process has one.
        let ordinal = if openable == 1 && !gpu_is_named { 0 } else { ordinal };
        match cuda::gpu(ordinal)? {
            Some(uuid) => Ok(uuid),
            None => cuda.gpu(ordinal, &self.gpus_of_the_node(devices)?, openable),
        }
    }

    fn devices(&self) -> Vec<Device> {
        devices::open(&self.shared.rank.devices)
    }

    /// The GPUs that these are the device files of; all of the node if none is.
    fn gpus_of_the_node(&self, devices: Vec<Device>) -> Result<Vec<GpuListing>, Problem> {
        let link = self.dial()?;
        match self.ask(&link, &ClientMessage::ListGpus, LIST_ANSWER, devices)? {
            DaemonMessage::GpuList(Ok(gpus)) => Ok(gpus),
            DaemonMessage::GpuList(Err(refusal)) => Err(Problem::refused(refusal)),
            other => Err(unwelcome(other)),
        }
    }

    /// Connects, where `close` can see it and interrupt the wait for an answer.
    fn dial(&self) -> Result<Arc<Link>, Problem> {
        let CheckedRank { socket, groups, .. } = &self.shared.rank;
        let link =
            Link::connect(socket).map_err(|errno| Problem::connecting(socket, errno, *groups))?;
        let link = Arc::new(link);
        let mut line = self.shared.lock();
        if let Phase::Closed = line.phase {
            return Err(Problem::lost("the session is closed"));
        }
        line.attempt = Some(Arc::clone(&link));
        Ok(link)
    }

    fn ask(
        &self,
        link: &Link,
        question: &ClientMessage,
        limit: usize,
        devices: Vec<Device>,
    ) -> Result<DaemonMessage, Problem> {
        let rank = &self.shared.rank;
        let patience = rank.setup_timeout.clamp(ANSWER_TIME, LONGEST_ANSWER_TIME);
        let said = link.say_with(question, &devices);
        drop(devices);
        let answer = match said {
            Ok(()) => link.answer(limit, Instant::now() + patience),
            // A daemon that is full answers before it is asked, and hangs up.
            Err(problem) => Err(link.farewell().unwrap_or(problem)),
        };
        self.shared.lock().attempt = None;
        answer?.ok_or_else(|| Problem::no_answer(&rank.socket))
    }
}

fn unwelcome(message: DaemonMessage) -> Problem {
    match message {
        DaemonMessage::Refusal(refusal) => Problem::refused(refusal),
        DaemonMessage::Closing(closing) => Problem::closed(closing),
        DaemonMessage::Unsupported(spoken) => Problem::unsupported(spoken),
        _ => Problem::garbled("it answers something else"),
    }
}
