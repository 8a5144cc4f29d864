//! What recording costs the daemon: ranks that tell a thousand instructions a second each, with and
//! without a trial.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pfo::{Instruction, RankDescription, Session};
use pfo_protocol::TrialRun;
use pfo_tests::node::Node;

use crate::Result;
use crate::node::{GPUS, PATIENCE, daemon, wait_until};
use crate::report::{Cell, Report};

const JOB: &str = "bench-recording";

/// Of each millisecond, half is an instruction and half is none.
const HALF: Duration = Duration::from_micros(500);
const INSTRUCTIONS: u32 = 100;

/// Both states take turns: so many times, for so many steps of a tenth of a second.
const TURNS: usize = 4;
const STEPS: u32 = 30;

/// What the daemon consumed in a state.
#[derive(Default)]
struct Consumed {
    seconds: f64,
    cpu_ticks: u64,
}

impl Consumed {
    fn while_it(&mut self, node: &Node, does: impl FnOnce() -> Result<()>) -> Result<()> {
        let (began, before) = (Instant::now(), daemon(node)?.consumed()?);
        does()?;
        self.cpu_ticks += daemon(node)?.consumed()?.cpu_ticks - before.cpu_ticks;
        self.seconds += began.elapsed().as_secs_f64();
        Ok(())
    }

    fn row(&self, state: &str) -> Vec<Cell> {
        vec![
            Cell::text(state),
            Cell::Figure(self.seconds, 1),
            Cell::count(10 * self.cpu_ticks),
            Cell::Figure(self.share(), 2),
        ]
    }

    /// Of one core, in percent.
    fn share(&self) -> f64 {
        100.0 * (self.cpu_ticks as f64 / 100.0) / self.seconds
    }
}

/// Measures a daemon while every GPU computes and has a rank.
pub(crate) fn measure(node: &Node, report: &mut Report) -> Result<()> {
    let _computing: Vec<_> = (0..GPUS).map(|gpu| node.machine.compute(gpu)).collect();
    let (mut idle, mut recording) = (Consumed::default(), Consumed::default());
    let sessions = (0..GPUS as u32).map(|rank| open(node, rank)).collect::<Result<Vec<_>>>()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for session in &sessions {
            scope.spawn(|| train(session, &stop));
        }
        let result = take_turns(node, &mut idle, &mut recording);
        stop.store(true, Relaxed);
        result
    })?;
    let dropped: u64 = sessions.iter().map(|session| session.counters().dropped).sum();
    if dropped > 0 {
        return Err(format!("the sockets were full {dropped} times").into());
    }
    let mut rows = vec![idle.row("no trial"), recording.row("in a trial")];
    let added = recording.share() - idle.share();
    rows.push(vec![
        Cell::text("of that, recording"),
        Cell::text(""),
        Cell::text(""),
        Cell::Figure(added, 2),
    ]);
    report.table(
        "recording",
        &format!(
            "The daemon's CPU while {GPUS} ranks tell 1,000 instructions a second each, with and \
             without recording\n(aim: recording takes under 5 % of a core)"
        ),
        &[
            ("state", "state"),
            ("seconds", "watched s"),
            ("cpu_ms", "CPU ms"),
            ("cpu_percent", "% of a core"),
        ],
        &rows,
    );
    Ok(())
}

fn take_turns(node: &Node, idle: &mut Consumed, recording: &mut Consumed) -> Result<()> {
    wait_until("every rank is in a step", || {
        let ranks = node.find_job(JOB).map(|job| job.ranks).unwrap_or_default();
        Ok(ranks.iter().filter(|rank| rank.step.is_some()).count() == GPUS)
    })?;
    let turn = Duration::from_millis(100) * STEPS;
    for _ in 0..TURNS {
        idle.while_it(node, || {
            std::thread::sleep(turn);
            Ok(())
        })?;
        recording.while_it(node, || {
            node.control().trial(JOB, TrialRun::DefaultClocks, STEPS)?;
            Ok(())
        })?;
    }
    Ok(())
}

fn open(node: &Node, rank: u32) -> Result<Session> {
    let session = Session::open(RankDescription {
        job: Some(JOB.into()),
        gpu: Some(node.machine.uuid(rank as usize).as_str().parse()?),
        socket: Some(node.socket()),
        rank,
        dp_rank: rank,
        dp_degree: GPUS as u32,
        setup_timeout: PATIENCE,
        ..RankDescription::default()
    })?;
    session.problem().map_or(Ok(session), |problem| Err(problem.to_string().into()))
}

/// Trains until it is asked to stop.
fn train(session: &Session, stop: &AtomicBool) {
    let mut next = Instant::now();
    let mut wait = || {
        next += HALF;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    };
    while !stop.load(Relaxed) {
        session.step_begin();
        for microbatch in 0..INSTRUCTIONS {
            session.instruction_begin(Instruction::Forward, microbatch);
            wait();
            session.instruction_end();
            wait();
        }
        session.step_end();
    }
}
