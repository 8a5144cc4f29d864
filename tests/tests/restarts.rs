//! A daemon that systemd restarts, or starts again, under ranks that train: they keep their sessions.

use std::fs;
use std::thread;

use nix::sys::signal::Signal;
use pfo::ProblemCode;
use pfo_protocol::{
    ClientMessage, DaemonMessage, GpuName, Mark, Mhz, RefusalCode, Request, Response, SessionId,
    SwapTarget,
};
use pfo_tests::{
    Client, Identity, MICROBATCHES, Node, Rank, Relay, STAGES, ServiceManager, Setup, TestPlan,
    Training, control::job, hello, identity, needs_root,
};

const JOB: &str = "job";

fn managed_node() -> (Node, ServiceManager) {
    let mut node = Node::create(&Setup::default());
    let manager = ServiceManager::start(&mut node);
    (node, manager)
}

fn until_locked(node: &Node, gpu: usize, mhz: u32) {
    node.until_is(&format!("the lock of GPU {gpu}"), &Some(mhz), || node.machine.sm_lock(gpu));
}

/// Two ranks in the middle of a step of a plan.
fn two_ranks_on_plan(node: &Node) -> (Vec<Rank>, TestPlan) {
    let ranks = Rank::open_all(node, JOB, 2, 3);
    let plan = TestPlan::distinct(2, 3, 600);
    node.take_up(JOB, &plan);
    for (gpu, rank) in ranks.iter().enumerate() {
        rank.session.step_begin();
        rank.instruction(0);
        until_locked(node, gpu, plan.clocks(gpu as u32)[1]);
    }
    (ranks, plan)
}

fn sessions(node: &Node) -> Vec<SessionId> {
    node.job(JOB).ranks.iter().map(|rank| rank.session).collect()
}

fn assert_nothing_noticed(ranks: &[Rank]) {
    for rank in ranks {
        let counters = rank.session.counters();
        assert_eq!(rank.session.problem(), None);
        assert_eq!((counters.dropped, counters.reconnects), (0, 0));
    }
}

/// The ranks keep their sessions, and the first step that begins afterwards runs on the plan.
fn survives(interrupt: impl Fn(&ServiceManager, &mut Node)) {
    let (mut node, manager) = managed_node();
    node.lock_by_another_tool(3);
    let (ranks, plan) = two_ranks_on_plan(&node);
    let before = sessions(&node);
    let measured_for_s = node.job(JOB).measured_for_s;
    interrupt(&manager, &mut node);
    node.assert_only_locked(&[(3, pfo_tests::FOREIGN_MHZ)]);
    // Nobody is there to hear this.
    for rank in &ranks {
        (1..6).for_each(|position| rank.instruction(position));
        rank.session.step_end();
    }
    manager.start_daemon(&mut node);
    assert_eq!(sessions(&node), before);
    for (gpu, rank) in ranks.iter().enumerate() {
        rank.session.step_begin();
        until_locked(&node, gpu, plan.clocks(gpu as u32)[0]);
        rank.instruction(0);
        until_locked(&node, gpu, plan.clocks(gpu as u32)[1]);
    }
    assert_eq!(node.ledger_entries(), 2);
    assert_nothing_noticed(&ranks);
    let status = node.job(JOB);
    assert!(status.measured_for_s < measured_for_s + node.status().daemon.uptime_s);
    assert!(status.ranks.iter().all(|rank| (rank.step, rank.plan) == (Some(1), Some(1))));
    assert!(status.ranks.iter().all(|rank| rank.mismatched_steps + rank.lost_events == 0));
    drop(ranks);
    node.assert_only_locked(&[(3, pfo_tests::FOREIGN_MHZ)]);
    node.until_is("the store", &Vec::<String>::new(), || manager.stored());
}

#[test]
fn a_restart_costs_no_rank_its_session_and_one_step_its_clocks() {
    survives(ServiceManager::stop_daemon);
}

#[test]
fn a_daemon_that_is_killed_costs_no_rank_its_session_either() {
    survives(ServiceManager::kill_daemon);
}

#[test]
fn a_training_survives_restarts_and_kills_without_a_failed_step() {
    let (mut node, manager) = managed_node();
    let plan = TestPlan::distinct(STAGES, MICROBATCHES, 600);
    let training = Training::start_on_plan(&node, JOB, &Identity::trainer(), &plan);
    let before = sessions(&node);
    for round in 0..6 {
        if round % 2 == 0 {
            manager.stop_daemon(&mut node);
        } else {
            manager.kill_daemon(&mut node);
        }
        assert_eq!(node.ledger_entries(), 0);
        manager.start_daemon(&mut node);
        node.until("every rank is in a step of the plan", || {
            match node.job(JOB).ranks.iter().filter(|rank| rank.plan == Some(1)).count() {
                4 => Ok(()),
                ranks => Err(format!("{ranks} are")),
            }
        });
        assert_eq!(sessions(&node), before);
        let step = training.ranks(&node).iter().filter_map(|rank| rank.1).max().unwrap();
        training.until_step(&node, step + 2);
        assert!(node.job(JOB).ranks.iter().all(|rank| rank.mismatched_steps == 0));
    }
    let swapped_at = training.take_up(&node, &plan);
    training.until_step(&node, swapped_at + 1);
    let report = training.stop();
    for rank in report["ranks"].as_array().unwrap() {
        assert_eq!(rank["events"]["reconnects"], 0, "{rank}");
        assert_eq!(rank["events"]["dropped"], 0, "{rank}");
        assert_eq!(rank["problem"], serde_json::Value::Null);
    }
    node.assert_only_locked(&[]);
}

#[test]
fn a_daemon_that_is_stopped_for_good_leaves_nothing_locked() {
    let (mut node, manager) = managed_node();
    let (ranks, _) = two_ranks_on_plan(&node);
    manager.stop_for_good(&mut node);
    node.assert_only_locked(&[]);
    node.until("the ranks know", || {
        let lost = |rank: &&Rank| rank.session.problem().is_none();
        ranks.iter().find(lost).map_or(Ok(()), |_| Err("one does not".to_owned()))
    });
    ranks.iter().for_each(Rank::step);
}

#[test]
fn a_rank_that_ends_while_there_is_no_daemon_holds_nothing_afterwards() {
    let (mut node, manager) = managed_node();
    let (mut ranks, _) = two_ranks_on_plan(&node);
    manager.stop_daemon(&mut node);
    drop(ranks.pop());
    manager.start_daemon(&mut node);
    assert_eq!(node.status().daemon.sessions, 1);
    drop(Rank::open(&node, "next", 1, 2, 3));
    ranks[0].session.step_begin();
    node.until_is("the other rank's step", &Some(1), || node.rank(JOB, 0).step);
}

#[test]
fn a_trainer_killed_without_a_daemon_holds_nothing_through_its_child() {
    let (mut node, manager) = managed_node();
    let mut relay = Relay::connect_with_child(&node);
    relay.say(&ClientMessage::Hello(hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(0)))));
    relay.answer();
    node.until_is("what is stored", &2, || manager.stored().len());
    manager.stop_daemon(&mut node);
    relay.kill();
    manager.start_daemon(&mut node);
    node.until_is("sessions", &0, || node.status().daemon.sessions);
    node.until_is("the store", &Vec::<String>::new(), || manager.stored());
}

#[test]
fn who_may_not_train_any_more_is_told_so_at_the_restart() {
    needs_root!();
    let (mut node, manager) = managed_node();
    let mut relay = Relay::connect(&node, &Identity::trainer());
    relay.say(&ClientMessage::Hello(hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(0)))));
    relay.answer();
    node.until_is("what is stored", &2, || manager.stored().len());
    let (trainers, administrators) = identity::group_names();
    let text = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), text.replace(&trainers, &administrators)).unwrap();
    manager.restart(&mut node);
    match relay.answer() {
        DaemonMessage::Refusal(refusal) => {
            assert_eq!(refusal.code, RefusalCode::NotAuthorized, "{refusal}");
        }
        other => panic!("{other:?}"),
    }
    node.until_is("sessions", &0, || node.status().daemon.sessions);
}

#[test]
fn a_session_that_opens_as_the_daemon_stops_is_kept_as_soon_as_it_has_its_welcome() {
    let (mut node, manager) = managed_node();
    for round in 0..20 {
        let mut client = Client::connect(&node.socket());
        let gpu = GpuName::Uuid(node.machine.uuid(round % 4));
        client.say(&ClientMessage::Hello(hello(&format!("job-{round}"), 0, 1, gpu)));
        let welcome = client.until_welcome().unwrap();
        manager.restart(&mut node);
        let sessions = || node.status().jobs.iter().map(|job| job.ranks[0].session).collect();
        node.until_is("its session", &vec![welcome.session], sessions);
        client.say(&ClientMessage::Goodbye);
        client.assert_ended();
        node.until_is("sessions", &0, || node.status().daemon.sessions);
    }
}

#[test]
fn a_session_stored_by_another_version_ends_and_its_rank_opens_another() {
    for spoilt in [&[77, 0, 0, 0, 9, 0, 1, 0, 1, 1][..], b"", &[0; 64]] {
        let (mut node, manager) = managed_node();
        let (ranks, plan) = two_ranks_on_plan(&node);
        let before = sessions(&node);
        manager.stop_daemon(&mut node);
        manager.spoil_stored_files(spoilt);
        manager.start_daemon(&mut node);
        node.until_is("ranks that are back", &2, || {
            ranks.iter().filter(|rank| rank.session.problem().is_none()).count()
        });
        let after = sessions(&node);
        assert!(after.iter().all(|session| session > before.iter().max().unwrap()), "{after:?}");
        // A step that begins before the rank has its answer is lost to pfod.
        node.until_so("the ranks run their plan again", || {
            ranks.iter().for_each(Rank::step);
            (0..2).all(|gpu| node.machine.sm_lock(gpu) == Some(plan.clocks(gpu as u32)[0]))
        });
        drop(ranks);
        node.assert_only_locked(&[]);
    }
}

#[test]
fn half_a_frame_delays_no_restart_and_costs_only_its_own_session() {
    let (mut node, manager) = managed_node();
    let (ranks, plan) = two_ranks_on_plan(&node);
    let mut trickling = Client::connect(&node.socket());
    trickling.open(hello("trickle", 0, 1, GpuName::Uuid(node.machine.uuid(2)))).unwrap();
    node.until_is("what is stored", &6, || manager.stored().len());
    trickling.send(&[20, 0, 0, 0, 1]);
    // What it has not read by then is for the next one, and costs nothing.
    trickling.until_read();
    manager.restart(&mut node);
    trickling.assert_ended();
    assert_eq!(node.status().daemon.sessions, 2);
    ranks[0].session.step_begin();
    until_locked(&node, 0, plan.clocks(0)[0]);
    assert_nothing_noticed(&ranks);
}

#[test]
fn a_swap_at_a_later_step_happens_there_across_a_restart() {
    let (mut node, manager) = managed_node();
    let (ranks, first) = two_ranks_on_plan(&node);
    let second = TestPlan::new(2, 3, |_, _| 1200);
    let plan = node.plan_file("plan.json", &second.to_json());
    let arguments = ["plan", "swap", JOB, &plan, "--at-step", "2", "--json"];
    assert_eq!(node.pfoctl(&Identity::own(), &arguments).json()["step"], 2);
    manager.restart(&mut node);
    for (gpu, rank) in ranks.iter().enumerate() {
        rank.session.step_begin();
        until_locked(&node, gpu, first.clocks(gpu as u32)[0]);
    }
    assert_eq!(node.job(JOB).swap_at_step, Some(2));
    for (gpu, rank) in ranks.iter().enumerate() {
        rank.session.step_begin();
        until_locked(&node, gpu, 1200);
    }
    assert_eq!(node.job(JOB).swap_at_step, None);
}

#[test]
fn a_swap_begins_as_soon_as_it_is_known_again_how_far_the_ranks_are() {
    let (mut node, manager) = managed_node();
    let (ranks, _) = two_ranks_on_plan(&node);
    manager.restart(&mut node);
    let refusal = node.swap(JOB, SwapTarget::DefaultClocks).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::LimitReached);
    assert_eq!(refusal.message, "rank 0 of job job has begun no step since pfod was restarted");
    // Whoever waits for the swap waits for that, too.
    let waiting = Request::PlanSwap {
        job: job(JOB),
        target: SwapTarget::DefaultClocks,
        at_step: None,
        after: None,
        wait: true,
    };
    let mut client = Client::connect(&node.socket());
    client.say(&ClientMessage::Request(waiting));
    ranks[0].session.step_begin();
    node.until_is("a rank in step 1", &Some(1), || node.rank(JOB, 0).step);
    assert_eq!(node.job(JOB).swap_at_step, None);
    ranks[1].session.step_begin();
    node.until_is("the swap", &Some(2), || node.job(JOB).swap_at_step);
    ranks.iter().for_each(|rank| rank.session.step_begin());
    match client.answer().unwrap() {
        DaemonMessage::Response(Response::Swapped(swapped)) => {
            assert_eq!((swapped.step, swapped.changed, swapped.ranks), (2, 2, 2));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_two_swaps_that_follow_the_same_one_a_single_one_takes_place_also_after_a_restart() {
    let (mut node, manager) = managed_node();
    let (ranks, _) = two_ranks_on_plan(&node);
    let mut client = Client::connect(&node.socket());
    let Ok(Response::Jobs(jobs)) = client.ask(Request::Jobs) else { panic!("no jobs") };
    let after = Some(jobs[0].swap);
    manager.restart(&mut node);
    ranks.iter().for_each(|rank| rank.session.step_begin());
    node.until_is("the steps of all", &Some(1), || {
        node.job(JOB).ranks.iter().map(|rank| rank.step).min().flatten()
    });
    let swap = |target| {
        let request =
            Request::PlanSwap { job: job(JOB), target, at_step: None, after, wait: false };
        Client::connect(&node.socket()).ask(request)
    };
    let answers = thread::scope(|scope| {
        let asking: Vec<_> = [SwapTarget::DefaultClocks, SwapTarget::Uniform(Mhz(900))]
            .map(|target| scope.spawn(|| swap(target)))
            .into();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
    });
    let refused: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].message.contains("the newest swap of the job is number"), "{refused:?}");
    assert_eq!(swap(SwapTarget::Previous).unwrap_err().message, refused[0].message);
}

#[test]
fn a_rollback_after_a_restart_leads_to_the_plan_that_ran_before() {
    let (mut node, manager) = managed_node();
    let (ranks, first) = two_ranks_on_plan(&node);
    node.take_up(JOB, &TestPlan::new(2, 3, |_, _| 1200));
    ranks.iter().for_each(|rank| rank.session.step_begin());
    (0..2).for_each(|gpu| until_locked(&node, gpu, 1200));
    manager.restart(&mut node);
    ranks.iter().for_each(|rank| rank.session.step_begin());
    (0..2).for_each(|gpu| until_locked(&node, gpu, 1200));
    let ran = node.pfoctl(&Identity::own(), &["plan", "rollback", JOB, "--json"]);
    assert_eq!(ran.json()["plan"]["number"], 1, "{ran:?}");
    ranks.iter().for_each(|rank| rank.session.step_begin());
    (0..2).for_each(|gpu| until_locked(&node, gpu, first.clocks(gpu as u32)[0]));
}

#[test]
fn a_suspended_plan_stays_suspended_and_status_says_why() {
    let (mut node, manager) = managed_node();
    let (ranks, _) = two_ranks_on_plan(&node);
    let suspended = || node.job(JOB).plan.unwrap().suspended;
    for _ in 0..3 {
        ranks[0].session.step_begin();
        ranks[0].instruction(3);
    }
    let why = node.until("the plan is suspended", || suspended().ok_or("it is not".to_owned()));
    manager.restart(&mut node);
    assert_eq!(node.job(JOB).plan.unwrap().suspended, Some(why));
    ranks.iter().for_each(|rank| rank.session.step_begin());
    node.until_is("ranks that have begun a step", &2, || {
        node.job(JOB).ranks.iter().filter(|rank| rank.step.is_some()).count()
    });
    assert!(node.status().gpus.iter().all(|gpu| gpu.requested_mhz.is_none()));
    assert_eq!((node.machine.sm_lock(0), node.machine.sm_lock(1)), (None, None));
}

#[test]
fn without_systemd_the_ranks_open_other_sessions_and_find_their_plan() {
    let mut node = Node::start();
    let (ranks, plan) = two_ranks_on_plan(&node);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        node.daemon().process.signal(signal);
        node.daemon().process.wait();
        node.daemon = None;
        node.start_daemon();
        node.until("the ranks are back", || {
            ranks.iter().for_each(Rank::step);
            let back = ranks.iter().all(|rank| rank.session.problem().is_none());
            if back { Ok(()) } else { Err("not yet".to_owned()) }
        });
        ranks.iter().for_each(|rank| rank.session.step_begin());
        (0..2).for_each(|gpu| until_locked(&node, gpu, plan.clocks(gpu as u32)[0]));
    }
    let code = ranks[0].session.problem().map(|problem| problem.code);
    assert_ne!(code, Some(ProblemCode::NoDaemon));
    drop(ranks);
    node.assert_only_locked(&[]);
}

#[test]
fn an_event_that_was_told_before_the_restart_is_not_told_again() {
    let (mut node, manager) = managed_node();
    let mut client = Client::connect(&node.socket());
    client.open(hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(0)))).unwrap();
    client.tell(Mark::StepBegin(0));
    node.until_is("the step", &Some(0), || node.rank(JOB, 0).step);
    node.until_is("what is stored", &2, || manager.stored().len());
    manager.stop_daemon(&mut node);
    client.tell(Mark::StepEnd(0));
    client.tell(Mark::StepBegin(1));
    manager.start_daemon(&mut node);
    node.until_is("the step", &Some(1), || node.rank(JOB, 0).step);
    assert_eq!(node.rank(JOB, 0).lost_events, 0);
    client.lose(3);
    client.tell(Mark::StepEnd(1));
    node.until_is("lost events", &3, || node.rank(JOB, 0).lost_events);
}

#[test]
fn a_lease_that_was_revoked_is_not_given_again_by_the_next_daemon_either() {
    let (mut node, manager) = managed_node();
    let mut relay = Relay::connect(&node, &Identity::own());
    let open = |node: &Node| {
        let gpu = GpuName::Uuid(node.machine.uuid(0));
        Client::connect(&node.socket()).open(hello(JOB, 0, 1, gpu)).map(drop)
    };
    relay.say(&ClientMessage::Hello(hello(JOB, 0, 1, GpuName::Uuid(node.machine.uuid(0)))));
    relay.answer();
    let ran = node.pfoctl(&Identity::own(), &["lease", "revoke", JOB]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    manager.restart(&mut node);
    assert_eq!(open(&node).unwrap_err().code, RefusalCode::Revoked);
    manager.kill_daemon(&mut node);
    manager.start_daemon(&mut node);
    let listed = node.pfoctl(&Identity::own(), &["lease", "list", "--json"]).json();
    assert_eq!(listed["revoked"][0]["processes"], 1, "{listed}");
    manager.stop_daemon(&mut node);
    relay.kill();
    manager.start_daemon(&mut node);
    node.until("a new process of the job gets it", || open(&node).map_err(|r| r.message));
}

/// Whether a job runs a plan, as far as pfod says.
fn runs_a_plan(node: &Node, job: &str) -> bool {
    node.find_job(job).is_some_and(|job| job.plan.is_some())
}

#[test]
fn a_job_that_every_daemon_dies_of_is_left_out_in_the_end_and_no_other() {
    let (mut node, manager) = managed_node();
    let deadly = Rank::open(&node, "deadly", 0, 2, 3);
    let other = Rank::open(&node, JOB, 1, 2, 3);
    let plan = TestPlan::distinct(2, 3, 600);
    ["deadly", JOB].iter().for_each(|job| drop(node.take_up(job, &plan)));
    // The first daemon has taken nothing up. The other job has the newer session, and so is the first
    // suspect.
    node.machine.fault("nvmlDeviceSetGpuLockedClocks", "crash", Some(0));
    let mut deaths = 0;
    while runs_a_plan(&node, "deadly") {
        assert!(runs_a_plan(&node, JOB) || deaths == 5, "left out after {deaths} deaths");
        deadly.step();
        manager.daemon_has_died(&mut node);
        manager.start_daemon(&mut node);
        deaths += 1;
        // A rank without a session opens one with its next event.
        node.until_so("the other has a session", || {
            other.step();
            node.find_job(JOB).is_some_and(|job| !job.ranks.is_empty())
        });
    }
    assert_eq!(deaths, 6);
    let uid = Identity::own().uid;
    for job in ["deadly", JOB] {
        node.until_logged(&format!("left out job {job} of user {uid}"));
        let log = node.log();
        let entry =
            log.lines().find(|line| line.contains(&format!("left out job {job} of user {uid}")));
        assert!(
            entry.is_some_and(
                |entry| entry.contains(&format!("uid={uid}")) && entry.contains(".json")
            ),
            "{log}"
        );
    }
    node.until_so("the job trains without a plan", || {
        deadly.step();
        node.find_rank("deadly", 0).is_some_and(|rank| rank.step.is_some())
    });
    other.session.step_begin();
    until_locked(&node, 1, plan.clocks(1)[0]);
    assert_eq!(node.machine.sm_lock(0), None);
    assert!(runs_a_plan(&node, JOB));
}

#[test]
fn any_number_of_kills_leaves_no_job_out() {
    let (mut node, manager) = managed_node();
    let (ranks, plan) = two_ranks_on_plan(&node);
    let before = sessions(&node);
    for _ in 0..8 {
        manager.kill_daemon(&mut node);
        manager.start_daemon(&mut node);
    }
    assert_eq!(sessions(&node), before);
    for (gpu, rank) in ranks.iter().enumerate() {
        rank.session.step_begin();
        until_locked(&node, gpu, plan.clocks(gpu as u32)[0]);
    }
    assert_nothing_noticed(&ranks);
}
