//! One rank: one stage of the pipeline on one GPU, trained as any trainer would.

use std::cell::{Cell, RefCell};
use std::env;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid, getuid};
use nvidia_ml::attachment::Attachment;
use nvidia_ml::driver::Driver;
use nvidia_ml::gpu_state::Activity;
use nvidia_ml::machine::devices;
use nvidia_ml::random::SplitMix;
use nvidia_ml::units::MonotonicNs;
use nvidia_ml::work::table::{Kind, StageWork};
use nvidia_ml::work::{built_in, profile_csv};
use pfo::{Call, DescriptionError, Instruction, RankDescription, Session, Stage};

use crate::computation::{activity_of, begin, energy_j, noise, rest_until, wait_for};
use crate::error::TrainerError;
use crate::inherited;
use crate::misbehaviour::is_now;
use crate::neighbours::{Input, Neighbours, Tensor};
use crate::rank_report::{End, RankEvent, tell};
use crate::schedule::one_forward_one_backward;
use crate::settings::{GpuName, RankSettings};
use crate::stop::StopFlag;
use crate::tcp;

/// Runs the rank that the settings describe.
pub(crate) fn run(settings: &str) -> Result<(), TrainerError> {
    let settings: RankSettings = serde_json::from_str(settings)
        .map_err(|source| TrainerError::Settings { rank: "unknown", source })?;
    let neighbours = neighbours(&settings)?;
    if let Some(identity) = &settings.identity {
        identity.assume()?;
    }
    end_with_the_launcher(&settings)?;
    let sockets = neighbours.handles().map_err(TrainerError::system("share a socket"))?;
    let stop = StopFlag::new(sockets).map_err(TrainerError::system("wait for signals"))?;
    // Sleeps shall end when they should, not up to 50 us later.
    let _ = prctl::set_timerslack(1);

    let driver = Arc::new(Driver::open(&settings.state)?);
    let attachment = Attachment::new(driver, settings.gpu)?;
    let work = work_of(&settings, &attachment)?;
    for (kind, activity) in Kind::ALL.into_iter().map(|kind| (kind, activity_of(kind))) {
        if let Activity::Computing(curve) = activity {
            attachment.install_curve(curve, work.of(kind).curve())?;
        }
    }
    let session = open_session(&settings, &attachment)?;
    let problem = session.as_ref().and_then(Session::problem);
    if let Some(problem) = &problem {
        eprintln!("rank {}: training at default clocks: {problem}", settings.rank());
    }
    tell(&RankEvent::Started {
        pid: process::id(),
        uid: getuid().as_raw(),
        gpu_uuid: attachment.gpu().uuid().to_string(),
        problem: problem.map(Into::into),
    });

    let session = session.map(Arc::new);
    let floods = Cell::new(false);
    let random = RefCell::new(SplitMix::new(attachment.gpu().serial()));
    let rank = Rank { settings, attachment, work, session, neighbours, stop, floods, random };
    let end = rank.train()?;
    rank.attachment.set_activity(Activity::Idle)?;
    tell(&RankEvent::Ended {
        end,
        problem: rank.session.as_ref().and_then(|session| session.problem()).map(Into::into),
        counters: rank
            .session
            .as_ref()
            .map(|session| session.counters().into())
            .unwrap_or_default(),
    });
    Ok(())
}

fn neighbours(settings: &RankSettings) -> Result<Neighbours, TrainerError> {
    let neighbours = if settings.tcp.is_empty() {
        let take = |fd: Option<i32>| {
            let taken = fd.map(inherited::take).transpose();
            taken.map_err(TrainerError::system("take over a socket"))
        };
        let replicas = settings.replica_fds.iter().filter_map(|fd| take(Some(*fd)).transpose());
        let replicas = replicas.collect::<Result<_, _>>()?;
        Neighbours::new(take(settings.previous_fd)?, take(settings.next_fd)?)
            .beside(replicas, settings.replica == 0)
    } else {
        tcp::join(settings).map_err(TrainerError::system("join the other ranks over TCP"))?
    };
    let patience = Some(settings.patience_s).filter(|patience_s| *patience_s > 0);
    let patience = patience.map(|patience_s| Duration::from_secs(patience_s.into()));
    neighbours.set_patience(patience).map_err(TrainerError::system("set a socket's patience"))?;
    Ok(neighbours)
}

/// The kernel tells a rank to stop when its launcher has died.
fn end_with_the_launcher(settings: &RankSettings) -> Result<(), TrainerError> {
    prctl::set_pdeathsig(Signal::SIGTERM)
        .map_err(|errno| TrainerError::system("tie the rank to its launcher")(errno.into()))?;
    if getppid() != Pid::from_raw(settings.launcher) {
        process::exit(1);
    }
    Ok(())
}

fn work_of(settings: &RankSettings, attachment: &Attachment) -> Result<StageWork, TrainerError> {
    let work = match &settings.profile {
        None => built_in::stage(attachment.gpu().facts(), settings.stage, settings.stages)?,
        Some(path) => {
            let mut stages = profile_csv::read(path)?;
            if stages.len() != settings.stages {
                let (path, found) = (path.clone(), stages.len());
                return Err(TrainerError::Stages { path, found, wanted: settings.stages });
            }
            stages.swap_remove(settings.stage)
        }
    };
    Ok(work.scaled(settings.time_scale))
}

/// The device files of a simulated machine, unless the environment names others.
pub(crate) fn devices_of(state: &Path) -> Option<PathBuf> {
    env::var_os("PFO_DEVICES").is_none().then(|| devices(state))
}

fn open_session(
    settings: &RankSettings,
    attachment: &Attachment,
) -> Result<Option<Session>, TrainerError> {
    if !settings.with_pfo {
        return Ok(None);
    }
    let gpu = attachment.gpu();
    let name = match settings.gpu_name {
        GpuName::Uuid => gpu.uuid().to_string(),
        GpuName::Pci => gpu.pci().to_string(),
        // The launcher made this GPU the only one that CUDA would see.
        GpuName::Cuda => "cuda:0".to_owned(),
    };
    let description = RankDescription {
        job: Some(settings.job.clone()),
        gpu: Some(
            name.parse().map_err(|error| DescriptionError::Gpu { source_of_name: "gpu", error })?,
        ),
        socket: settings.socket.clone(),
        devices: devices_of(&settings.state),
        rank: pfo::Rank(settings.rank()),
        pp_rank: Stage::try_from(settings.stage as u32)
            .map_err(|_| DescriptionError::Stage(settings.stage as u32))?,
        pp_degree: settings.stages as u32,
        dp_rank: pfo::DpRank(settings.replica as u32),
        dp_degree: settings.replicas as u32,
        num_microbatches: Some(settings.microbatches),
        ..RankDescription::default()
    };
    Ok(Some(Session::open(description)?))
}

fn announced(kind: Kind) -> Instruction {
    match kind {
        Kind::Forward => Instruction::Forward,
        Kind::Backward => Instruction::Backward,
    }
}

fn other(kind: Kind) -> Kind {
    match kind {
        Kind::Forward => Kind::Backward,
        Kind::Backward => Kind::Forward,
    }
}

struct Rank {
    settings: RankSettings,
    attachment: Attachment,
    work: StageWork,
    session: Option<Arc<Session>>,
    neighbours: Neighbours,
    stop: StopFlag,
    /// Whether a flood is under way.
    floods: Cell<bool>,
    random: RefCell<SplitMix>,
}

impl Rank {
    fn train(&self) -> Result<End, TrainerError> {
        let settings = &self.settings;
        let order =
            one_forward_one_backward(settings.stage, settings.stages, settings.microbatches);
        let mut step = 0;
        while settings.steps == 0 || step < settings.steps {
            if !self.step(step, &order)? {
                let stopped = self.stop.is_risen();
                return Ok(if stopped { End::Stopped } else { End::NeighbourGone });
            }
            step += 1;
            self.pause()?;
        }
        Ok(End::Completed)
    }

    /// What a trainer does between two steps without its GPU.
    fn pause(&self) -> Result<(), TrainerError> {
        if self.settings.step_pause_ms > 0 {
            self.attachment.set_activity(Activity::Idle)?;
            let pause = Duration::from_millis(self.settings.step_pause_ms);
            rest_until(MonotonicNs::now().after(pause), &self.stop);
        }
        Ok(())
    }

    /// Waits until all replicas have done their passes; false if one is gone.
    fn meet_replicas(&self) -> Result<bool, TrainerError> {
        if !self.neighbours.has_replicas() {
            return Ok(true);
        }
        self.attachment.set_activity(Activity::Blocked)?;
        self.neighbours.meet_replicas().map_err(lost)
    }

    /// Runs one step; false if it cannot be finished.
    fn step(&self, step: u64, order: &[(Kind, u32)]) -> Result<bool, TrainerError> {
        let rank = self.settings.rank();
        let misbehaviour = &self.settings.misbehaviour;
        let (energy, sets) = (energy_j(&self.attachment)?, self.attachment.gpu().set_call_count());
        tell(&RankEvent::StepBegin { step, at_ns: MonotonicNs::now().0 });
        if is_now(&misbehaviour.flood, rank, step) {
            self.flood();
        }
        self.with_session(Session::step_begin);
        let mut omit_end = is_now(&misbehaviour.omit_end, rank, step);
        let swap_names = is_now(&misbehaviour.wrong_order, rank, step);
        let mut clocks = Vec::new();
        for &(kind, microbatch) in order {
            if !self.receive(Tensor { kind, step, microbatch })? {
                return Ok(false);
            }
            let name = announced(if swap_names { other(kind) } else { kind });
            let work = &self
                .work
                .of(kind)
                .clone()
                .scaled(noise(&self.attachment, &mut self.random.borrow_mut()));
            let under_way = begin(&self.attachment, activity_of(kind), work)?;
            // When it began and ended is known of the GPU, as it is from CUDA's events: how late
            // this process is woken says nothing about an instruction.
            let begin = Call::InstructionBegin {
                instruction: name,
                chunk: 0,
                microbatch: Some(microbatch),
            };
            self.with_session(|session| session.tell_at(begin, under_way.began.0));
            if kind == Kind::Backward && microbatch == 0 {
                self.fail_if_told(step);
            }
            let Some(done) = wait_for(&self.attachment, under_way, work, &self.stop)? else {
                return Ok(false);
            };
            if self.settings.clocks {
                clocks.push(self.attachment.clocks_of(&under_way, done));
            }
            if !std::mem::take(&mut omit_end) {
                self.with_session(|session| session.tell_at(Call::InstructionEnd, done.0));
            }
            self.attachment.wait_for_transfer();
            let transfer = Duration::from_secs_f64(self.settings.transfer_ms / 1e3);
            let tensor = Tensor { kind, step, microbatch };
            if !self.neighbours.send(tensor, done.after(transfer)).map_err(lost)? {
                return Ok(false);
            }
        }
        if !self.meet_replicas()? {
            return Ok(false);
        }
        self.with_session(Session::step_end);
        tell(&RankEvent::StepEnd {
            step,
            at_ns: MonotonicNs::now().0,
            energy_j: energy_j(&self.attachment)? - energy,
            clock_changes: self.attachment.gpu().set_call_count() - sets,
            clocks,
        });
        Ok(true)
    }

    /// Gets the input of a pass, and blocks the GPU while it is not there; false if it never comes.
    fn receive(&self, expected: Tensor) -> Result<bool, TrainerError> {
        if !self.neighbours.has_input(expected.kind).map_err(lost)? {
            self.attachment.set_activity(Activity::Blocked)?;
        }
        match self.neighbours.receive(expected.kind).map_err(lost)? {
            Input::Lost => Ok(false),
            Input::Tensor(got, _) if got != expected => Err(TrainerError::WrongMessage {
                rank: self.settings.rank(),
                expected: expected.to_string(),
                got: got.to_string(),
            }),
            Input::NotNeeded => Ok(true),
            Input::Tensor(_, arrives) => {
                if arrives > MonotonicNs::now() {
                    self.attachment.set_activity(Activity::Blocked)?;
                    rest_until(arrives, &self.stop);
                }
                self.attachment.wait_for_transfer();
                Ok(true)
            }
        }
    }

    fn with_session(&self, call: impl FnOnce(&Session)) {
        if let Some(session) = &self.session {
            call(session);
        }
    }

    /// Dies or stops in the middle of an instruction, if this is the step for it.
    fn fail_if_told(&self, step: u64) {
        let (rank, misbehaviour) = (self.settings.rank(), &self.settings.misbehaviour);
        for (occasions, signal) in
            [(&misbehaviour.die, Signal::SIGKILL), (&misbehaviour.stop, Signal::SIGSTOP)]
        {
            if is_now(occasions, rank, step) {
                // To oneself this cannot fail.
                let _ = kill(Pid::this(), signal);
            }
        }
    }

    /// From now on, events without a pause, until the process ends.
    fn flood(&self) {
        let Some(session) = self.session.clone() else { return };
        if self.floods.replace(true) {
            return;
        }
        std::thread::spawn(move || {
            loop {
                session.instruction_begin(Instruction::Other, 0);
                session.instruction_end();
            }
        });
    }
}

fn lost(error: std::io::Error) -> TrainerError {
    TrainerError::system("talk to a neighbour stage")(error)
}
