//! The whole daemon, on a simulated machine: sessions, events, plans, swaps, holds, trials, taps,
//! revocations, failing GPUs and restarts, in any order and with any numbers.
//!
//! Whatever happens: nothing is locked that the ledger does not name, no clock is beyond its user's
//! terms, a job of another user runs at the clocks of its plan, what is answered can be read, and
//! when all sessions are over nothing is locked.

mod machine;
mod operation;
mod victim;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;
use std::{env, fs};

use pfo_protocol::{ClientMessage, DaemonMessage, EVENT_FRAME_BYTES, Event, Frame, Mark};
use pfod::fuzzing::Daemon;

use self::machine::Machine;
use self::operation::{LINES, Operation, SEATS, Sent, USERS, What};
use self::victim::Victim;
use crate::input::Input;
use crate::temporary;

/// Operations in a sequence.
const MOST_OPERATIONS: usize = 64;

/// If it is set, operations and their answers are printed.
const SHOW_VARIABLE: &str = "PFO_FUZZ_SHOW";

/// The second user's terms are narrow, and so everybody else's are wide.
fn configuration(ledger: &Path) -> String {
    format!(
        "[groups]\ntrainers = '0'\nadministrators = '0'\nagent = '0'\n[clocks]\nsettle_ms = 0\n\
         [paths]\nledger = {ledger:?}\n[lease]\nchanges_per_second = 100000\n\
         require_device = false\nmin_mhz = 1\nmin_power_limit_w = 1\n\
         [[rule]]\nusers = [{narrow}]\nmin_mhz = 750\nmax_mhz = 1200\nmin_power_limit_w = 180\n\
         changes_per_second = 3\nsessions_per_user = 1\n[[rule]]\nusers = ['*']\n",
        narrow = USERS[1]
    )
}

/// The operations of this process so far.
pub static OPERATIONS: AtomicU64 = AtomicU64::new(0);

/// The target.
pub fn daemon(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new().after(Operation::first(), &mut input);
    for _ in 0..MOST_OPERATIONS {
        if input.is_empty() {
            break;
        }
        let operation = Operation::read(&mut input);
        if world.shown {
            eprintln!("{operation:?}");
        }
        world = world.after(operation, &mut input);
        world.check();
        OPERATIONS.fetch_add(1, Relaxed);
    }
    world.end();
}

/// What a rank has sent so far.
#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    gpu: usize,
    sequence: u64,
    step: u64,
}

struct World {
    machine: &'static Machine,
    daemon: Daemon,
    senders: BTreeMap<usize, Sender>,
    victim: Victim,
    shown: bool,
}

impl World {
    fn new() -> Self {
        let machine = Machine::get();
        let directory = temporary::directory();
        let file = |name: &str| directory.join(name);
        for name in ["ledger.json", "ledger.damaged", "revocations.json"] {
            let _ = fs::remove_file(file(name));
        }
        let _ = fs::remove_dir_all(file("jobs"));
        let config = file("pfod.toml");
        fs::write(&config, configuration(&file("ledger.json"))).expect("the file can be written");
        let mut daemon = Daemon::start(&config, &machine.library, &LINES);
        let victim = Victim::begin(&mut daemon, &machine.uuids[0]);
        let shown = env::var_os(SHOW_VARIABLE).is_some();
        Self { machine, daemon, senders: BTreeMap::new(), victim, shown }
    }

    fn after(mut self, operation: Operation, input: &mut Input<'_>) -> Self {
        match operation {
            Operation::Hello { seat, uid, gpu, hello } => {
                let hello = decoded(&ClientMessage::Hello(hello));
                if let Some(ClientMessage::Hello(hello)) = hello
                    && self.daemon.sessions().all(|open| open != seat)
                    && self.daemon.hello(seat, uid, hello).is_ok()
                {
                    assert!(gpu > 0, "a GPU was leased twice");
                    self.senders.insert(seat, Sender { gpu, ..Sender::default() });
                }
            }
            Operation::Steps { seat, steps } => {
                steps.iter().for_each(|events| self.send(seat, events));
            }
            Operation::Events { seat, events } => self.send(seat, &events),
            Operation::Bytes { seat, bytes } => self.daemon.send(seat, &bytes),
            Operation::HangUp { seat } => self.daemon.hang_up(seat),
            Operation::FallSilent { seat } => self.daemon.fall_silent(seat),
            Operation::Ask { line, request } => {
                if let Some(ClientMessage::Request(request)) =
                    decoded(&ClientMessage::Request(*request))
                {
                    let answer = self.daemon.ask(line, request);
                    if self.shown {
                        eprintln!("    {answer:?}");
                    }
                }
            }
            Operation::Cut { line } => self.daemon.cut(line),
            Operation::Pass(time) => drop(self.daemon.pass(time)),
            Operation::Measure => {
                sleep(Duration::from_millis(1));
                self.daemon.pass(Duration::from_millis(25));
                (0..LINES.len()).for_each(|line| digest(self.daemon.streamed(line)));
            }
            Operation::Fail => self.machine.fail(input),
            Operation::Recover => self.machine.recover(),
            Operation::Next { death, restore_first, load } => {
                self.daemon = self.daemon.next(death, restore_first, load);
                self.victim.is_continued();
            }
        }
        self
    }

    /// Sends events as the ranks do, several in a frame's time.
    fn send(&mut self, seat: usize, events: &[Sent]) {
        let Some(sender) = self.senders.get_mut(&seat) else { return };
        let mut bytes = Vec::new();
        for Sent { lost, client_ns, what } in events {
            let mark = match *what {
                What::NextStep => Mark::StepBegin(sender.step.wrapping_add(1)),
                What::StepEnd => Mark::StepEnd(sender.step),
                What::Mark(mark) => mark,
            };
            if let Mark::StepBegin(step) = mark {
                sender.step = step;
            }
            let sequence = sender.sequence.wrapping_add(*lost);
            sender.sequence = sequence.wrapping_add(1);
            bytes.extend(frame(&Event { sequence, client_ns: *client_ns, mark }));
        }
        self.daemon.send(seat, &bytes);
    }

    /// Requires what holds at any time.
    fn check(&mut self) {
        let open: Vec<_> = self.daemon.sessions().collect();
        self.senders.retain(|seat, _| open.contains(seat));
        self.victim.go_on(&mut self.daemon, self.machine);
        let ledger = self.daemon.ledger();
        for (gpu, (set, uuid)) in self.machine.set().iter().zip(&self.machine.uuids).enumerate() {
            let entry = ledger.iter().find(|entry| entry.gpu_uuid == *uuid);
            let owes = |what: fn(&_) -> bool| entry.is_some_and(what);
            assert!(set.sm.is_none() || owes(|entry| entry.sm), "GPU {gpu}: {set:?}, {entry:?}");
            assert!(!set.memory || owes(|entry| entry.memory), "GPU {gpu}: {set:?}, {entry:?}");
            let limited = owes(|entry| entry.power_limit.is_some());
            assert!(!set.power_limit || limited, "GPU {gpu}: {set:?}, {entry:?}");
            let holder = self.senders.iter().find(|(_, sender)| sender.gpu == gpu);
            let bounds = holder.and_then(|(seat, _)| self.daemon.bounds(*seat));
            if let Some(((min, max), sm)) = bounds.zip(set.sm) {
                assert!((min..=max).contains(&sm), "GPU {gpu} at {sm}, beyond {min} to {max}");
            }
        }
    }

    /// Ends everything, and requires that nothing is left.
    fn end(mut self) {
        self.machine.recover();
        for seat in 1..=usize::from(SEATS) {
            self.daemon.hang_up(seat);
        }
        (0..LINES.len()).for_each(|line| self.daemon.cut(line));
        Victim::end(&mut self.daemon);
        let mut tries = 0..300;
        while !self.daemon.restore().is_empty() && tries.next().is_some() {
            // A GPU that did not answer is looked for once a second.
            sleep(Duration::from_millis(10));
        }
        assert!(self.daemon.ledger().is_empty(), "owed: {:?}", self.daemon.ledger());
        for (gpu, set) in self.machine.set().iter().enumerate() {
            assert!(set.sm.is_none() && !set.memory && !set.power_limit, "GPU {gpu}: {set:?}");
        }
        let status = self.daemon.status();
        assert!(status.daemon.sessions == 0 && status.daemon.unrestored.is_empty(), "{status:?}");
    }
}

fn frame(event: &Event) -> Vec<u8> {
    let mut frame = [0; EVENT_FRAME_BYTES];
    let length = event.write_frame(&mut frame).expect("a frame");
    frame[..length].to_vec()
}

/// The agent digests what it is streamed.
fn digest(streamed: Vec<DaemonMessage>) {
    for message in streamed {
        if let DaemonMessage::Tap(batch) = message {
            pfo_agent::fuzzing::digest(batch.records.into_iter());
        }
    }
}

/// A message as the daemon decodes it; none if it refuses it there.
fn decoded(message: &ClientMessage) -> Option<ClientMessage> {
    let bytes = message.to_frame().ok()?;
    let frame = Frame::first_of(&bytes).ok()??;
    ClientMessage::from_payload(frame.kind, frame.payload).ok()
}
