//! Whatever a daemon answers, the session says what it was and training goes on.

use crate::fake::{
    Daemon, PATIENCE, Peer, Place, code, eventually, one_step, until, welcome_frame,
};
use pfo::{ClosingReason, Gpu, ProblemCode, RankDescription, RefusalCode, Session};
use pfo_protocol::{Closing, DaemonMessage, GpuListing, Header, Kind, Refusal, Unsupported};

/// A session whose daemon, on another thread, does this with the first connection.
fn opened(place: &Place, daemon: &Daemon, act: impl FnOnce(Peer) + Send) -> Session {
    let description = RankDescription { setup_timeout: PATIENCE, ..place.description() };
    std::thread::scope(|scope| {
        scope.spawn(|| act(daemon.accept()));
        Session::open(description).unwrap()
    })
}

#[test]
fn a_refusal_comes_through_with_its_code_message_and_remedy() {
    let place = Place::new();
    let daemon = place.daemon();
    let session = opened(&place, &daemon, |peer| {
        peer.refuse(RefusalCode::GpuHeld, "held by job x", "wait for it");
    });
    let problem = session.problem().unwrap();
    assert_eq!(problem.code, ProblemCode::Refused(RefusalCode::GpuHeld));
    assert_eq!(problem.message, "held by job x");
    assert_eq!(problem.remedy, "wait for it");
    one_step(&session);
    assert_eq!(session.counters().dropped, 4);

    let _peer = daemon.welcome();
    until(|| session.problem().is_none());
}

#[test]
fn the_lease_says_what_the_daemon_granted_and_ends_with_the_connection() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, peer) = place.session(&daemon);
    let lease = session.lease().unwrap();
    assert_eq!((lease.gpu_uuid.as_str(), &lease.gpu_model[..]), ("GPU-1234", "model"));
    drop(peer);
    until(|| session.lease().is_none());
}

#[test]
fn a_refusal_that_comes_before_the_hello_is_heard_too() {
    let place = Place::new();
    let daemon = place.daemon();
    let session = opened(&place, &daemon, |mut peer| {
        let refusal = Refusal::new(RefusalCode::LimitReached, "64 connections", "close one");
        peer.say(&DaemonMessage::Refusal(refusal));
    });
    assert_eq!(code(&session), Some(ProblemCode::Refused(RefusalCode::LimitReached)));
}

#[test]
fn a_daemon_of_another_version_is_told_from_one_that_answers_nonsense() {
    let place = Place::new();
    let daemon = place.daemon();
    let session = opened(&place, &daemon, |mut peer| {
        peer.say(&DaemonMessage::Unsupported(Unsupported { oldest: 7, newest: 9 }));
    });
    let problem = session.problem().unwrap();
    assert_eq!(problem.code, ProblemCode::Unsupported);
    assert!(problem.message.contains("versions 7 to 9"), "{problem}");

    let place = Place::new();
    let daemon = place.daemon();
    let session = opened(&place, &daemon, |mut peer| {
        peer.say_bytes(&[0, 0, 0, 0, 7, 0, 129, 0]);
    });
    assert_eq!(code(&session), Some(ProblemCode::Unsupported));
}

#[test]
fn no_answer_of_a_daemon_does_harm() {
    let oversized = [0xff, 0xff, 0xff, 0x7f, 1, 0, 129, 0];
    let list = Header { kind: Kind::GpuList, length: 64 << 10 };
    let mut endless = list.to_bytes().to_vec();
    endless.resize(100_000, 7);
    let mut garbled = DaemonMessage::GpuList(Ok(Vec::new())).to_frame().unwrap();
    garbled[8] = 99;
    let answers: [&[u8]; 5] =
        [b"HTTP/1.1 400 Bad Request\r\n\r\n", &oversized, &endless, &garbled, &[0; 64]];
    for answer in answers {
        let place = Place::new();
        let daemon = place.daemon();
        let session = opened(&place, &daemon, |mut peer| {
            peer.read_hello();
            // The client may hang up before it has read everything.
            let _ = peer.try_say_bytes(answer);
        });
        let code = code(&session).unwrap();
        assert!(matches!(code, ProblemCode::Garbled | ProblemCode::Unsupported), "{code:?}");
        one_step(&session);
        assert_eq!(session.counters().dropped, 4);
    }
}

#[test]
fn garbage_inside_a_session_ends_nothing_but_the_session() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, mut peer) = place.session(&daemon);
    peer.say_bytes(&[7; 5000]);
    drop(peer);
    one_step(&session);
    until(|| code(&session).is_some());
    let _peer = eventually(|| Some(daemon.welcome()));
    until(|| session.problem().is_none());
}

#[test]
fn a_welcome_and_a_closing_in_one_breath_are_both_understood() {
    let place = Place::new();
    let daemon = place.daemon();
    let session = opened(&place, &daemon, |mut peer| {
        peer.read_hello();
        let closing = DaemonMessage::Closing(Closing {
            reason: ClosingReason::GpuLost,
            message: "fell off the bus".into(),
        });
        let mut both = welcome_frame();
        both.extend(closing.to_frame().unwrap());
        peer.say_bytes(&both);
    });
    let lost = ProblemCode::Closed(ClosingReason::GpuLost);
    until(|| code(&session) == Some(lost));
}

#[test]
fn a_cuda_ordinal_is_resolved_through_the_daemons_list_of_gpus() {
    if std::env::var_os("CUDA_VISIBLE_DEVICES").is_some() {
        eprintln!("skipped: CUDA_VISIBLE_DEVICES is set and renumbers");
        return;
    }
    let place = Place::new();
    let daemon = place.daemon();
    let listing = |uuid: &str, pci_bus_id: &str| GpuListing {
        uuid: uuid.parse().unwrap(),
        pci_bus_id: pci_bus_id.parse().unwrap(),
        model: "model".into(),
    };
    let description = RankDescription { gpu: Some(Gpu::CudaOrdinal(1)), ..place.description() };
    let (session, _peer) = std::thread::scope(|scope| {
        let opened = scope.spawn(|| Session::open(description).unwrap());
        let mut asked = daemon.accept();
        asked.read_list_gpus();
        asked.say(&DaemonMessage::GpuList(Ok(vec![
            listing("GPU-a", "00000000:07:00.0"),
            listing("GPU-b", "00000000:0B:00.0"),
        ])));
        assert_eq!(asked.rest(), [], "the request's connection is not kept");
        let peer = daemon.welcome();
        assert_eq!(peer.hello().gpu.to_string(), "GPU-b");
        (opened.join().unwrap(), peer)
    });
    assert_eq!(session.problem(), None);
}

#[test]
fn a_cuda_ordinal_that_does_not_exist_is_a_problem_and_not_a_wrong_gpu() {
    let place = Place::new();
    let daemon = place.daemon();
    let description = RankDescription { gpu: Some(Gpu::CudaOrdinal(5)), ..place.description() };
    let session = std::thread::scope(|scope| {
        let opened = scope.spawn(|| Session::open(description).unwrap());
        let mut asked = daemon.accept();
        asked.read_list_gpus();
        asked.say(&DaemonMessage::GpuList(Ok(Vec::new())));
        opened.join().unwrap()
    });
    let problem = session.problem().unwrap();
    assert_eq!(problem.code, ProblemCode::GpuUnresolved);
    assert!(problem.message.contains("cuda:5"), "{problem}");
}
