//! A `pfod` that does what a test says: it knows one job of one rank, and its trials are played.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use pfo_protocol::{
    ClientMessage, ClockTable, ConfigStatus, CounterReading, DaemonMessage, DaemonStatus, DpRank,
    HEADER_BYTES, Header, Instruction, JobView, MeasuredBy, Mhz, Notice, Pid, PlanStatus, Rank,
    RankPosition, RankView, Refusal, RefusalCode, Request, Response, SessionId, SettleTimes, Stage,
    Status, SwapTarget, Swapped, TapBatch, TapRecord, TappedRank, ThrottledNs, TpRank, TrialRun,
    Uid, Unit,
};

const MS: u64 = 1_000_000;

/// What the next trials do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trials {
    /// They are measured.
    Succeed,
    /// They are measured, but the tap drops a record of each.
    LoseEvents,
    /// They do not end before this changes.
    Stall,
    /// The number of trials after which `pfod` vanishes in the middle of the next one.
    VanishAfter(u32),
}

/// Everything that tests see and change.
pub(crate) struct State {
    pub(crate) job: JobView,
    pub(crate) running: Option<ClockTable>,
    pub(crate) trials: Trials,
    /// In whose name connections acted, and whether as an administrator.
    pub(crate) asked_for: Vec<(Uid, bool)>,
    /// The clocks of the trials that were measured; none at default clocks.
    pub(crate) measured: Vec<Option<Mhz>>,
    pub(crate) swaps: Vec<SwapTarget>,
    /// Trials that stalled.
    pub(crate) stalled: u32,
    streams: Vec<UnixStream>,
    taps: Vec<UnixStream>,
    watchers: Vec<UnixStream>,
    pub(crate) listens: bool,
    now_ns: u64,
    step: u64,
}

#[derive(Clone)]
pub(crate) struct ScriptedPfod {
    socket: PathBuf,
    state: Arc<Mutex<State>>,
}

pub(crate) fn job(uid: u32) -> JobView {
    let position = RankPosition {
        rank: Rank(0),
        pp_rank: Stage(0),
        dp_rank: DpRank(0),
        tp_rank: TpRank(0),
        pp_degree: 1,
        dp_degree: 1,
        tp_degree: 1,
    };
    let rank = RankView {
        position,
        session: SessionId(1),
        run: None,
        gpu_uuid: "GPU-1".parse().unwrap(),
        gpu_model: "A100".into(),
        sm_clocks: [900, 1200, 1410].map(Mhz).to_vec(),
        counts_energy: true,
        num_microbatches: Some(1),
        swap: 0,
        step: Some(1),
        window: None,
        meter: None,
        problem: None,
    };
    JobView {
        job: "j".parse().unwrap(),
        uid: Uid(uid),
        pp_degree: 1,
        plan: None,
        swap: 0,
        measured_by: None,
        ranks: vec![rank],
    }
}

impl ScriptedPfod {
    /// One that does not listen yet.
    pub(crate) fn at(socket: &Path, uid: u32) -> Self {
        let state = State {
            job: job(uid),
            running: None,
            trials: Trials::Succeed,
            asked_for: Vec::new(),
            measured: Vec::new(),
            swaps: Vec::new(),
            stalled: 0,
            streams: Vec::new(),
            taps: Vec::new(),
            watchers: Vec::new(),
            listens: false,
            now_ns: 1000 * MS,
            step: 1,
        };
        Self { socket: socket.to_owned(), state: Arc::new(Mutex::new(state)) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn listen(&self) {
        let _ = std::fs::remove_file(&self.socket);
        let listener = UnixListener::bind(&self.socket).unwrap();
        self.state().listens = true;
        let pfod = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut state = pfod.state();
                if !state.listens {
                    return;
                }
                state.streams.push(stream.try_clone().unwrap());
                drop(state);
                let pfod = pfod.clone();
                thread::spawn(move || pfod.talk(stream));
            }
        });
    }

    /// Ends every connection and listens no more.
    pub(crate) fn vanish(&self) {
        let mut state = self.state();
        state.listens = false;
        for stream in state.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        (state.taps, state.watchers) = (Vec::new(), Vec::new());
        drop(state);
        // The thread that accepts looks whether it still should.
        let _ = UnixStream::connect(&self.socket);
        let _ = std::fs::remove_file(&self.socket);
    }

    /// Tells those who watch jobs that one has changed.
    pub(crate) fn notify(&self) {
        let frame = DaemonMessage::Notice(Notice::JobsChanged).to_frame().unwrap();
        self.state().watchers.retain_mut(|stream| stream.write_all(&frame).is_ok());
    }

    fn talk(&self, mut stream: UnixStream) {
        let mut holds = false;
        self.converse(&mut stream, &mut holds);
        if holds {
            self.state().job.measured_by = None;
        }
    }

    fn converse(&self, stream: &mut UnixStream, holds: &mut bool) {
        while let Ok(ClientMessage::Request(request)) = read(stream) {
            *holds |= matches!(request, Request::Trial { .. });
            let response = self.answer(request, stream);
            let Some(response) = response else { return };
            let counters = matches!(response, Response::Tapped(_));
            let frame = DaemonMessage::Response(response).to_frame().unwrap();
            if stream.write_all(&frame).is_err() {
                return;
            }
            if counters {
                let mut state = self.state();
                let reading = counter(state.now_ns, 5.0);
                send_to(stream, 0, &[reading]);
                state.taps.push(stream.try_clone().unwrap());
            }
        }
    }

    /// None if nobody is left to be answered.
    fn answer(&self, request: Request, stream: &UnixStream) -> Option<Response> {
        if matches!(request, Request::Trial { .. }) && self.state().trials == Trials::Stall {
            self.state().stalled += 1;
            while self.state().trials == Trials::Stall {
                thread::sleep(Duration::from_millis(5));
            }
        }
        let mut state = self.state();
        Some(match request {
            Request::OnBehalf { uid, administrator, .. } => {
                state.asked_for.push((uid, administrator));
                Response::Done
            }
            Request::WatchJobs => {
                state.watchers.push(stream.try_clone().unwrap());
                Response::Done
            }
            Request::Jobs => Response::Jobs(vec![state.job.clone()]),
            Request::Gpus => Response::Gpus(Vec::new()),
            Request::Status => Response::Status(Box::new(status())),
            Request::SettleTimes { .. } | Request::PowerCap { .. } => Response::Done,
            Request::PlanRead(_) => Response::Plan(state.running.clone()),
            Request::Tap { .. } => Response::Tapped(vec![tapped(&state.job.ranks[0])]),
            Request::Trial { run, length, .. } => {
                let vanishes = match &mut state.trials {
                    Trials::VanishAfter(0) => true,
                    Trials::VanishAfter(left) => {
                        *left -= 1;
                        false
                    }
                    _ => false,
                };
                if vanishes {
                    state.trials = Trials::Succeed;
                    drop(state);
                    self.vanish();
                    return None;
                }
                let clock = if let TrialRun::Uniform(mhz) = run { Some(mhz) } else { None };
                let first_step = state.play(clock, length.steps);
                state.job.measured_by = Some(MeasuredBy { uid: state.job.uid, pid: None });
                Response::TrialBegan { first_step, plan: state.job.plan.clone() }
            }
            Request::TrialsEnd { .. } => {
                state.job.measured_by = None;
                Response::TrialsEnded(None)
            }
            Request::PlanSwap { target, .. } => {
                let swapped = state.swap(&target);
                state.swaps.push(target);
                Response::Swapped(swapped)
            }
            other => {
                let message = format!("the script has no answer to {other:?}");
                Response::Refused(Refusal::new(RefusalCode::Malformed, message, ""))
            }
        })
    }
}

impl State {
    fn swap(&mut self, target: &SwapTarget) -> Swapped {
        let number = self.swaps.len() as u32 + 1;
        let (label, table) = match target {
            SwapTarget::Table { label, table } => (label.clone(), Some(table.clone())),
            _ => (String::new(), None),
        };
        let plan = table.as_ref().map(|_| PlanStatus {
            number,
            label,
            predicted_time_s: None,
            predicted_energy_j: None,
            suspended: None,
            power_limits_w: Vec::new(),
        });
        self.running = table;
        self.job.plan.clone_from(&plan);
        self.job.swap = number.into();
        Swapped { plan, step: 9, ranks: 1, changed: 1 }
    }

    /// Plays a trial to the taps: each step runs four forwards of 31 ms at 100 W and a tenth of the
    /// clock, and waits of several lengths at 60 W. Returns the first one that is measured.
    fn play(&mut self, clock: Option<Mhz>, steps: u32) -> u64 {
        let first_step = self.step + 2;
        let mut played = Played {
            records: vec![TapRecord::TrialBegan { first_step, steps }],
            now_ns: self.now_ns,
            energy_j: 5.0,
            clock,
        };
        let power_w = 100.0 + f64::from(clock.unwrap_or(Mhz(1410)).0) / 10.0;
        let mut waits_ms = [9, 23, 0, 14, 3].into_iter().cycle();
        for step in first_step..=first_step + u64::from(steps) {
            let at_ns = played.now_ns;
            played.records.push(TapRecord::StepBegan { step, at_ns, astray: false });
            for microbatch in 0..4 {
                played.draw(waits_ms.next().unwrap() * MS, 60.0);
                played.run(microbatch, power_w);
            }
            played.draw(3 * MS, 90.0);
            let at_ns = played.now_ns;
            played.records.push(TapRecord::StepEnded { at_ns, astray: false });
        }
        played.draw(60 * MS, 60.0);
        let (step, at_ns) = (first_step + u64::from(steps) + 1, played.now_ns);
        played.records.push(TapRecord::StepBegan { step, at_ns, astray: false });
        (self.now_ns, self.step) = (played.now_ns, step);
        let lost = u64::from(self.trials == Trials::LoseEvents);
        self.taps.retain_mut(|tap| {
            send_to(tap, 0, &played.records[..9]) && send_to(tap, lost, &played.records[9..])
        });
        self.measured.push(clock);
        first_step
    }
}

/// A rank that is being played.
struct Played {
    records: Vec<TapRecord>,
    now_ns: u64,
    energy_j: f64,
    clock: Option<Mhz>,
}

impl Played {
    /// Draws power for a time, while the counter is refreshed every 20 ms.
    fn draw(&mut self, length_ns: u64, power_w: f64) {
        let until_ns = self.now_ns + length_ns;
        while self.now_ns < until_ns {
            let refresh_ns = (self.now_ns / (20 * MS) + 1) * 20 * MS;
            let next_ns = refresh_ns.min(until_ns);
            self.energy_j += (next_ns - self.now_ns) as f64 / 1e9 * power_w;
            self.now_ns = next_ns;
            if next_ns == refresh_ns {
                self.records.push(counter(next_ns, self.energy_j));
            }
        }
    }

    fn run(&mut self, microbatch: u32, power_w: f64) {
        let began_ns = self.now_ns;
        self.draw(31 * MS, power_w);
        self.records.push(TapRecord::Ran {
            unit: Unit::new(Instruction::Forward, microbatch),
            began_ns,
            ended_ns: self.now_ns,
            asked: self.clock,
            locked: self.clock.map(|mhz| (mhz, 0)),
            astray: false,
        });
    }
}

fn counter(at_ns: u64, energy_j: f64) -> TapRecord {
    TapRecord::Counter(CounterReading {
        at_ns,
        energy_j: Some(energy_j),
        read_ns: at_ns,
        sm_clock: None,
        throttled_ns: ThrottledNs::default(),
        throttle_reasons: 0,
    })
}

fn send_to(tap: &mut UnixStream, lost: u64, records: &[TapRecord]) -> bool {
    let batches = records.chunks(1000).enumerate();
    batches.into_iter().all(|(number, records)| {
        let lost = if number == 0 { lost } else { 0 };
        let batch = TapBatch { rank: Rank(0), lost, records: records.to_vec() };
        tap.write_all(&DaemonMessage::Tap(batch).to_frame().unwrap()).is_ok()
    })
}

fn read(stream: &mut UnixStream) -> io::Result<ClientMessage> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let header = Header::parse(header).map_err(io::Error::other)?;
    let mut payload = vec![0; header.length];
    stream.read_exact(&mut payload)?;
    ClientMessage::from_payload(header.kind, &payload).map_err(io::Error::other)
}

fn tapped(rank: &RankView) -> TappedRank {
    TappedRank {
        rank: Rank(0),
        session: rank.session,
        gpu_uuid: rank.gpu_uuid.clone(),
        sm_clocks: rank.sm_clocks.clone(),
        settle: SettleTimes::always(0),
    }
}

fn status() -> Status {
    let config = ConfigStatus {
        file: None,
        refused: None,
        restart_needed_for: Vec::new(),
        unknown_names: Vec::new(),
        outdated: false,
    };
    let daemon = DaemonStatus {
        version: String::new(),
        pid: Pid(1),
        uptime_s: 1.0,
        driver: Some("570".into()),
        driver_problem: None,
        ledger_damage: None,
        only_observes: false,
        sessions: 1,
        unrestored: Vec::new(),
        config,
        drained: None,
    };
    Status { daemon, gpus: Vec::new(), jobs: Vec::new() }
}
