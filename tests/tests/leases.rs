//! Who holds which GPU, and taking leases back.

use pfo::ProblemCode;
use pfo_protocol::{
    ClientMessage, ClosingReason, DaemonMessage, GpuName, LeaseTarget, RefusalCode, Request,
    Response,
};
use pfo_tests::{
    Client, Identity, MICROBATCHES, MachineSetup, Node, Rank, Relay, STAGES, Setup, TestPlan,
    Training, assert_printed, hello, needs_root,
};

const JOB: &str = "job";

/// A rank whose GPU pfo has locked.
fn locked_rank(node: &Node) -> Rank {
    let rank = Rank::open(node, JOB, 0, 1, 2);
    node.take_up(JOB, &TestPlan::new(1, 2, |_, _| 900));
    rank.session.step_begin();
    node.until_is("the lock", &Some(900), || node.machine.sm_lock(0));
    rank
}

fn problem(rank: &Rank) -> Option<ProblemCode> {
    rank.step();
    rank.session.problem().map(|problem| problem.code)
}

fn list(node: &Node) -> serde_json::Value {
    node.pfoctl(&Identity::own(), &["lease", "list", "--json"]).json()
}

#[test]
fn who_holds_which_gpu_since_when_at_which_clock_is_listed() {
    let node = Node::start();
    assert_printed!(node.pfoctl(&Identity::own(), &["lease", "list"]));
    let _rank = locked_rank(&node);
    node.until_is("the clock", &serde_json::json!(900), || {
        list(&node)["leases"][0]["observed_mhz"].clone()
    });
    let listed = list(&node);
    let lease = &listed["leases"][0];
    assert_eq!(listed["leases"].as_array().unwrap().len(), 1);
    assert_eq!(lease["gpu"]["uuid"], node.machine.uuid(0).as_str());
    assert_eq!((&lease["holder"]["job"], lease["holder"]["rank"].as_u64()), (&JOB.into(), Some(0)));
    assert_eq!(lease["holder"]["pid"], std::process::id());
    assert_eq!(lease["requested_mhz"], 900);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let held = now.as_secs() - lease["since_unix_s"].as_u64().unwrap();
    assert!(held < 60, "{held}");
    let text = node.pfoctl(&Identity::own(), &["lease", "list"]).stdout;
    assert!(text.contains(node.machine.uuid(0).as_str()) && text.contains(" 900 "), "{text}");
}

#[test]
fn who_holds_a_gpu_is_hidden_from_other_users_and_shown_to_administrators() {
    needs_root!();
    let node = Node::start_with(&Setup::without_agent());
    let uuid = node.machine.uuid(0);
    let mut rank = Relay::connect(&node, &Identity::trainer());
    let open = |job| ClientMessage::Hello(hello(job, 0, 1, GpuName::Uuid(uuid.clone())));
    rank.say(&open("secret"));
    assert!(matches!(rank.answer(), DaemonMessage::Welcome(_)));
    let mut other = Relay::connect(&node, &Identity::other_trainer());
    other.say(&open("j"));
    let DaemonMessage::Refusal(refusal) = other.answer() else { panic!("not refused") };
    assert_printed!(refusal);
    for arguments in [&["lease", "list"][..], &["status"], &["status", "--json"]] {
        let shown = |user: &Identity| node.pfoctl(user, arguments).stdout;
        let (own, admin) = (shown(&Identity::trainer()), shown(&Identity::administrator()));
        assert!(own.contains("secret") && admin.contains("secret"), "{own}\n{admin}");
        let other = shown(&Identity::other_trainer());
        let (uid, pid) = (Identity::trainer().uid.to_string(), rank.pid().to_string());
        // Whole words: any long number may have the digits of a process.
        let mut words = other.split(|c: char| !c.is_alphanumeric() && c != '.');
        let hidden = words.find(|word| ["secret", &uid, &pid].contains(word));
        assert_eq!(hidden, None, "{other}");
        assert!(other.contains("another") || other.contains("\"leased\": true"), "{other}");
    }
}

#[test]
fn a_revoked_job_trains_without_leases_until_they_are_allowed_again() {
    let node = Node::start();
    let rank = locked_rank(&node);
    let ran = node.pfoctl(&Identity::own(), &["lease", "revoke", JOB]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains(node.machine.uuid(0).as_str()), "{ran:?}");
    node.assert_only_locked(&[]);
    node.until_is(
        "the rank hears of it",
        &Some(ProblemCode::Closed(ClosingReason::Revoked)),
        || problem(&rank),
    );
    node.until_is("it asks again", &Some(ProblemCode::Refused(RefusalCode::Revoked)), || {
        problem(&rank)
    });
    let message = rank.session.problem().unwrap().to_string();
    assert_printed!(message);
    let revoked = &list(&node)["revoked"][0];
    assert_eq!((&revoked["job"], revoked["processes"].as_u64()), (&JOB.into(), Some(1)));
    let lifted = node.pfoctl(&Identity::own(), &["lease", "allow", JOB]);
    node.until_is("it gets its lease back", &None, || problem(&rank));
    let again = node.pfoctl(&Identity::own(), &["lease", "allow", JOB]);
    assert_printed!(lifted, again);
}

#[test]
fn a_revocation_ends_with_the_processes_that_held_the_leases() {
    let node = Node::start();
    let mut relay = Relay::connect(&node, &Identity::own());
    let name = |gpu| GpuName::Uuid(node.machine.uuid(gpu));
    relay.say(&ClientMessage::Hello(hello(JOB, 0, 1, name(0))));
    assert!(matches!(relay.answer(), DaemonMessage::Welcome(_)));
    let revoke = |gpu| match node.control().ask(Request::LeaseRevoke(LeaseTarget::Gpu(name(gpu)))) {
        Ok(Response::Revoked(ended)) => ended,
        other => panic!("{other:?}"),
    };
    assert_eq!(revoke(0)[0].holder.as_ref().unwrap().pid, relay.pid());
    node.until_is("sessions", &0, || node.status().daemon.sessions);
    // Nobody of the job gets the GPU; others do, and the job gets others.
    let open = |job: &str, gpu| Client::connect(&node.socket()).open(hello(job, 0, 1, name(gpu)));
    let refusal = open(JOB, 0).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Revoked);
    assert_printed!(refusal);
    open("other", 0).unwrap();
    open(JOB, 1).unwrap();
    relay.kill();
    node.until("a new process of the job gets it", || {
        open(JOB, 0).map(drop).map_err(|r| r.message)
    });
    assert!(list(&node)["revoked"].as_array().unwrap().is_empty());
    assert_eq!(revoke(2), []);
}

#[test]
fn users_end_their_own_leases_and_administrators_any() {
    needs_root!();
    let machine = MachineSetup { gpus: "4xA40", ..MachineSetup::default() };
    let node = Node::start_with(&Setup { machine, ..Setup::default() });
    let owner = Identity::trainer();
    let plan = TestPlan::distinct(STAGES, MICROBATCHES, 600);
    let mut training = Training::start_on_plan(&node, JOB, &owner, &plan);
    let (other, admin) = (Identity::other_trainer(), Identity::administrator());
    let uuid = node.machine.uuid(1).to_string();
    let uid = owner.uid.to_string();
    let whose = ["lease", "revoke", JOB, "--user", &uid];
    assert_printed!(
        node.pfoctl(&other, &whose),
        node.pfoctl(&other, &["lease", "revoke", &uuid]),
        node.pfoctl(&other, &["lease", "revoke", JOB]),
    );
    assert_eq!(node.status().daemon.sessions, STAGES);

    // One GPU by its user, all by an administrator.
    let ran = node.pfoctl(&owner, &["lease", "revoke", &uuid]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    node.until_is("sessions", &(STAGES - 1), || node.status().daemon.sessions);
    let ran = node.pfoctl(&admin, &["lease", "revoke", JOB, "--json"]);
    assert_eq!(ran.json().as_array().unwrap().len(), STAGES as usize - 1, "{ran:?}");
    node.assert_only_locked(&[]);
    // What an administrator took back the user does not give itself again.
    assert_eq!(node.pfoctl(&owner, &["lease", "allow", &uuid]).code, Some(0));
    assert_printed!(node.pfoctl(&owner, &["lease", "allow", JOB]));
    assert_eq!(node.pfoctl(&admin, &["lease", "allow", JOB]).code, Some(0));
    node.until_is("sessions", &STAGES, || node.status().daemon.sessions);
    assert!(training.process.ended().is_none(), "{}", training.process.errors());
    training.stop();
    node.assert_only_locked(&[]);
}
