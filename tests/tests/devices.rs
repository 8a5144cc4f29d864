//! A lease only for what a process was given: the proof by the device file, and those who try without.

use nix::sys::signal::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use nix::libc::{O_PATH, linger};
use nix::sys::socket::{setsockopt, sockopt};
use pfo::{Gpu, ProblemCode, RankDescription, Session};
use pfo_protocol::{
    ClientMessage, ClosingReason, DaemonMessage, Event, GpuName, Mark, Refusal, RefusalCode,
    Request, Response,
};
use pfo_tests::{
    Client, Identity, Node, Rank, Relay, ServiceManager, Setup, TestPlan, Training, assert_printed,
    devices_in, hello, needs_root, say_skipped, wait,
};

const JOB: &str = "job";

/// The most descriptors that the kernel passes with one message (`SCM_MAX_FD`).
const MOST_PASSED: usize = 253;

/// Of these, pfod takes this many.
const MOST_TAKEN: usize = 64;

const WITHOUT_PROOF: &str = "[[rule]]\nrequire_device = false\n";

fn node(rules: &'static str) -> Node {
    Node::start_with(&Setup { rules, ..Setup::without_agent() })
}

fn hello_of(node: &Node, gpu: usize) -> ClientMessage {
    ClientMessage::Hello(hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(gpu))))
}

fn frame(node: &Node, gpu: usize) -> Vec<u8> {
    hello_of(node, gpu).to_frame().unwrap()
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Whether a hello for GPU 0 with these files has a lease.
fn leases(node: &Node, files: &[impl AsFd]) -> bool {
    let mut client = Client::connect(&node.socket());
    client.send_with(&frame(node, 0), files).unwrap();
    match client.until_welcome() {
        Ok(_) => {
            client.say(&ClientMessage::Goodbye);
            node.until_is("sessions", &0, || node.status().daemon.sessions);
            true
        }
        Err(refusal) => {
            assert_refused(node, 0, &refusal);
            false
        }
    }
}

/// The refusal says who, which file of which GPU, what requires it, and what to do.
fn assert_refused(node: &Node, gpu: usize, refusal: &Refusal) {
    assert_eq!(refusal.code, RefusalCode::NotAuthorized, "{refusal}");
    let device = node.machine.device(gpu);
    for named in [device.to_str().unwrap(), node.machine.uuid(gpu).as_str(), "[lease]", "user "] {
        assert!(refusal.message.contains(named), "{named}: {refusal}");
    }
    for way in ["job step", "require_device = false"] {
        assert!(refusal.remedy.contains(way), "{way}: {refusal}");
    }
}

fn descriptors_of_pfod(node: &mut Node) -> usize {
    let pid = node.daemon().process.pid();
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Waits until pfod has no more descriptors open than before; a connection may have ended since.
fn until_closed(node: &mut Node, before: usize) {
    wait::until_ok("pfod has closed all", || {
        // It looks which answers were read when somebody connects.
        let _ = node.status();
        match descriptors_of_pfod(node) {
            open if open <= before => Ok(()),
            open => Err(format!("{open} are open, {before} were before")),
        }
    });
}

#[test]
fn only_the_device_file_of_the_gpu_proves_that_a_process_was_given_it() {
    let node = node("");
    let none: [File; 0] = [];
    assert!(!leases(&node, &none), "no file");
    assert!(!leases(&node, &[open(&node.machine.device(1))]), "the file of another GPU");
    assert!(!leases(&node, &[open(Path::new("/dev/null"))]), "/dev/null");
    let elsewhere = tempfile::tempdir().unwrap();
    let look_alike = elsewhere.path().join(node.machine.device(0).file_name().unwrap());
    fs::write(&look_alike, "").unwrap();
    assert!(!leases(&node, &[open(&look_alike)]), "a file of the same name elsewhere");
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(!leases(&node, &[socket]), "a socket");
    assert!(leases(&node, &[open(&look_alike), open(&node.machine.device(0))]));
}

#[test]
fn a_device_file_that_is_not_open_for_reading_and_writing_proves_nothing() {
    let node = node("");
    let device = node.machine.device(0);
    let by_path_only = OpenOptions::new().read(true).custom_flags(O_PATH).open(&device).unwrap();
    assert!(!leases(&node, &[by_path_only]), "O_PATH");
    assert!(!leases(&node, &[File::open(&device).unwrap()]), "O_RDONLY");
    let write_only = File::options().write(true).open(&device).unwrap();
    assert!(!leases(&node, &[write_only]), "O_WRONLY");
}

#[test]
fn a_user_leases_the_gpus_whose_device_files_it_can_open_and_no_others() {
    needs_root!();
    let node = node("");
    (0..4).for_each(|gpu| node.machine.forbid_device(gpu, true));
    let answer = |gpu| {
        let mut user = Relay::connect(&node, &Identity::trainer());
        user.say(&hello_of(&node, gpu));
        let answer = user.answer();
        user.kill();
        node.until_is("sessions", &0, || node.status().daemon.sessions);
        answer
    };
    let refused = |gpu| match answer(gpu) {
        DaemonMessage::Refusal(refusal) => assert_refused(&node, gpu, &refusal),
        other => panic!("{other:?}"),
    };
    (0..4).for_each(refused);
    node.machine.forbid_device(2, false);
    assert!(matches!(answer(2), DaemonMessage::Welcome(_)));
    [0, 1, 3].into_iter().for_each(refused);
}

#[test]
fn a_device_file_that_is_made_later_is_used_without_a_restart() {
    let node = node("");
    let device = node.machine.device(0);
    fs::remove_file(&device).unwrap();
    let hello = hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(0)));
    let refusal = Client::connect(&node.socket()).open(hello.clone()).unwrap_err();
    assert_printed!(refusal);
    fs::write(&device, "").unwrap();
    Client::connect(&node.socket()).open(hello).unwrap();
}

#[test]
fn a_trainer_without_its_device_file_trains_on_and_says_why() {
    needs_root!();
    let node = node("");
    node.machine.forbid_device(1, true);
    let mut training = Training::start_for(&node, JOB, &Identity::trainer(), 3, &[]);
    let (status, report) = training.wait();
    assert!(status.success(), "{report}");
    assert_eq!(report["failed_steps"], 0, "{report}");
    let errors = training.process.errors();
    let device = node.machine.device(1).display().to_string();
    assert!(errors.contains(&format!("{device}, the device file of GPU")), "{errors}");
    assert_eq!(errors.matches("training at default clocks").count(), 1, "{errors}");
}

#[test]
fn of_a_thousand_files_the_first_few_count_and_none_stays_open() {
    let mut node = node("");
    let before = descriptors_of_pfod(&mut node);
    let (own, other) = (open(&node.machine.device(0)), open(&node.machine.device(1)));
    let hello = frame(&node, 0);
    for (own_at, is_leased) in [(0, true), (MOST_TAKEN - 1, true), (MOST_TAKEN, false)] {
        let mut files = vec![other.as_fd(); MOST_PASSED];
        files[own_at] = own.as_fd();
        let mut client = Client::connect(&node.socket());
        for (part, bytes) in hello.chunks(hello.len().div_ceil(4)).enumerate() {
            let files = if part == 0 { &files[..] } else { &vec![own.as_fd(); MOST_PASSED][..] };
            client.send_with(bytes, files).unwrap();
        }
        assert_eq!(client.until_welcome().is_ok(), is_leased, "at {own_at}");
        drop(client);
        node.until_is("sessions", &0, || node.status().daemon.sessions);
    }
    until_closed(&mut node, before);
}

#[test]
fn files_with_other_frames_are_closed_and_change_nothing() {
    let mut node = node("");
    let before = descriptors_of_pfod(&mut node);
    let device = open(&node.machine.device(0));
    let files: Vec<BorrowedFd<'_>> = vec![device.as_fd(); MOST_PASSED];
    let request = ClientMessage::Request(Request::Status).to_frame().unwrap();
    let mut asking = Client::connect(&node.socket());
    for _ in 0..40 {
        asking.send_with(&request, &files).unwrap();
        let answer = asking.answer().unwrap();
        assert!(matches!(answer, DaemonMessage::Response(Response::Status(_))), "{answer:?}");
    }
    // What came with an earlier frame is no proof for a later one.
    asking.send(&frame(&node, 0));
    assert_refused(&node, 0, &asking.until_welcome().unwrap_err());

    let mut garbled = Client::connect(&node.socket());
    garbled.send_with(b"no frame of this protocol", &files).unwrap();
    let mut training = Client::connect(&node.socket());
    training.send_with(&frame(&node, 0), &files).unwrap();
    training.until_welcome().unwrap();
    let event = Event { sequence: 0, client_ns: 0, mark: Mark::StepBegin(7) };
    let event = ClientMessage::Event(event).to_frame().unwrap();
    match training.send_with(&event, &files) {
        // From Linux 6.16 on, the kernel refuses these.
        Err(refused) if refused.kind() == ErrorKind::PermissionDenied => training.send(&event),
        passed => passed.unwrap(),
    }
    node.until_is("the step", &Some(7), || node.rank(JOB, 0).step);
    drop((asking, garbled, training));
    node.until_is("sessions", &0, || node.status().daemon.sessions);
    until_closed(&mut node, before);
}

#[test]
fn files_that_come_with_the_rest_of_a_hello_prove_nothing() {
    let node = node("");
    let (hello, device) = (frame(&node, 0), open(&node.machine.device(0)));
    let mut client = Client::connect(&node.socket());
    client.send(&hello[..20]);
    client.send_with(&hello[20..], &[device.as_fd()]).unwrap();
    assert_refused(&node, 0, &client.until_welcome().unwrap_err());
    // After a request, a hello is as good as at first.
    let mut client = Client::connect(&node.socket());
    let _ = client.status();
    client.send_with(&hello, &[device]).unwrap();
    client.until_welcome().unwrap();
}

/// A socket that blocks whoever closes it last for a minute, and its other end.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 65_536]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 60 }).unwrap();
    (stream, other)
}

#[test]
fn a_file_that_blocks_whoever_closes_it_delays_nobody() {
    let mut node = node("");
    let mut hostile = Client::connect(&node.socket());
    let (blocking, mut other) = lingering();
    // So that pfod, and not this process, is the last to close it.
    node.daemon().process.signal(Signal::SIGSTOP);
    hostile.send_with(&frame(&node, 0), &[blocking]).unwrap();
    node.daemon().process.signal(Signal::SIGCONT);
    assert_refused(&node, 0, &hostile.until_welcome().unwrap_err());
    let pid = node.daemon().process.pid();
    let closes = || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let names = threads
            .filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")).ok());
        names.filter(|name| name == "files\n").count()
    };
    assert_eq!(closes(), 1, "it is being closed");
    Client::connect(&node.socket())
        .open(hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(0))))
        .unwrap();
    assert_eq!(closes(), 1, "it is still being closed");
    other.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut rest = Vec::new();
    let _ = other.read_to_end(&mut rest);
}

#[test]
fn a_file_that_blocks_whoever_drops_it_unseen_delays_nobody() {
    let mut node = node("");
    let hello = frame(&node, 0);
    // One is dropped with the rest of a frame that is read, the other with a connection that is closed.
    let messages = [(&hello[..20], &hello[20..]), (&[0xff; 20], b"more".as_slice())];
    let mut hostile = Vec::new();
    node.daemon().process.signal(Signal::SIGSTOP);
    for (first, second) in messages {
        let mut client = Client::connect(&node.socket());
        let (blocking, other) = lingering();
        client.send(first);
        client.send_with(second, &[blocking]).unwrap();
        hostile.push((client, other));
    }
    node.daemon().process.signal(Signal::SIGCONT);
    for (client, _) in &mut hostile {
        client.answer().unwrap();
    }
    let _ = Client::connect(&node.socket()).status();
    let (_, others): (Vec<_>, Vec<_>) = hostile.into_iter().unzip();
    for mut other in others {
        other.set_nonblocking(true).unwrap();
        while other.read(&mut [0; 65_536]).is_ok_and(|read| read > 0) {}
    }
}

#[test]
fn a_file_with_an_event_is_refused_at_its_sender() {
    let node = node("");
    let mut client = Client::connect(&node.socket());
    client.open(hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(0)))).unwrap();
    let event = Event { sequence: 0, client_ns: 0, mark: Mark::StepBegin(7) };
    let event = ClientMessage::Event(event).to_frame().unwrap();
    match client.send_with(&event, &[open(Path::new("/dev/null"))]) {
        Err(refused) => assert_eq!(refused.kind(), ErrorKind::PermissionDenied),
        Ok(()) => say_skipped("this kernel has no SO_PASSRIGHTS, which Linux 6.16 has"),
    }
}

#[test]
fn a_file_that_is_sent_between_a_hello_and_its_answer_keeps_no_lease() {
    let mut node = node("");
    let event = Event { sequence: 0, client_ns: 0, mark: Mark::StepBegin(7) };
    let event = ClientMessage::Event(event).to_frame().unwrap();
    let mut hostile = Client::connect(&node.socket());
    let (blocking, _other) = lingering();
    node.daemon().process.signal(Signal::SIGSTOP);
    hostile.send_with(&frame(&node, 0), &devices_in(&node.machine.devices())).unwrap();
    hostile.send_with(&event, &[blocking]).unwrap();
    node.daemon().process.signal(Signal::SIGCONT);
    assert_eq!(hostile.until_welcome().unwrap_err().code, RefusalCode::Malformed);
    let mut next = Client::connect(&node.socket());
    next.open(hello("next", 0, 1, GpuName::Uuid(node.machine.uuid(0)))).unwrap();
}

#[test]
fn a_session_keeps_its_lease_over_a_restart_without_its_device_file() {
    let mut node = Node::create(&Setup::without_agent());
    let manager = ServiceManager::start(&mut node);
    let rank = Rank::open(&node, JOB, 0, 1, 2);
    node.take_up(JOB, &TestPlan::new(1, 2, |_, _| 900));
    let before = node.rank(JOB, 0).session;
    fs::remove_file(node.machine.device(0)).unwrap();
    manager.restart(&mut node);
    assert_eq!(node.rank(JOB, 0).session, before);
    rank.session.step_begin();
    node.until_is("the lock", &Some(900), || node.machine.sm_lock(0));
    assert_eq!((rank.session.problem(), rank.session.counters().reconnects), (None, 0));
    drop(rank);
    let refused = Rank::open_anyway(&node, JOB, 0, 1, 2).session.problem().unwrap();
    assert_printed!(refused);
}

#[test]
fn a_session_without_the_proof_ends_when_the_configuration_requires_it() {
    let mut node = node(WITHOUT_PROOF);
    let [mut without, mut with] = [0, 1].map(|_| Client::connect(&node.socket()));
    without.send(&frame(&node, 0));
    without.until_welcome().unwrap();
    with.open(hello("other", 0, 1, GpuName::Uuid(node.machine.uuid(1)))).unwrap();
    let text = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), text.replace("require_device = false", "")).unwrap();
    node.daemon().process.signal(Signal::SIGHUP);
    match without.answer().unwrap() {
        DaemonMessage::Closing(closing) => {
            assert_eq!(closing.reason, ClosingReason::Revoked);
            assert_printed!(closing.message);
        }
        other => panic!("{other:?}"),
    }
    node.until_is("sessions", &1, || node.status().daemon.sessions);
    with.tell(Mark::StepBegin(3));
    node.until_is("the step of the other", &Some(3), || node.rank("other", 0).step);
}

#[test]
fn clocks_and_power_limits_end_at_half_where_the_administrator_says_nothing() {
    let setup = Setup { min_mhz: 0, min_power_limit_w: 0, ..Setup::without_agent() };
    let node = Node::start_with(&setup);
    let _rank = Rank::open(&node, JOB, 0, 1, 2);
    let load = |mhz| node.load(JOB, &TestPlan::new(1, 2, |_, _| mhz));
    let refusal = load(855).unwrap_err();
    load(870).unwrap();
    assert_printed!(refusal, node.pfoctl(&Identity::own(), &["policy", "explain", "--gpu", "0"]),);
    let refusal = node.control().ask(Request::PowerLimits(GpuName::Uuid(node.machine.uuid(0))));
    assert!(matches!(refusal, Ok(Response::PowerLimits { lowest_w: 150, .. })), "{refusal:?}");
}

#[test]
fn a_floor_of_the_rule_stands_in_place_of_half() {
    let rules = "[[rule]]\nmin_mhz = 1\nmin_power_limit_w = 120\n";
    let setup = Setup { min_mhz: 0, min_power_limit_w: 0, rules, ..Setup::without_agent() };
    let node = Node::start_with(&setup);
    let _rank = Rank::open(&node, JOB, 0, 1, 2);
    node.load(JOB, &TestPlan::new(1, 2, |_, _| 210)).unwrap();
    assert_printed!(node.pfoctl(&Identity::own(), &["policy", "explain", "--gpu", "0"]));
}

#[test]
fn a_rank_that_computes_something_else_keeps_its_lease_and_no_clock() {
    let node = Node::start_with(&Setup { idle_limit_s: 1, ..Setup::without_agent() });
    let rank = Rank::open(&node, JOB, 0, 1, 2);
    node.take_up(JOB, &TestPlan::new(1, 2, |_, _| 900));
    let memory = node.machine.memory_lock(0);
    let locked = || (node.machine.sm_lock(0), node.machine.memory_lock(0));
    for _ in 0..2 {
        rank.session.step_begin();
        node.until_is("both locks", &(Some(900), memory), locked);
        let session = node.rank(JOB, 0).session;
        node.until_is("the locks", &(None, None), locked);
        node.until_is("locks in the ledger", &0, || node.ledger_entries());
        assert_eq!(node.rank(JOB, 0).session, session);
        rank.session.step_end();
    }
    assert_eq!((rank.session.problem(), rank.session.counters().reconnects), (None, 0));
}

/// A session of a process that can open the device files of these GPUs, and of no others.
fn session_that_can_open(node: &Node, gpus: &[usize], gpu: Option<Gpu>) -> Session {
    let own = node.directory().join("own-dev");
    let _ = fs::remove_dir_all(&own);
    fs::create_dir(&own).unwrap();
    for gpu in gpus {
        let device = node.machine.device(*gpu);
        symlink(&device, own.join(device.file_name().unwrap())).unwrap();
    }
    let session = Session::open(RankDescription {
        job: Some(JOB.into()),
        gpu,
        socket: Some(node.socket()),
        devices: Some(own),
        setup_timeout: wait::LONG,
        ..RankDescription::default()
    });
    session.unwrap()
}

#[test]
fn a_cuda_ordinal_counts_the_gpus_that_the_process_can_open() {
    if std::env::var_os("CUDA_VISIBLE_DEVICES").is_some() {
        say_skipped("CUDA_VISIBLE_DEVICES is set and renumbers");
        return;
    }
    let node = node("");
    for (gpus, gpu, expected) in [
        (&[2][..], None, 2),
        // CUDA counts by bus.
        (&[1, 3][..], Some(Gpu::CudaOrdinal(0)), 3),
        (&[1, 3][..], Some(Gpu::CudaOrdinal(1)), 1),
        (&[0, 1, 2, 3][..], Some(Gpu::CudaOrdinal(1)), 2),
    ] {
        let session = session_that_can_open(&node, gpus, gpu.clone());
        assert_eq!(session.problem(), None, "{gpus:?}");
        let holder = node.status().gpus[expected].holder.clone();
        assert!(holder.is_some(), "{gpu:?} of {gpus:?} is not GPU {expected}");
        drop(session);
        node.until_is("sessions", &0, || node.status().daemon.sessions);
    }
    let beyond = session_that_can_open(&node, &[1, 3], Some(Gpu::CudaOrdinal(2)));
    let problem = beyond.problem().unwrap();
    assert_printed!(problem);
}

#[test]
fn a_trainer_keeps_no_device_file_open() {
    let node = node("");
    let session = session_that_can_open(&node, &[0, 1], Some(Gpu::Uuid(node.machine.uuid(0))));
    assert_eq!(session.problem(), None);
    let own = node.machine.devices();
    let open = fs::read_dir("/proc/self/fd").unwrap().filter(|descriptor| {
        let link = fs::read_link(descriptor.as_ref().unwrap().path());
        link.is_ok_and(|file| file.starts_with(&own))
    });
    assert_eq!(open.count(), 0);
}

#[test]
fn a_gpu_by_name_that_the_process_cannot_open_is_refused() {
    let node = node("");
    let named = session_that_can_open(&node, &[1], Some(Gpu::Uuid(node.machine.uuid(0))));
    let problem = named.problem().unwrap();
    assert_eq!(problem.code, ProblemCode::Refused(RefusalCode::NotAuthorized), "{problem}");
    assert_printed!(problem);
}
