//! Who may do what, door by door: each request through each socket of pfod, as each kind of user.

use pfo_protocol::{
    ClientMessage, ClockTable, DaemonMessage, GpuName, JobSelector, LeaseTarget, Mhz, Pid, Refusal,
    RefusalCode, Request, Response, SettleTimes, SwapTarget, TrialLength, TrialRun, Uid, User,
};
use pfo_tests::{
    Client, Identity, Node, Rank, Relay, Setup, TestPlan, assert_printed, hello, needs_root,
};

const OWN_JOB: &str = "own";
const FOREIGN_JOB: &str = "foreign";

/// A node with a job of root and one of a trainer.
struct Doors {
    node: Node,
    trainer: Identity,
    _own: Rank,
    _foreign: Relay,
}

impl Doors {
    fn start() -> Self {
        let node = Node::start_with(&Setup::without_agent());
        let trainer = Identity::trainer();
        let own = Rank::open(&node, OWN_JOB, 0, 1, 2);
        let mut foreign = Relay::connect(&node, &trainer);
        let gpu = GpuName::Uuid(node.machine.uuid(1));
        foreign.say(&ClientMessage::Hello(hello(FOREIGN_JOB, 0, 1, gpu)));
        assert!(matches!(foreign.answer(), DaemonMessage::Welcome(_)));
        Self { node, trainer, _own: own, _foreign: foreign }
    }

    /// Every request with a letter. Capitals are for the trainer's job, what others may, and all jobs.
    fn requests(&self) -> Vec<(char, Request)> {
        let own = JobSelector { job: OWN_JOB.parse().unwrap(), uid: Some(Uid::ROOT) };
        let uid = Some(self.trainer.uid);
        let foreign = JobSelector { job: FOREIGN_JOB.parse().unwrap(), uid };
        let gpu = GpuName::Uuid(self.node.machine.uuid(0));
        let swap = |job: &JobSelector| {
            let (job, target) = (job.clone(), SwapTarget::DefaultClocks);
            Request::PlanSwap { job, target, at_step: None, after: None, wait: false }
        };
        let (gpu_uuid, times) = (self.node.machine.uuid(0), SettleTimes::always(15_000_000));
        // No GPU has this clock: who may measure is refused for that.
        let trial = |job: &JobSelector| {
            let (job, run) = (job.clone(), TrialRun::Uniform(Mhz(1)));
            let length = TrialLength { settling_steps: 1, steps: 1 };
            Request::Trial { job, run, length, after: None }
        };
        let end = |job: &JobSelector| Request::TrialsEnd { job: job.clone(), keep: false };
        let revoke = |uid| {
            // Nobody loses a lease: there is no such job.
            let job = JobSelector { job: "no-such-job".parse().unwrap(), uid: Some(uid) };
            Request::LeaseRevoke(LeaseTarget::Job(job))
        };
        let allow = |job: &JobSelector| Request::LeaseAllow(LeaseTarget::Job(job.clone()));
        let somebody = User { uid: self.trainer.uid, groups: Vec::new(), cgroup: None };
        let behalf = Request::OnBehalf { uid: Uid(61_299), pid: None, administrator: false };
        vec![
            ('g', Request::Gpus),
            ('s', Request::Status),
            ('n', Request::Leases),
            ('k', Request::SmClocks(gpu.clone())),
            ('p', Request::PowerLimits(gpu)),
            ('j', Request::Jobs),
            ('r', Request::PlanRead(own.clone())),
            ('x', Request::PolicyExplain { who: None, gpu: None }),
            ('X', Request::PolicyExplain { who: Some(somebody), gpu: None }),
            ('l', load(&own)),
            ('L', load(&foreign)),
            ('c', check(&own)),
            ('F', check(&foreign)),
            ('w', swap(&own)),
            ('W', swap(&foreign)),
            ('h', swap_here(&own)),
            ('H', swap_here(&foreign)),
            ('t', trial(&own)),
            ('T', trial(&foreign)),
            ('e', end(&own)),
            ('E', end(&foreign)),
            ('v', revoke(Uid::ROOT)),
            ('V', revoke(self.trainer.uid)),
            ('a', allow(&own)),
            ('A', allow(&foreign)),
            ('O', Request::Reload),
            ('C', Request::ClocksReset { gpu: None, all: false }),
            ('G', Request::Grant { uid: Uid(61_299), gpus: Vec::new(), until_unix_s: None }),
            ('N', Request::GrantRevoke { uid: Some(Uid(61_299)), gpus: Vec::new() }),
            ('K', Request::LedgerAcknowledge),
            ('M', Request::WatchJobs),
            ('S', Request::SettleTimes { gpu: gpu_uuid.clone(), times }),
            ('P', Request::PowerCap { gpu: gpu_uuid, limit_w: None }),
            ('U', Request::Tap { job: own, counters: false }),
            ('B', behalf),
        ]
    }

    /// The letters of what a peer may ask, each over a connection of its own.
    fn allowed(&self, mut ask: impl FnMut(Request) -> Result<Response, Refusal>) -> String {
        let mut letters = String::new();
        for (letter, request) in self.requests() {
            match ask(request) {
                Err(refusal) if refusal.code == RefusalCode::NotAuthorized => {}
                _ => letters.push(letter),
            }
        }
        letters
    }

    /// As root, who connects with this function.
    fn allowed_to(&self, connect: impl Fn() -> Client) -> String {
        self.allowed(|request| connect().ask(request))
    }

    /// As the agent, in the name of a user.
    fn allowed_for(&self, uid: Uid, administrator: bool) -> String {
        self.allowed_to(|| on_behalf(&self.node, uid, administrator))
    }
}

fn plan() -> (String, ClockTable) {
    ("plan".to_owned(), ClockTable::from(&TestPlan::new(1, 2, |_, _| 900)))
}

fn load(job: &JobSelector) -> Request {
    let (job, (label, table)) = (job.clone(), plan());
    Request::PlanLoad { job, label, table }
}

fn swap_here(job: &JobSelector) -> Request {
    let (job, target) = (job.clone(), SwapTarget::DefaultClocks);
    Request::PlanSwapHere { job, target, at_step: None, wait: false }
}

fn check(job: &JobSelector) -> Request {
    let (job, (label, table)) = (job.clone(), plan());
    Request::PlanCheck { job, label, table }
}

/// A connection of the agent that acts for a user.
fn on_behalf(node: &Node, uid: Uid, administrator: bool) -> Client {
    let mut client = node.control_as_agent();
    let pid = Some(Pid(std::process::id()));
    let behalf = Request::OnBehalf { uid, pid, administrator };
    assert_eq!(client.ask(behalf), Ok(Response::Done));
    client
}

#[test]
fn on_the_trainers_socket_root_is_an_ordinary_user() {
    needs_root!();
    let doors = Doors::start();
    assert_eq!(doors.allowed_to(|| doors.node.trainer_control()), "gsnkpjrxlcwhteva");
}

#[test]
fn a_trainer_changes_its_own_jobs_and_no_others() {
    needs_root!();
    let doors = Doors::start();
    let allowed = doors.allowed(|request| {
        let mut relay = Relay::connect(&doors.node, &doors.trainer);
        relay.say(&ClientMessage::Request(request));
        match relay.answer() {
            DaemonMessage::Response(Response::Refused(refusal))
            | DaemonMessage::Refusal(refusal) => Err(refusal),
            DaemonMessage::Response(response) => Ok(response),
            other => panic!("{other:?}"),
        }
    });
    // Whether it hears that root's job is there is another matter.
    assert_eq!(allowed.replace('r', ""), "gsnkpjxLFWHTEVA");
}

#[test]
fn the_socket_for_administration_is_for_everything_but_the_agents_part() {
    needs_root!();
    let doors = Doors::start();
    let everything = "gsnkpjrxXlLcFwWhHtTeEvVaAOCGNK";
    assert_eq!(doors.allowed_to(|| Client::connect(&doors.node.admin_socket())), everything);
}

#[test]
fn the_agent_in_its_own_name_only_looks() {
    needs_root!();
    let doors = Doors::start();
    assert_eq!(doors.allowed_to(|| doors.node.control_as_agent()), "gsnkpjrxMSPUB");
}

#[test]
fn the_agent_changes_and_measures_a_job_for_its_owner_only() {
    needs_root!();
    let doors = Doors::start();
    assert_eq!(doors.allowed_for(Uid::ROOT, false), "gsnkpjrxlcwhteU");
    // No account of this node has the trainer's uid, so that it may lease no GPU through the agent.
    let trainers = doors.allowed_for(doors.trainer.uid, false);
    assert_eq!(trainers.replace('r', ""), "gsnjxLFWHTE");
}

#[test]
fn the_journal_says_what_came_through_the_agent_whoever_that_names() {
    needs_root!();
    let node =
        Node::start_with(&Setup { rules: "[[rule]]\nusers = ['*']\n", ..Setup::without_agent() });
    let _rank = Rank::open(&node, "victims", 0, 1, 2);
    let as_root = |pid| {
        let mut agent = node.control_as_agent();
        let on_behalf = Request::OnBehalf { uid: Uid::ROOT, pid, administrator: true };
        assert_eq!(agent.ask(on_behalf), Ok(Response::Done));
        agent
    };
    let job = JobSelector { job: "victims".parse().unwrap(), uid: None };
    let target = SwapTarget::Uniform(Mhz(900));
    let swap = Request::PlanSwap { job, target, at_step: None, after: None, wait: false };
    as_root(Some(Pid(1))).ask(swap.clone()).unwrap();
    as_root(None).ask(swap).unwrap();
    as_root(Some(Pid(1))).ask(Request::Reload).unwrap_err();
    let (log, own) = (node.log(), std::process::id());
    let fields = format!("door=\"agent\" via_pid={own}");
    for said in [
        format!("pfo-agent (process {own}) for user 0 swaps job victims to"),
        format!("pfo-agent (process {own}), by itself, for user 0 swaps job victims to"),
        format!("refused a request of pfo-agent (process {own}) for user 0, process 1: "),
    ] {
        let line = log.lines().find(|line| line.contains(&said));
        assert!(line.is_some_and(|line| line.contains(&fields)), "{said}: {log}");
    }
}

#[test]
fn an_administrator_through_the_agent_changes_any_job_and_nothing_else() {
    needs_root!();
    let doors = Doors::start();
    assert_eq!(doors.allowed_for(Uid::ROOT, true), "gsnkpjrxlLcFwWhHtTeEU");
}

#[test]
fn a_user_without_an_account_is_no_administrator_through_the_agent() {
    needs_root!();
    let doors = Doors::start();
    let claimed = doors.allowed_for(doors.trainer.uid, true);
    assert_eq!(claimed.replace('r', ""), "gsnjxLFWHTE");
}

#[test]
fn a_gpu_is_leased_through_every_socket_but_the_agents() {
    needs_root!();
    let doors = Doors::start();
    let node = &doors.node;
    let gpu = || GpuName::Uuid(node.machine.uuid(2));
    for socket in [node.socket(), node.admin_socket()] {
        let mut client = Client::connect(&socket);
        client.open(hello("lease", 0, 1, gpu())).unwrap();
        client.say(&ClientMessage::Goodbye);
        client.assert_ended();
        node.until_is("sessions", &2, || node.status().daemon.sessions);
    }
    let refused = node.control_as_agent().open(hello("lease", 0, 1, gpu())).unwrap_err();
    assert_eq!(refused.code, RefusalCode::NotAuthorized, "{refused}");
    assert_printed!(refused);
    let mut acting = on_behalf(node, Uid::ROOT, true);
    acting.say(&ClientMessage::Hello(hello("lease", 0, 1, gpu())));
    assert!(!matches!(acting.answer(), Ok(DaemonMessage::Welcome(_))), "the agent has a lease");
}

#[test]
fn only_its_own_users_can_open_a_socket() {
    needs_root!();
    let node = Node::start_with(&Setup::without_agent());
    let (trainer, administrator) = (Identity::trainer(), Identity::administrator());
    let answers = |socket: &std::path::Path, user: &Identity| {
        let mut relay = Relay::connect_to(&node, socket, user);
        relay.say(&ClientMessage::Request(Request::Gpus));
        relay.try_answer().is_some()
    };
    assert!(answers(&node.socket(), &trainer));
    assert!(answers(&node.admin_socket(), &administrator));
    assert!(!answers(&node.socket(), &Identity::outsider()));
    assert!(!answers(&node.admin_socket(), &trainer));
    for user in [&trainer, &administrator, &Identity::outsider()] {
        assert!(!answers(&node.daemon_socket_for_agent(), user), "{user:?}");
    }
}

#[test]
fn refusals_through_the_wrong_door_name_the_right_one() {
    needs_root!();
    let doors = Doors::start();
    assert_printed!(
        doors.node.trainer_control().ask(Request::Reload).unwrap_err(),
        doors.node.control().ask(Request::WatchJobs).unwrap_err(),
    );
}
