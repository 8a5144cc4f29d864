//! Bytes at the socket that no well-behaved client sends. A well-behaved rank trains beside them, and
//! notices nothing.

use std::time::Duration;

use pfo_protocol::{
    Chunk, ClientMessage, ClockTable, DaemonMessage, Event, Hello, Instruction, LARGEST_PAYLOAD,
    Mark, Microbatch, Refusal, RefusalCode, Request, Response, Unit, Unsupported,
};
use pfo_tests::{
    Client, GOOD_JOB, Identity, Relay, Setup, TestPlan, Undisturbed, assert_printed, control::job,
    needs_root,
};

/// The last step of an event that pfod takes for possible.
const LATEST: u64 = 1 << 50;

/// How far ahead of pfod's clock the time of an event may be.
const A_MINUTE_NS: u64 = 60_000_000_000;

/// Xorshift: the same nonsense in every run.
struct Noise(u64);

impl Noise {
    fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number that is small, as large as can be, or anything.
    fn number(&mut self) -> u64 {
        match self.next() % 4 {
            0 => self.next() % 4,
            1 => LATEST - self.next() % 4,
            _ => self.next() % LATEST,
        }
    }

    fn event(&mut self) -> Event {
        let unit = Unit {
            instruction: Instruction::ALL[self.next() as usize % 2],
            chunk: Chunk((self.next() % 2) as u16),
            microbatch: Microbatch((self.number() % 3) as u32),
        };
        let mark = match self.next() % 6 {
            0 => Mark::StepBegin(self.number()),
            1 => Mark::StepEnd(self.number()),
            2 | 3 => Mark::InstructionBegin(unit),
            _ => Mark::InstructionEnd(unit),
        };
        let client_ns = self.number() % A_MINUTE_NS;
        Event { sequence: self.number(), client_ns, mark }
    }
}

fn frame(length: u32, version: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(payload);
    bytes
}

#[test]
fn a_frame_of_another_version_is_answered_with_the_versions_spoken() {
    let undisturbed = Undisturbed::start();
    for version in [0, 2, 9, u16::MAX] {
        let mut client = undisturbed.connect();
        client.send(&frame(0, version, 1, &[]));
        let spoken = Unsupported { oldest: 1, newest: 1 };
        assert_eq!(client.answer().unwrap(), DaemonMessage::Unsupported(spoken));
        client.assert_ended();
    }
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn an_unknown_kind_is_named() {
    let undisturbed = Undisturbed::start();
    assert_eq!(undisturbed.refused_at_once(&frame(0, 1, 77, &[])), "no frame has kind 77");
    assert_eq!(undisturbed.closed_in_session(&frame(0, 1, 77, &[])), "no frame has kind 77");
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_frame_that_only_the_daemon_sends_is_not_expected_from_a_client() {
    let undisturbed = Undisturbed::start();
    let refusal = undisturbed.refused_at_once(&frame(0, 1, 131, &[]));
    assert_eq!(refusal, "a Closing frame is not expected here");
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn an_oversized_frame_is_refused_from_its_header_alone_with_its_size() {
    let undisturbed = Undisturbed::start();
    for (kind, name, limit) in
        [(1, "Hello", 4096), (2, "Event", 40), (3, "Goodbye", 0), (6, "Request", LARGEST_PAYLOAD)]
    {
        for length in [limit as u32 + 1, u32::MAX] {
            let message = undisturbed.refused_at_once(&frame(length, 1, kind, &[]));
            let expected =
                format!("a {name} frame of {length} bytes is larger than the {limit} allowed");
            assert_eq!(message, expected);
        }
    }
    let message = undisturbed.closed_in_session(&frame(41, 1, 2, &[]));
    assert_eq!(message, "a Event frame of 41 bytes is larger than the 40 allowed");
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_truncated_frame_ends_its_connection_and_nothing_else() {
    let undisturbed = Undisturbed::start();
    let whole = ClientMessage::Hello(undisturbed.hello()).to_frame().unwrap();
    for length in [0, 1, 7, 8, 9, whole.len() - 1] {
        let mut client = undisturbed.connect();
        client.send(&whole[..length]);
        client.finish_sending();
        client.assert_ended();
    }
    let mut client = undisturbed.in_session();
    client.send(&frame(30, 1, 2, &[0; 12]));
    client.finish_sending();
    client.assert_ended();
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_payload_that_is_not_what_its_kind_promises_is_refused_with_the_place() {
    let undisturbed = Undisturbed::start();
    let good = ClientMessage::Hello(undisturbed.hello()).to_frame().unwrap();
    // One byte more than a hello has.
    let mut long = good.clone();
    long.push(0);
    long[0] += 1;
    let long = undisturbed.refused_at_once(&long);
    // One byte less.
    let mut short = good.clone();
    short.pop();
    short[0] -= 1;
    let short = undisturbed.refused_at_once(&short);
    // A text longer than the whole frame.
    let mut text = good.clone();
    text[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    let text = undisturbed.refused_at_once(&text);
    // A job's name that would garble a log.
    let job = good.windows(3).position(|bytes| bytes == b"bad").unwrap();
    let mut name = good;
    name[job] = 0x1b;
    let name = undisturbed.refused_at_once(&name);
    // An event of an instruction that does not exist.
    let event = frame(20, 1, 2, &[0xff; 20]);
    let event = undisturbed.closed_in_session(&event);
    assert_printed!(long, short, text, name, event);
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn an_event_before_hello_and_a_second_hello_end_their_connection() {
    let undisturbed = Undisturbed::start();
    let mut client = undisturbed.connect();
    client.tell(Mark::StepBegin(0));
    client.assert_ended();
    let again = ClientMessage::Hello(undisturbed.hello()).to_frame().unwrap();
    assert_eq!(undisturbed.closed_in_session(&again), "a Hello frame is not expected here");
    let request = ClientMessage::Request(Request::Status).to_frame().unwrap();
    assert_eq!(undisturbed.closed_in_session(&request), "a Request frame is not expected here");
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn garbage_of_any_kind_is_answered_or_cut_off_before_and_in_a_session() {
    let undisturbed = Undisturbed::start();
    let mut noise = Noise::new();
    let mut garbage = |length: usize| (0..length).map(|_| noise.next() as u8).collect::<Vec<_>>();
    for round in 0..150 {
        let mut bytes = garbage(8 + round * 3);
        if round % 3 > 0 {
            // A header that holds, and nonsense behind it.
            let payload = (bytes.len() - 8) as u32;
            let kind = [1, 2, 6][round % 3];
            bytes[..8].copy_from_slice(&frame(payload.min(40), 1, kind, &[]));
        }
        let mut client =
            if round % 5 == 0 { undisturbed.in_session() } else { undisturbed.connect() };
        client.send(&bytes);
        client.finish_sending();
        while client.answer().is_ok() {}
        undisturbed.node.until_so("the GPU is free for the next", || {
            undisturbed.node.status().daemon.sessions == 1
        });
    }
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn impossible_events_of_a_real_session_cost_only_that_session() {
    let undisturbed = Undisturbed::start();
    let mut client = undisturbed.in_session();
    let (chunk, microbatch) = (Chunk(u16::MAX), Microbatch(u32::MAX));
    let other = Unit { instruction: Instruction::Other, chunk, microbatch };
    for mark in [
        Mark::InstructionEnd(other),
        Mark::StepEnd(LATEST),
        Mark::StepBegin(LATEST),
        Mark::StepBegin(LATEST),
        Mark::StepBegin(0),
        Mark::InstructionBegin(other),
        Mark::InstructionBegin(other),
    ] {
        client.tell(mark);
    }
    for _ in 0..3 {
        client.lose(LATEST - 100);
        client.tell(Mark::StepEnd(3));
        client.count_anew();
        client.tell(Mark::StepBegin(LATEST - 1));
    }
    client.say(&ClientMessage::Goodbye);
    client.assert_ended();
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn an_event_of_an_impossible_step_or_time_ends_its_session() {
    let undisturbed = Undisturbed::start();
    let mut messages = Vec::new();
    for step in [LATEST + 1, u64::MAX] {
        let mark = Mark::StepBegin(step);
        let event = Event { sequence: 0, client_ns: 0, mark };
        let frame = ClientMessage::Event(event).to_frame().unwrap();
        messages.push(undisturbed.closed_in_session(&frame));
    }
    let far = Event { sequence: 0, client_ns: u64::MAX, mark: Mark::StepBegin(0) };
    let far = ClientMessage::Event(far).to_frame().unwrap();
    messages.push(undisturbed.closed_in_session(&far));
    assert_printed!(messages.join("\n"));
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn events_that_make_no_sense_at_all_cost_only_their_own_session() {
    // A suspended plan would end the mismatches, sooner or later as the events happen to be read.
    let setup = Setup { suspend_after: u32::MAX, ..Setup::default() };
    let undisturbed = Undisturbed::start_with(&setup);
    let mut client = undisturbed.in_session();
    undisturbed.node.take_up("bad", &TestPlan::distinct(1, 2, 600));
    let mut noise = Noise::new();
    for _ in 0..5000 {
        client.say(&ClientMessage::Event(noise.event()));
    }
    let bad = || undisturbed.node.rank("bad", 0);
    undisturbed.node.until_so("the mismatches are counted", || bad().mismatched_steps > 50);
    client.say(&ClientMessage::Goodbye);
    client.assert_ended();
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_pipeline_larger_than_any_is_refused_with_its_degree() {
    let undisturbed = Undisturbed::start();
    let mut hello = undisturbed.hello();
    let position = &mut hello.position;
    (position.pp_degree, position.dp_degree, position.tp_degree) = (u32::MAX, u32::MAX, u32::MAX);
    let mut client = undisturbed.connect();
    let refusal = client.open(hello).unwrap_err();
    assert_printed!(refusal);
    client.assert_ended();
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn names_from_clients_forge_no_line_of_the_log_and_fill_no_table() {
    let undisturbed = Undisturbed::start();
    let mut client = undisturbed.connect();
    let forged = "2026-01-01T00:00:00.000000Z ERROR forged";
    client.open(Hello { client: format!("x\n{forged}"), ..undisturbed.hello() }).unwrap();
    let table = ClockTable::from(&TestPlan::distinct(1, 2, 600));
    let labels =
        [format!("x\n{forged}"), "\u{1b}[2J".to_owned(), String::new(), "x".repeat(1 << 20)];
    let refusals = labels.map(|label| {
        let request = Request::PlanLoad { job: job("bad"), label, table: table.clone() };
        undisturbed.connect().ask(request).unwrap_err().to_string()
    });
    assert_printed!(refusals.join("\n"));
    client.say(&ClientMessage::Goodbye);
    client.assert_ended();
    let log = undisturbed.node.log();
    assert!(!log.lines().any(|line| line.starts_with(forged)), "{log}");
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn connections_that_say_nothing_or_half_a_frame_are_cut_off_in_the_end() {
    let undisturbed = Undisturbed::start();
    let mut silent: Vec<_> = (0..12).map(|_| undisturbed.connect()).collect();
    for (length, client) in silent.iter_mut().enumerate() {
        client.send(&[0, 0, 0, 0, 1, 0, 1][..length % 8]);
    }
    undisturbed.node.until_so("status answers", || undisturbed.node.find_job(GOOD_JOB).is_some());
    silent.iter_mut().for_each(Client::assert_ended);
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_client_that_never_reads_its_answers_holds_up_nobody() {
    let undisturbed = Undisturbed::start();
    let mut deaf = undisturbed.connect();
    deaf.be_patient_for(Duration::from_millis(10));
    let status = ClientMessage::Request(Request::Status).to_frame().unwrap();
    deaf.send(&status.repeat(500));
    undisturbed.node.until_so("status answers", || undisturbed.node.find_job(GOOD_JOB).is_some());
    drop(deaf);
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn an_impossible_number_in_a_clock_table_is_refused_with_its_place() {
    let undisturbed = Undisturbed::start();
    let table = ClockTable::from(&TestPlan::new(1, 2, |_, _| 900));
    let request = Request::PlanLoad { job: job(GOOD_JOB), label: "bad".into(), table };
    let frame = ClientMessage::Request(request).to_frame().unwrap();
    let clocks: Vec<_> = (0..frame.len() - 3)
        .filter(|place| frame[*place..*place + 4] == 900_u32.to_le_bytes())
        .collect();
    assert_eq!(clocks.len(), 4, "the table has four clocks");
    let messages = [0, u32::MAX].map(|mhz| {
        let mut bad = frame.clone();
        bad[clocks[2]..clocks[2] + 4].copy_from_slice(&mhz.to_le_bytes());
        undisturbed.refused_at_once(&bad)
    });
    assert_printed!(messages.join("\n"));
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_clock_table_that_is_cut_off_or_claims_too_much_is_refused() {
    let undisturbed = Undisturbed::start();
    let table = ClockTable::from(&TestPlan::new(1, 2, |_, _| 900));
    let request = Request::PlanLoad { job: job(GOOD_JOB), label: "bad".into(), table };
    let whole = ClientMessage::Request(request).to_frame().unwrap();
    let payload = &whole[8..];
    let cut = [1, payload.len() / 2, payload.len() - 1]
        .map(|length| undisturbed.refused_at_once(&frame(length as u32, 1, 6, &payload[..length])));
    let garbage = [0xff, b'[']
        .map(|byte| undisturbed.refused_at_once(&frame(1 << 20, 1, 6, &vec![byte; 1 << 20])));
    assert_printed!(cut.join("\n"), garbage.join("\n"));
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_plan_that_does_not_fit_is_refused_and_the_connection_stays() {
    let undisturbed = Undisturbed::start();
    let mut client = Client::connect(&undisturbed.node.socket());
    for plan in [TestPlan::new(2, 2, |_, _| 900), TestPlan::new(1, 2, |_, _| 901)] {
        let table = ClockTable::from(&plan);
        let request = Request::PlanLoad { job: job(GOOD_JOB), label: "bad".into(), table };
        assert_eq!(client.ask(request).unwrap_err().code, RefusalCode::PlanDoesNotFit);
    }
    assert_eq!(client.status().gpus.len(), 4);
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_user_with_too_many_connections_is_told_so_and_others_still_get_in() {
    needs_root!();
    let undisturbed = Undisturbed::start();
    let user = Identity::trainer();
    let mut many = Relay::connect_beside(&undisturbed.node, &user, 128);
    many.say(&ClientMessage::Request(Request::Status));
    match many.answer() {
        DaemonMessage::Refusal(Refusal { code: RefusalCode::LimitReached, message, .. }) => {
            let uid = user.uid;
            let expected = format!("user {uid} has 128 connections open, and may not have more");
            assert!(message.starts_with(&expected), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let mut other = Relay::connect(&undisturbed.node, &Identity::other_trainer());
    other.say(&ClientMessage::Request(Request::Status));
    assert!(matches!(other.answer(), DaemonMessage::Response(Response::Status(_))));
    drop((many, other));
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_full_daemon_tells_so_and_root_still_gets_in() {
    needs_root!();
    let undisturbed = Undisturbed::start_with(&Setup { connections: 4, ..Setup::default() });
    let node = &undisturbed.node;
    let mut many = Vec::new();
    node.until("another user is refused", || {
        many.push(Relay::connect_beside(node, &Identity::trainer(), 8));
        let mut other = Relay::connect(node, &Identity::other_trainer());
        other.say(&ClientMessage::Request(Request::Status));
        match other.answer() {
            DaemonMessage::Refusal(refusal) if refusal.code == RefusalCode::LimitReached => {
                let expected = "4 connections are open, the administrator allows 4";
                assert_eq!(refusal.message, expected);
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    });
    assert!(node.find_job(GOOD_JOB).is_some());
    drop(many);
    undisturbed.assert_nothing_else_happened();
}
