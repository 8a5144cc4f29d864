//! What the daemons keep for users is what they count: measured by what an allocator gave and took back.
//! What ten users may have at once stays below `MemoryMax=` of the units.

mod frontier_files;

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use pfo_planner::{Instruction, Mhz};
use pfo_protocol::{
    AgentRequest, AgentResponse, ClientMessage, ClockTable, DaemonMessage, GpuName, Mark,
    RefusalCode, Request, Response, SwapTarget, SweepControl, SweepOrder, SweepSettings, TapRecord,
    TrialRun, Unit,
};
use pfo_tests::attack::Target;
use pfo_tests::control::{after_settling, job};
use pfo_tests::{
    Client, Identity, MachineSetup, MemoryLimit, Node, Program, Relay, Setup, TestPlan, hello,
    memory_max, needs_root, programs, wait,
};

use self::frontier_files::{
    MICROBATCHES, compressed, frontier, padded, with_chunks, with_plans, with_repeats, with_rows,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What the unit of a program gives at most to one user's frontiers.
const FRONTIERS_OF_ONE: u64 = 32 * MIB;

fn counting(gpus: &'static str, agent: bool) -> Node {
    let machine = MachineSetup { gpus, ..MachineSetup::default() };
    Node::start_with(&Setup {
        machine,
        agent,
        idle_limit_s: 3600,
        counted: true,
        ..Setup::default()
    })
}

/// Bytes that a daemon has allocated, once that hardly changes.
fn settled(node: &Node, program: Program) -> u64 {
    let mut last = 0;
    let settle = || {
        thread::sleep(Duration::from_millis(100));
        let now = node.allocated(program).0;
        let before = std::mem::replace(&mut last, now);
        if now.abs_diff(before) < 4 * KIB { Ok(now) } else { Err(now) }
    };
    wait::until(settle).unwrap_or_else(|now| now)
}

/// Begins something `count` times, each of which may keep at most so many bytes.
fn keep<T>(
    node: &Node,
    program: Program,
    (what, count, most): (&str, u64, u64),
    begin: impl FnMut(u64) -> T,
) -> Vec<T> {
    let before = settled(node, program);
    let kept: Vec<T> = (0..count).map(begin).collect();
    let each = settled(node, program).saturating_sub(before) / count;
    println!("{what}: {each} bytes each, at most {most}");
    assert!(each <= most, "{what} take {each} bytes each, not {most}");
    kept
}

fn open(node: &Node, name: &str, gpu: usize) -> Client {
    let mut client = Client::connect(&node.socket());
    client.open(hello(name, 0, 1, GpuName::Uuid(node.machine.uuid(gpu)))).unwrap();
    client
}

/// Sends steps of so many instructions.
fn train(rank: &mut Client, steps: Range<u64>, instructions: u32) {
    for step in steps {
        rank.tell(Mark::StepBegin(step));
        for microbatch in 0..instructions {
            let unit = Unit::new(Instruction::Forward, microbatch);
            rank.tell(Mark::InstructionBegin(unit));
            rank.tell(Mark::InstructionEnd(unit));
        }
        rank.tell(Mark::StepEnd(step));
    }
}

fn table(instructions: u32) -> ClockTable {
    ClockTable::from(&TestPlan::new(1, instructions / 2, |_, _| 1740))
}

fn job_name(number: u64) -> String {
    format!("job{number}")
}

/// Ranks of jobs of their own, on the first GPUs.
fn open_ranks(node: &Node, count: u64) -> Vec<Client> {
    (0..count).map(|number| open(node, &job_name(number), number as usize)).collect()
}

#[test]
fn connections_and_sessions_take_what_pfod_expects_and_it_gives_it_back() {
    let node = counting("8xA40", false);
    let pfod = Program::Pfod;
    let before = settled(&node, pfod);
    let connect = |_| Client::connect(&node.socket());
    let silent = keep(&node, pfod, ("silent connections", 50, 40 * KIB), connect);
    let half = ClientMessage::Hello(hello("h", 0, 1, GpuName::Uuid(node.machine.uuid(0))));
    let half = half.to_frame().unwrap();
    let halves = keep(&node, pfod, ("half-open hellos", 50, 40 * KIB), |_| {
        let mut client = Client::connect(&node.socket());
        client.send(&half[..half.len() / 2]);
        client
    });
    drop((silent, halves));
    let ranks = keep(&node, pfod, ("sessions with their jobs", 8, 64 * KIB), |number| {
        open(&node, &job_name(number), number as usize)
    });
    drop(ranks);
    assert_given_back(&node, pfod, before);
}

/// Waits until a daemon keeps hardly more than before.
fn assert_given_back(node: &Node, program: Program, before: u64) {
    wait::until_ok("it is given back", || {
        let kept = node.allocated(program).0.saturating_sub(before);
        if kept < 512 * KIB { Ok(()) } else { Err(format!("{kept} bytes")) }
    });
}

#[test]
fn plans_trials_and_taps_take_what_pfod_expects_and_it_gives_it_back() {
    const INSTRUCTIONS: u64 = 20_000;
    const OF_INSTRUCTION: u64 = 25;
    let node = counting("8xA40", false);
    let pfod = Program::Pfod;
    let mut ranks = open_ranks(&node, 8);
    let most = OF_INSTRUCTION * INSTRUCTIONS;
    keep(&node, pfod, ("instructions of plans, by 20,000", 8, most), |number| {
        node.load(&job_name(number), table(INSTRUCTIONS as u32)).unwrap();
    });
    keep(&node, pfod, ("swaps to them", 8, 16 * KIB), |number| {
        node.swap(&job_name(number), SwapTarget::Loaded).unwrap();
    });
    let before = settled(&node, pfod);
    let trials = keep(&node, pfod, ("trials", 4, 1280 * KIB), |number| {
        let (run, length) = (TrialRun::DefaultClocks, after_settling(50_000));
        let mut control = node.control();
        let trial = Request::Trial { job: job(&job_name(number)), run, length, after: None };
        control.say(&ClientMessage::Request(trial));
        control
    });
    // Steps that end before the counter has told their energy wait for it.
    keep(&node, pfod, ("steps in trials, by 1000", 4, 320 * KIB), |number| {
        train(&mut ranks[number as usize], 0..1000, 0);
    });
    let taps = keep(&node, pfod, ("taps that nobody reads", 4, 4 * MIB), |number| {
        let mut agent = node.control_as_agent();
        let tap = Request::Tap { job: job(&job_name(number)), counters: true };
        agent.say(&ClientMessage::Request(tap));
        agent
    });
    // Two records each, in a vector that doubles, and readings of the counter beside them.
    let most = 2 * 2 * 1000 * size_of::<TapRecord>() as u64 + 128 * KIB;
    keep(&node, pfod, ("steps in taps, by 1000", 4, most), |number| {
        train(&mut ranks[number as usize], 1000..2000, 0);
    });
    drop((trials, taps, ranks));
    node.until_is("sessions", &0, || node.status().daemon.sessions);
    assert_given_back(&node, pfod, before);
}

/// A process of a user that attacks in these ways until it is dropped.
struct Attacker(Child);

impl Attacker {
    fn start((node, socket): (&Node, PathBuf), user: &Identity, gpu: usize, ways: &[&str]) -> Self {
        let target = Target {
            socket,
            agent: Some(node.agent_socket()),
            devices: node.machine.devices(),
            gpus: vec![node.machine.uuid(gpu)],
            victim: job("victim"),
        };
        let program = programs::program_for_all("pfo-test-attacker", node.directory());
        let mut command = Command::new(program);
        command.args(target.arguments()).args(ways).stdin(Stdio::null()).stderr(Stdio::null());
        Self(user.assume(&mut command).spawn().unwrap())
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const USERS: u32 = 10;

fn user(number: u32) -> Identity {
    Identity::trainer().with_uid(63_000 + number)
}

/// Holds a daemon's own limit for a time in which ten users attack, and checks that it lives.
fn assert_stays_below_its_limit(
    node: &mut Node,
    (program, limit): (Program, &MemoryLimit),
    begin: impl FnOnce(&Node) -> Vec<Attacker>,
) {
    let attackers = begin(node);
    thread::sleep(Duration::from_secs(15));
    drop(attackers);
    let (now, most) = node.allocated(program);
    println!(
        "{}: {now} bytes allocated, {most} at most; all that the kernel counts {:?} of {}",
        program.name(),
        limit.most_used(),
        limit.bytes()
    );
    assert!(most < limit.bytes(), "{most} bytes");
    let daemon = match program {
        Program::Pfod => node.daemon.as_mut(),
        Program::PfoAgent => node.agent.as_mut(),
    };
    assert_eq!(daemon.unwrap().process.ended(), None, "it was ended");
    node.until_so("it answers", || !node.status().gpus.is_empty());
}

#[test]
fn ten_users_at_all_of_their_limits_do_not_reach_memory_max_of_pfod() {
    needs_root!();
    let mut node = counting("20xA40", true);
    let limit = MemoryLimit::hold(node.daemon().process.pid(), memory_max(Program::Pfod));
    let load = |name: &str| {
        let (label, table) = ("p".into(), table(190_000));
        ClientMessage::Request(Request::PlanLoad { job: job(name), label, table }).to_frame()
    };
    let (load, target) = (load("kept").unwrap(), SwapTarget::Loaded);
    let swap =
        Request::PlanSwap { job: job("kept"), target, at_step: None, after: None, wait: false };
    let swap = ClientMessage::Request(swap).to_frame().unwrap();
    let mut held = Vec::new();
    for number in 0..USERS {
        let mut rank = Relay::connect(&node, &user(number));
        let gpu = GpuName::Uuid(node.machine.uuid(number as usize));
        rank.say(&ClientMessage::Hello(hello("kept", 0, 1, gpu)));
        assert!(matches!(rank.answer(), DaemonMessage::Welcome(_)));
        let mut control = Relay::connect(&node, &user(number));
        let mut refused = false;
        for request in [&load, &swap, &load, &load] {
            control.send(request);
            refused |= matches!(control.answer(), DaemonMessage::Response(Response::Refused(_)));
        }
        assert!(refused, "they may keep more");
        held.push(rank);
    }
    let ways = ["hoard", "deaf", "halves", "plans", "measure", "join", "spoil"];
    assert_stays_below_its_limit(&mut node, (Program::Pfod, &limit), |node| {
        let attack = |number: u32| {
            let at = (node, node.socket());
            Attacker::start(at, &user(number), 10 + number as usize, &ways)
        };
        (0..USERS).map(attack).collect()
    });
    drop(held);
}

#[test]
fn what_the_agent_keeps_for_a_user_is_what_it_counts_and_it_gives_it_back() {
    let node = counting("8xA40", true);
    let agent = Program::PfoAgent;
    let name = job_name;
    let mut ranks = open_ranks(&node, 8);
    // The agent sweeps jobs of which it knows the instructions.
    ranks.iter_mut().for_each(|rank| train(rank, 0..1, 4));
    node.until_so("they have trained", || {
        (0..8).all(|number| node.rank(&name(number), 0).step == Some(0))
    });
    let before = settled(&node, agent);
    let connect = |_| Client::connect(&node.agent_socket());
    drop(keep(&node, agent, ("connections to the agent", 50, 40 * KIB), connect));
    let order = |number| SweepOrder {
        job: job(&name(number)),
        model: None,
        settings: SweepSettings {
            steps: 10_000,
            settling_steps: 1,
            stride_mhz: Mhz(1),
            min_mhz: Mhz(0),
            max_slowdown: None,
        },
        reuse: false,
    };
    keep(&node, agent, ("sweeps", 4, 256 * KIB), |number| {
        node.agent_control().ask_agent(AgentRequest::SweepStart(order(number))).unwrap();
    });
    let recordings = keep(&node, agent, ("recordings", 4, 256 * KIB), |number| {
        let mut control = node.agent_control();
        let (run, length) = (TrialRun::DefaultClocks, after_settling(50_000));
        let job = job(&name(4 + number));
        let record = AgentRequest::Record { job, run, length, samples: true };
        control.say(&ClientMessage::AgentRequest(record));
        control
    });
    node.until_so("they are recorded", || {
        (4..8).all(|number| node.job(&name(number)).measured_by.is_some())
    });
    keep(&node, agent, ("recorded steps of 4 instructions, by 250", 4, 512 * KIB), |number| {
        train(&mut ranks[4 + number as usize], 1..251, 4);
    });
    drop((recordings, ranks));
    for number in 0..4 {
        let control = SweepControl::Stop;
        let stop = AgentRequest::SweepControl { job: job(&name(number)), control };
        node.agent_control().ask_agent(stop).unwrap();
    }
    assert_given_back(&node, agent, before);
}

#[test]
fn ten_users_at_all_of_their_limits_do_not_reach_memory_max_of_the_agent() {
    needs_root!();
    let mut node = counting("10xA40", true);
    let pid = node.agent.as_ref().unwrap().process.pid();
    let limit = MemoryLimit::hold(pid, memory_max(Program::PfoAgent));
    let frontiers = [with_plans(100_000), padded(7 << 20)];
    for number in 0..USERS {
        let frontier = &frontiers[number as usize % frontiers.len()];
        for count in 0.. {
            let name = format!("job{count}");
            let mut rank = Relay::connect(&node, &user(number));
            let gpu = GpuName::Uuid(node.machine.uuid(number as usize));
            rank.say(&ClientMessage::Hello(hello(&name, 0, 1, gpu)));
            assert!(matches!(rank.answer(), DaemonMessage::Welcome(_)));
            let mut control = Relay::connect_to(&node, &node.agent_socket(), &user(number));
            let (label, frontier) = ("f".into(), frontier.clone());
            let load = AgentRequest::FrontierLoad { job: job(&name), label, frontier };
            control.say(&ClientMessage::AgentRequest(load));
            let loaded = control.answer();
            rank.say(&ClientMessage::Goodbye);
            node.until_is("sessions", &0, || node.status().daemon.sessions);
            if let DaemonMessage::AgentResponse(AgentResponse::Refused(_)) = loaded {
                break;
            }
        }
    }
    println!("{} bytes in files", file_bytes(&node));
    assert!(node.allocated(Program::PfoAgent).0 + file_bytes(&node) > 64 * MIB, "it keeps little");
    let (ways, own) = (["hoard", "deaf", "halves", "connect", "spoil"], ["agent"]);
    assert_stays_below_its_limit(&mut node, (Program::PfoAgent, &limit), |node| {
        let attack = |number: u32| {
            let (user, gpu) = (user(number), number as usize);
            let at_agent = Attacker::start((node, node.agent_socket()), &user, gpu, &ways);
            [at_agent, Attacker::start((node, node.socket()), &user, gpu, &own)]
        };
        (0..USERS).flat_map(attack).collect()
    });
    assert!(limit.bytes() > node.allocated(Program::PfoAgent).1 + file_bytes(&node));
}

/// Loads a frontier for one job after the other, at most so many, until there is no room. Returns how
/// many there was room for.
fn load_all(node: &Node, frontier: &[u8], most: usize) -> usize {
    let load = |number: &usize| {
        let name = format!("job{number}");
        let mut rank = open(node, &name, 0);
        let load = AgentRequest::FrontierLoad {
            job: job(&name),
            label: "f".into(),
            frontier: frontier.to_vec(),
        };
        let loaded = node.agent_control().ask_agent(load);
        rank.say(&ClientMessage::Goodbye);
        rank.assert_ended();
        match loaded {
            Ok(AgentResponse::Frontier(_)) => true,
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => {
                let is_full =
                    matches!(refusal.code, RefusalCode::LimitReached | RefusalCode::PlanDoesNotFit);
                assert!(is_full && *number > 0, "{refusal}");
                false
            }
        }
    };
    (0..most).take_while(load).count()
}

/// Bytes of the files in a directory, in whole pages.
fn file_bytes(node: &Node) -> u64 {
    let mut directories = vec![node.agent_runtime()];
    let mut bytes = 0;
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let metadata = entry.metadata().unwrap();
            match metadata.is_dir() {
                true => directories.push(entry.path()),
                false => bytes += metadata.len().next_multiple_of(4 * KIB),
            }
        }
    }
    bytes
}

fn frontiers_are_counted_as_what_they_take(what: &str, frontier: &[u8]) {
    let node = counting("1xA40", true);
    let before = settled(&node, Program::PfoAgent);
    let count = load_all(&node, frontier, 3000);
    let kept = settled(&node, Program::PfoAgent).saturating_sub(before);
    let (files, all) = (file_bytes(&node), kept + file_bytes(&node));
    println!("{what}: {count} frontiers take {kept} bytes and {files} in files");
    assert!(all <= FRONTIERS_OF_ONE, "{all} bytes, not {FRONTIERS_OF_ONE}");
    assert!(all >= FRONTIERS_OF_ONE / 8, "it counts much more than it keeps: {all} bytes");
}

#[test]
fn frontiers_of_many_plans_are_counted_as_what_they_take() {
    frontiers_are_counted_as_what_they_take("plans", &with_plans(100_000));
}

#[test]
fn frontiers_of_many_instructions_are_counted_as_what_they_take() {
    frontiers_are_counted_as_what_they_take("instructions", &compressed(&frontier(5000)));
}

#[test]
fn frontiers_of_many_rows_are_counted_as_what_they_take() {
    frontiers_are_counted_as_what_they_take("rows", &with_rows());
}

#[test]
fn frontiers_of_many_repeated_rows_are_counted_as_what_they_take() {
    frontiers_are_counted_as_what_they_take("repeats", &with_repeats());
}

#[test]
fn frontiers_of_tables_for_model_chunks_are_counted_as_what_they_take() {
    frontiers_are_counted_as_what_they_take("chunks", &with_chunks());
}

#[test]
fn frontiers_with_large_files_are_counted_as_what_they_take() {
    frontiers_are_counted_as_what_they_take("files", &padded(7 << 20));
}

#[test]
fn small_frontiers_are_counted_as_what_they_take() {
    frontiers_are_counted_as_what_they_take("small ones", &compressed(&frontier(MICROBATCHES)));
}
