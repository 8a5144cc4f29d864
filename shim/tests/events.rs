//! What a daemon hears from a trainer that trains undisturbed.

use crate::fake::Place;
use pfo::{Call, Chunk, DpRank, Instruction, Microbatch, RankDescription, Stage, Unit};
use pfo_protocol::{ClientMessage, Mark};

fn unit(instruction: Instruction, chunk: u16, microbatch: u32) -> Unit {
    Unit { instruction, chunk: Chunk(chunk), microbatch: Microbatch(microbatch) }
}

#[test]
fn the_hello_says_what_the_description_says() {
    let place = Place::new();
    let daemon = place.daemon();
    let description =
        RankDescription { first_step: 40, dp_rank: DpRank(1), dp_degree: 2, ..place.description() };
    let (_session, peer) = daemon.open(description);
    let hello = peer.hello();
    assert_eq!(hello.job.as_str(), "job");
    assert_eq!(hello.gpu.to_string(), "GPU-1234");
    assert_eq!((hello.position.pp_rank, hello.position.pp_degree), (Stage(3), 4));
    assert_eq!((hello.position.dp_rank, hello.position.dp_degree), (DpRank(1), 2));
    assert_eq!((hello.num_microbatches, hello.next_step), (Some(8), 40));
    assert!(hello.client.starts_with("libpfo "), "{}", hello.client);
}

#[test]
fn events_arrive_complete_and_in_order_with_their_sequence_and_time() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, mut peer) = place.session(&daemon);
    for _ in 0..3 {
        session.step_begin();
        for microbatch in 0..8 {
            session.instruction_begin(Instruction::Forward, microbatch);
            session.instruction_end();
        }
        session.step_end();
    }
    let mut last_ns = 0;
    let mut sequence = 0;
    let mut expect = |mark| {
        let event = peer.event();
        assert_eq!((event.sequence, event.mark), (sequence, mark));
        assert!(event.client_ns >= last_ns && event.client_ns > 0);
        last_ns = event.client_ns;
        sequence += 1;
    };
    for step in 0..3 {
        expect(Mark::StepBegin(step));
        for microbatch in 0..8 {
            let forward = unit(Instruction::Forward, 0, microbatch);
            expect(Mark::InstructionBegin(forward));
            expect(Mark::InstructionEnd(forward));
        }
        expect(Mark::StepEnd(step));
    }
    let counters = session.counters();
    assert_eq!((counters.sent, counters.dropped), (54, 0));
    assert!(counters.connected && counters.reconnects == 0);
}

#[test]
fn a_call_that_counts_from_another_time_on_carries_that_time() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, mut peer) = place.session(&daemon);
    let begin =
        Call::InstructionBegin { instruction: Instruction::Forward, chunk: 0, microbatch: None };
    let told = [(Call::StepBegin, 5), (begin, 7), (Call::InstructionEnd, 9), (Call::StepEnd, 11)];
    told.iter().for_each(|(call, at_ns)| session.tell_at(*call, *at_ns));
    assert_eq!(told.map(|_| peer.event().client_ns), [5, 7, 9, 11]);
}

#[test]
fn an_end_carries_the_unit_of_its_begin_also_when_the_microbatch_was_counted() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, mut peer) = place.session(&daemon);
    session.step_begin();
    for chunk in [0, 1, 0] {
        session.instruction_begin_in_chunk(Instruction::Backward, chunk, None);
        session.instruction_end();
    }
    peer.event();
    for (chunk, microbatch) in [(0, 0), (1, 0), (0, 1)] {
        let backward = unit(Instruction::Backward, chunk, microbatch);
        assert_eq!(
            peer.marks(2),
            [Mark::InstructionBegin(backward), Mark::InstructionEnd(backward)]
        );
    }
}

#[test]
fn guards_end_what_they_began() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, mut peer) = place.session(&daemon);
    {
        let _step = session.step();
        drop(session.instruction(Instruction::Load, None));
    }
    let load = unit(Instruction::Load, 0, 0);
    assert_eq!(
        peer.marks(4),
        [
            Mark::StepBegin(0),
            Mark::InstructionBegin(load),
            Mark::InstructionEnd(load),
            Mark::StepEnd(0)
        ]
    );
}

#[test]
fn a_session_that_is_dropped_says_goodbye() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, mut peer) = place.session(&daemon);
    session.step_begin();
    session.close();
    assert_eq!(peer.event().mark, Mark::StepBegin(0));
    assert_eq!(peer.rest(), [ClientMessage::Goodbye]);
}

#[test]
fn calls_may_come_from_any_thread() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, mut peer) = place.session(&daemon);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    session.step_begin();
                    session.step_end();
                }
            });
        }
    });
    let counters = session.counters();
    for sequence in 0..counters.sent {
        assert_eq!(peer.event().sequence, sequence);
    }
    assert_eq!(counters.dropped, 0);
}

#[test]
fn more_events_wait_for_a_daemon_that_does_not_read_than_in_a_socket_as_it_comes() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, _peer) = place.session(&daemon);
    while session.counters().dropped == 0 {
        session.step_begin();
    }
    let (usual, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    usual.set_nonblocking(true).unwrap();
    let event = [0; pfo_protocol::EVENT_FRAME_BYTES];
    let fit = (0..).take_while(|_| std::io::Write::write(&mut &usual, &event).is_ok()).count();
    let sent = session.counters().sent as usize;
    assert!(sent > fit * 3 / 2, "{sent} events fit, {fit} by default");
}
