//! What the daemon says no to, to whom, and in which words.

use pfo::ProblemCode;
use pfo_protocol::{GpuName, Refusal, RefusalCode, Request, SwapTarget};
use pfo_tests::{
    Client, Identity, MICROBATCHES, MachineSetup, Node, Rank, STAGES, Setup, TestPlan, Training,
    assert_printed, control::swap, hello, needs_root,
};

const JOB: &str = "job";

fn refused(node: &Node, rank: u32, stages: u32, gpu: GpuName) -> Refusal {
    Client::connect(&node.socket()).open(hello(JOB, rank, stages, gpu)).unwrap_err()
}

/// What a plan is refused with; says first that a plan that fits is not.
fn misfit(node: &Node, plan: &TestPlan) -> String {
    let refusal = node.load(JOB, plan).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::PlanDoesNotFit);
    refusal.to_string()
}

#[test]
fn a_gpu_that_the_node_does_not_have_is_named() {
    let node = Node::start();
    for name in ["GPU-00000000-0000-4000-8000-000000000000", "00000000:7F:00.0"] {
        let refusal = refused(&node, 0, 1, name.parse().unwrap());
        assert_eq!(refusal.code, RefusalCode::UnknownGpu);
        assert_eq!(refusal.message, format!("this node has no GPU {name}"));
    }
    node.assert_only_locked(&[]);
}

#[test]
fn a_gpu_may_be_named_by_its_pci_bus_id() {
    let node = Node::start();
    let id = node.status().gpus[2].pci_bus_id.as_str().to_lowercase();
    let mut client = Client::connect(&node.socket());
    let welcome = client.open(hello(JOB, 0, 1, id.parse().unwrap())).unwrap();
    assert_eq!(welcome.gpu_uuid, node.machine.uuid(2));
}

#[test]
fn a_gpu_that_somebody_else_holds_is_refused_with_who_holds_it() {
    let node = Node::start();
    let holder = Rank::open(&node, "holder", 0, 1, 2);
    let refusal = refused(&node, 0, 1, GpuName::Uuid(node.machine.uuid(0)));
    assert_eq!(refusal.code, RefusalCode::GpuHeld);
    let (uuid, uid, pid) = (node.machine.uuid(0), Identity::own().uid, std::process::id());
    assert_eq!(
        refusal.message,
        format!("GPU {uuid} is held by job holder, rank 0 (user {uid}, process {pid})")
    );
    let logged =
        [format!("job={JOB}"), format!("uid={uid}"), format!("pid={pid}"), uuid.to_string()];
    node.until_logged("refused a session");
    let log = node.log();
    let entry = log.lines().find(|line| line.contains("refused a session")).unwrap();
    assert!(logged.iter().all(|field| entry.contains(field)), "{entry}");
    assert_eq!(holder.session.problem(), None);
}

#[test]
fn a_gpu_that_mig_splits_is_refused() {
    let machine = MachineSetup { gpus: "2xA100", ..MachineSetup::default() };
    let node = Node::start_with(&Setup { machine, ..Setup::default() });
    node.machine.gpu(1).set_mig(true).unwrap();
    let uuid = node.machine.uuid(1);
    let refusal = refused(&node, 0, 1, GpuName::Uuid(uuid.clone()));
    assert_eq!(refusal.code, RefusalCode::MigEnabled);
    let expected = format!("MIG is enabled on GPU {uuid}: its clocks belong to all of its users");
    assert_eq!(refusal.message, expected);
    node.until_so("status says so", || node.status().gpus[1].mig);
    assert!(node.machine.clocks_set(1).is_empty() && node.machine.memory_lock(1).is_none());
}

#[test]
fn ranks_that_contradict_each_other_or_themselves_are_refused() {
    let node = Node::start();
    let _first = Rank::open(&node, JOB, 0, 2, 2);
    let gpu = || GpuName::Uuid(node.machine.uuid(1));
    let twice = refused(&node, 0, 2, gpu());
    assert_eq!(twice.code, RefusalCode::RankConflict);
    let pid = std::process::id();
    assert_eq!(twice.message, format!("rank 0 of job job is process {pid} already"));
    let other = refused(&node, 1, 3, gpu());
    assert_eq!(other.message, "rank 1 says that job job has 3 stages, its other ranks say 2");
    let beyond = refused(&node, 2, 2, gpu());
    assert_eq!(beyond.code, RefusalCode::Malformed);
    assert_eq!(beyond.message, "rank is 2, but there are only 2");
    // None of them keeps the GPU.
    let _second = Rank::open(&node, JOB, 1, 2, 2);
}

#[test]
fn a_user_gets_no_more_sessions_than_the_administrator_allows() {
    let node = Node::start_with(&Setup { sessions_per_user: 1, ..Setup::default() });
    let first = Rank::open(&node, JOB, 0, 2, 2);
    let refusal = refused(&node, 1, 2, GpuName::Uuid(node.machine.uuid(1)));
    assert_eq!(refusal.code, RefusalCode::LimitReached);
    assert_eq!(
        refusal.message,
        "the user has 1 sessions, the administrator allows 1 ([lease], as no rule matches)"
    );
    drop(first);
    node.until_is("sessions", &0, || node.status().daemon.sessions);
    let _second = Rank::open(&node, JOB, 1, 2, 2);
}

#[test]
fn a_plan_that_does_not_fit_is_refused_with_the_first_difference() {
    let setup = Setup { min_mhz: 300, max_mhz: 1500, ..Setup::default() };
    let node = Node::start_with(&setup);
    let ranks = Rank::open_all(&node, JOB, 2, 3);
    let plan = |stages, microbatches| TestPlan::new(stages, microbatches, |_, _| 900);
    let odd = TestPlan::new(2, 3, |stage, i| if (stage, i) == (1, 2) { 901 } else { 900 });
    let high = TestPlan::new(2, 3, |stage, i| if (stage, i) == (0, 5) { 1515 } else { 900 });
    let low = TestPlan::new(2, 3, |_, _| 210);
    let plans = [plan(4, 3), plan(2, 4), odd, high, low];
    assert_printed!(plans.map(|plan| misfit(&node, &plan)).join("\n"));
    // None of them is kept.
    assert_eq!(node.job(JOB).loaded, None);
    assert_eq!(node.swap(JOB, SwapTarget::Loaded).unwrap_err().code, RefusalCode::NoPlan);
    node.load(JOB, &plan(2, 3)).unwrap();
    drop(ranks);
    node.assert_only_locked(&[]);
}

#[test]
fn a_plan_for_another_order_than_the_ranks_have_run_is_refused() {
    let node = Node::start();
    let rank = Rank::open(&node, JOB, 0, 1, 2);
    rank.session.step_begin();
    for position in [1, 0, 2, 3] {
        rank.instruction(position);
    }
    rank.session.step_end();
    rank.session.step_begin();
    node.until_is("the rank's step", &Some(1), || node.rank(JOB, 0).step);
    assert_printed!(misfit(&node, &TestPlan::new(1, 2, |_, _| 900)));
}

#[test]
fn pfoctl_tells_a_refusal_in_the_same_words_with_its_exit_code() {
    let node = Node::start();
    let _rank = Rank::open(&node, JOB, 0, 1, 3);
    let plan = node.plan_file("plan.json", &TestPlan::new(2, 3, |_, _| 900).to_json());
    assert_printed!(node.pfoctl(&Identity::own(), &["plan", "swap", JOB, &plan]));
    // Root asks for anybody's job.
    let ran = node.pfoctl(&Identity::own(), &["plan", "swap", "nosuch", &plan]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stderr.contains(" job nosuch on this node\n"), "{ran:?}");
}

#[test]
fn a_user_outside_the_group_is_refused_and_trains_on_at_default_clocks() {
    needs_root!();
    let node = Node::start();
    let outsider = Identity::outsider();
    // First the socket's mode keeps the user out, then, with that opened up, the daemon itself.
    let mut printed = Vec::new();
    for (mode, code) in [(0o660, 151), (0o666, 2)] {
        use std::os::unix::fs::PermissionsExt;
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(node.socket(), permissions).unwrap();
        let mut training =
            Training::start_for(&node, &format!("outsider-{mode:o}"), &outsider, 3, &[]);
        let (status, report) = training.wait();
        assert!(status.success(), "{}", training.process.errors());
        for rank in report["ranks"].as_array().unwrap() {
            assert_eq!(rank["uid"], 61_237);
            assert_eq!(rank["steps"].as_array().unwrap().len(), 3);
            let problem = &rank["problem_at_setup"];
            assert_eq!(problem["code"], code, "{problem}");
            printed.push(problem["message"].as_str().unwrap().to_owned());
        }
        printed.push(node.pfoctl(&outsider, &["status"]).to_string());
    }
    assert_printed!(printed.join("\n"));
    for gpu in 0..STAGES as usize {
        assert!(node.machine.clocks_set(gpu).is_empty() && node.machine.memory_lock(gpu).is_none());
    }
    node.assert_only_locked(&[]);
}

#[test]
fn another_users_job_is_neither_seen_nor_swapped_but_by_an_administrator() {
    needs_root!();
    let node = Node::start();
    let plan = TestPlan::distinct(STAGES, MICROBATCHES, 600);
    let owner = Identity::trainer();
    let training = Training::start_on_plan(&node, JOB, &owner, &plan);
    let other = Identity::other_trainer();
    let uid = owner.uid.to_string();
    assert_printed!(
        node.pfoctl(&other, &["plan", "swap", JOB, "--default-clocks", "--user", &uid]),
        node.pfoctl(&other, &["plan", "swap", JOB, "--default-clocks"]),
    );
    let seen = node.pfoctl(&other, &["status", "--json"]).json();
    assert_eq!(seen["jobs"].as_array().unwrap().len(), 0, "{seen}");
    assert_eq!(node.job(JOB).plan.unwrap().number, 1);
    // The owner may, and so may an administrator.
    let file = node.plan_file("plan.json", &plan.to_json());
    let ran = node.pfoctl(&owner, &["plan", "swap", JOB, &file, "--wait"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(node.job(JOB).plan.unwrap().number, 2);
    let ran = node
        .pfoctl(&Identity::administrator(), &["plan", "swap", JOB, "--default-clocks", "--wait"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(node.job(JOB).plan, None);
    training.stop();
    node.assert_only_locked(&[]);
}

#[test]
fn an_administrator_must_say_whose_job_of_a_name_is_meant() {
    needs_root!();
    let machine = MachineSetup { gpus: "8xA40", ..MachineSetup::default() };
    let node = Node::start_with(&Setup { machine, ..Setup::default() });
    let gpus = ["--gpus", "4,5,6,7"];
    let one = Training::start(&node, JOB, &Identity::trainer(), &[]);
    let mut other = Training::start(&node, JOB, &Identity::other_trainer(), &gpus);
    // A session has its lease before its rank is one of the job's.
    let ranks = || node.status().jobs.iter().map(|job| job.ranks.len()).sum::<usize>();
    node.until_is("ranks", &8, ranks);
    let refusal = swap(&mut node.control(), JOB, SwapTarget::DefaultClocks, false).unwrap_err();
    assert_eq!(refusal.message, "several users have a job job, among them 61234 and 61235");
    let ran = node.pfoctl(
        &Identity::administrator(),
        &["plan", "swap", JOB, "--default-clocks", "--user", "61235", "--wait"],
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    other.process.signal(nix::sys::signal::Signal::SIGTERM);
    other.process.wait();
    one.process.signal(nix::sys::signal::Signal::SIGTERM);
}

#[test]
fn clocks_are_reset_for_administrators_only_and_never_those_of_a_lease() {
    needs_root!();
    let node = Node::start();
    node.lock_by_another_tool(3);
    let rank = Rank::open(&node, JOB, 0, 1, 2);
    node.take_up(JOB, &TestPlan::new(1, 2, |_, _| 900));
    rank.session.step_begin();
    node.until_is("the lock", &Some(900), || node.machine.sm_lock(0));
    assert_printed!(
        node.pfoctl(&Identity::trainer(), &["clocks", "reset"]),
        node.pfoctl(&Identity::trainer(), &["clocks", "reset", "--all"]),
    );
    let outcomes = |all: &[&str]| {
        let arguments = [&["clocks", "reset", "--json"], all].concat();
        let ran = node.pfoctl(&Identity::administrator(), &arguments);
        let outcomes = ran.json();
        let text = |outcome: &serde_json::Value| outcome["outcome"].as_str().unwrap().to_owned();
        outcomes.as_array().unwrap().iter().map(text).collect::<Vec<_>>()
    };
    let found = outcomes(&[]);
    assert_eq!(found[0], "leased by job job, rank 0: left alone");
    assert_eq!(found[3], "pfo has locked nothing");
    node.machine.assert_locks_are(&[(0, 900), (3, pfo_tests::FOREIGN_MHZ)]);
    assert_eq!(outcomes(&["--all"])[3], "reset, including locks that pfo did not set");
    node.machine.assert_locks_are(&[(0, 900)]);
    node.until_logged(&format!("old_mhz={}", pfo_tests::FOREIGN_MHZ));
    let log = node.log();
    let reset = log.lines().find(|line| line.contains("reset the clocks of GPU"));
    let foreign = format!("old_mhz={}", pfo_tests::FOREIGN_MHZ);
    assert!(log.contains(&foreign) && reset.is_some_and(|line| line.contains("old_mhz=")), "{log}");
    assert!(!log.contains("old_mhz=900"), "the lease continues: {log}");
    drop(rank);
    node.assert_only_locked(&[]);
}

#[test]
fn a_trainer_who_is_not_root_cannot_reset_clocks() {
    let node = Node::start();
    let user = Identity::trainer();
    let ran = node.pfoctl(&user, &["clocks", "reset"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stderr.contains("may not reset clocks"), "{ran:?}");
}

#[test]
fn the_shim_reports_a_refusal_once_at_setup_and_lets_the_training_run() {
    let node = Node::start();
    let _holder = Rank::open(&node, "holder", 0, 1, 2);
    let refused = Rank::open_anyway(&node, JOB, 0, 1, 2);
    let problem = refused.session.problem().unwrap();
    assert_eq!(problem.code, ProblemCode::Refused(RefusalCode::GpuHeld));
    refused.step();
    assert_eq!(refused.session.counters().sent, 0);
    assert_eq!(refused.session.counters().dropped, 10);
}

#[test]
fn every_request_of_a_job_that_is_not_there_is_refused_by_name() {
    let node = Node::start();
    let plan = TestPlan::new(1, 2, |_, _| 900);
    for refused in
        [node.load("nosuch", &plan).err(), node.swap("nosuch", SwapTarget::Previous).err()]
    {
        // An administrator asks for anybody's.
        let message = refused.unwrap().message;
        assert!(message.ends_with(" job nosuch on this node"), "{message}");
    }
    let reset = Request::ClocksReset { gpu: Some("GPU-1".parse().unwrap()), all: false };
    let refusal = node.control().ask(reset).unwrap_err();
    let denied = refusal.code == RefusalCode::NotAuthorized;
    assert!(denied || refusal.message == "this node has no GPU GPU-1", "{refusal}");
}
