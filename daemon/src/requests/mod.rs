//! The requests: each is authorized once, by what it requires, and its handler takes the permit.

mod explain;
mod grants;
mod leases;
mod maintenance;
mod plans;
mod power_limits;
mod reload;
mod reset;
mod status;
mod stream;
mod trials;
mod views;

use std::sync::Arc;

use pfo_keeper::GpuFacts;
use pfo_policy::{Caller, Claim, Permit, needs};
use pfo_protocol::{GpuListing, Refusal, RefusalCode, Request, Response};
use pfo_service::{Accounts, FileIdentity, NodeAccounts, User, Whose, blocking, catch_in};

pub(crate) use self::grants::watch_grants;
pub use self::reload::resolved;
pub(crate) use self::reload::{look_up_names_again, reload};
use self::stream::Stream;
pub(crate) use self::stream::stream;
use crate::host::journal;
use crate::job::Holds;
use crate::node::Node;
use crate::refusal::internal;

/// The result of a request.
pub(crate) enum Answer {
    Response(Response),
    /// A response, then frames until the connection ends.
    Stream(Response, Stream),
    /// A response, and another caller from now on.
    Caller(Response, Caller),
}

/// Authorizes and performs a request. A refusal is written to the journal. A panic is refused, and
/// the connection goes on.
pub(crate) async fn answer(
    node: &Arc<Node>,
    caller: &Caller,
    holds: &mut Holds,
    request: Request,
) -> Answer {
    let (user, pid) = (caller.peer.user(), caller.peer.pid);
    let answering = async {
        let permit = node.settings().authority.permit(caller, needs(&request))?;
        run(node, permit, holds, request).await
    };
    let answered = catch_in(&Whose::of(user.uid, pid), answering).await;
    answered.unwrap_or_else(|panicked| Err(panicked.into())).unwrap_or_else(|refusal| {
        tracing::warn!(
            name: journal::REFUSED, uid = user.uid.0, owner_uid = user.person.0, pid = pid.0,
            door = caller.agent.map(|_| "agent"), via_pid = caller.agent.map(|pid| pid.0),
            "refused a request of {caller}, process {pid}: {}", refusal.message
        );
        Answer::Response(Response::Refused(refusal))
    })
}

async fn run(
    node: &Arc<Node>,
    permit: Permit,
    holds: &mut Holds,
    request: Request,
) -> Result<Answer, Refusal> {
    let response = match request {
        Request::Trial { job, run, length, after } => {
            let job = node.jobs.select_whole(&permit, &job)?;
            let hold = holds.take(&node.jobs, job, &permit, after.is_some())?;
            trials::begin(&node.jobs, hold, run, (length, after)).await?
        }
        Request::TrialsEnd { job, keep } => {
            let job = node.jobs.select(&permit, &job)?;
            Response::TrialsEnded(holds.end(&job, keep)?)
        }
        Request::PlanSwap { job, target, at_step, after, wait } => {
            let job = node.jobs.select_for_swap(&permit, &job, (&target, at_step))?;
            plans::swap(node, &permit, job, (target, at_step, after), wait).await?
        }
        Request::PlanSwapHere { job, target, at_step, wait } => {
            let job = node.jobs.select(&permit, &job)?;
            plans::swap(node, &permit, job, (target, at_step, None), wait).await?
        }
        Request::WatchJobs => return Ok(Answer::Stream(Response::Done, stream::notices(node))),
        Request::Tap { job, counters } => {
            let node = Arc::clone(node);
            let tap = move || stream::tap(&node, &permit, &job, counters);
            let (ranks, stream) = blocking(tap).await??;
            return Ok(Answer::Stream(Response::Tapped(ranks), stream));
        }
        Request::OnBehalf { uid, pid, administrator } => {
            let claim = if administrator { Claim::Administrator } else { Claim::User };
            let groups = blocking(move || NodeAccounts.groups_of(uid)).await?.map_err(|errno| {
                let message = format!("the accounts of this node cannot be read now: {errno}");
                Refusal::new(RefusalCode::Internal, message, "try again later")
            })?;
            let user = User { uid, person: node.people.look_up(uid).await };
            return Ok(Answer::Caller(
                Response::Done,
                permit.caller().on_behalf(user, pid, groups, claim),
            ));
        }
        // Files are written and drivers called away from the thread that accepts connections.
        other => {
            let node = Arc::clone(node);
            let run = move || run_blocking(&node, &permit, other);
            blocking(run).await??
        }
    };
    Ok(Answer::Response(response))
}

fn run_blocking(node: &Node, permit: &Permit, request: Request) -> Result<Response, Refusal> {
    match request {
        Request::Gpus => list_gpus(node, permit, &[]).map(Response::Gpus),
        Request::Status => Ok(Response::Status(Box::new(status::status(node, permit)))),
        Request::Jobs => Ok(Response::Jobs(views::jobs(&node.jobs, &node.meters, permit))),
        Request::PlanLoad { job, label, table } => {
            plans::load(node, permit, &job, (label, table), true)
        }
        Request::PlanCheck { job, label, table } => {
            plans::load(node, permit, &job, (label, table), false)
        }
        Request::PlanRead(job) => plans::read(node, permit, &job),
        Request::SmClocks(gpu) => power_limits::sm_clocks(node, permit, &gpu),
        Request::PowerLimits(gpu) => power_limits::power_limits(node, permit, &gpu),
        Request::ClocksReset { gpu, all } => reset::reset(node, permit, gpu.as_ref(), all),
        Request::LedgerAcknowledge => reset::acknowledge(node, permit),
        Request::PolicyExplain { who, gpu } => explain::explain(node, permit, who, gpu.as_ref()),
        Request::Leases => leases::list(node, permit),
        Request::Drain { reason, release_driver } => {
            maintenance::drain(node, permit, reason, release_driver)
        }
        Request::Undrain => maintenance::undrain(node, permit),
        Request::Grant { uid, gpus, until_unix_s } => {
            grants::grant(node, permit, uid, &gpus, until_unix_s)
        }
        Request::GrantRevoke { uid, gpus } => grants::revoke(node, permit, uid, &gpus),
        Request::LeaseRevoke(target) => leases::revoke(node, permit, &target),
        Request::SettleTimes { gpu, times } => leases::settle(node, permit, &gpu, times),
        Request::PowerCap { gpu, limit_w } => leases::cap_power(node, permit, &gpu, limit_w),
        Request::LeaseAllow(target) => leases::allow(node, permit, &target),
        Request::Reload => {
            let (user, pid) = (permit.caller(), permit.pid());
            let uid = permit.uid().0;
            tracing::info!(uid, pid = pid.0, "{user}, process {pid} reloads the configuration");
            Ok(Response::Reloaded(reload(node)))
        }
        Request::Trial { .. }
        | Request::TrialsEnd { .. }
        | Request::PlanSwap { .. }
        | Request::PlanSwapHere { .. }
        | Request::WatchJobs
        | Request::Tap { .. }
        | Request::OnBehalf { .. } => {
            Err(internal(&"a waiting request reached a handler that cannot wait"))
        }
    }
}

/// The GPUs of the node in the driver's order: those whose device files the client has open, or all
/// if that is none.
///
/// # Errors
/// If there is no driver.
pub(crate) fn list_gpus(
    node: &Node,
    _: &Permit,
    open: &[FileIdentity],
) -> Result<Vec<GpuListing>, Refusal> {
    let driver = node.driver.ready()?;
    let given: Vec<_> = driver.gpus.iter().filter(|gpu| node.is_device_open(gpu, open)).collect();
    let listed = if given.is_empty() { driver.gpus.iter().collect() } else { given };
    Ok(listed.into_iter().map(|gpu| listing(gpu)).collect())
}

fn listing(gpu: &GpuFacts) -> GpuListing {
    GpuListing {
        uuid: gpu.uuid.clone(),
        pci_bus_id: gpu.pci_bus_id.clone(),
        model: gpu.model.clone(),
    }
}

#[cfg(test)]
#[path = "../../../policy/src/example_requests.rs"]
mod example_requests;

#[cfg(test)]
mod tests {
    use pfo_keeper::Ledger;
    use pfo_protocol::{Gid, JobSelector, Pid, SwapTarget, Uid};
    use pfo_service::{Door, Peer};
    use tempfile::TempDir;
    use tokio::runtime::Builder;

    use super::example_requests::{
        requests_for_administrators, requests_of_the_agent, requests_that_change_a_job,
        requests_that_look,
    };
    use super::*;
    use crate::cli::ConfigSource;
    use crate::job::JobKey;
    use pfo_policy::Config;

    /// A node without a driver and with root as its only administrator.
    fn node() -> (TempDir, Arc<Node>) {
        node_with("")
    }

    fn node_with(rules: &str) -> (TempDir, Arc<Node>) {
        let directory = tempfile::tempdir().unwrap();
        let groups = "[groups]\ntrainers = 'no-such-a'\nadministrators = 'no-such-b'\n";
        let text = groups.to_owned() + rules;
        let mut config = Config::parse(&text, "pfod.toml".as_ref()).unwrap();
        config.paths.ledger = directory.path().join("ledger.json");
        config.driver.library = directory.path().join("no-such-driver.so");
        let ledger = Ledger::open(&config.paths.ledger).unwrap();
        (directory, Arc::new(Node::new(ConfigSource::default(), config, ledger)))
    }

    /// One of each kind at least.
    fn every_request() -> Vec<Request> {
        let all = [
            requests_that_look(),
            requests_that_change_a_job(),
            requests_of_the_agent(),
            requests_for_administrators(),
        ];
        all.into_iter().flatten().collect()
    }

    fn caller(uid: u32, door: Door) -> Caller {
        let (groups, pid, uid) = (vec![Gid(uid)], Pid(1), Uid(uid));
        Caller::new(Peer { uid, person: uid, pid, groups, cgroups: Vec::new() }, door)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    async fn refusal(node: &Arc<Node>, caller: &Caller, request: Request) -> Option<Refusal> {
        match answer(node, caller, &mut Holds::default(), request).await {
            Answer::Response(Response::Refused(refusal)) => Some(refusal),
            _ => None,
        }
    }

    fn swap_of(uid: u32) -> Request {
        let job = JobSelector { job: "j".parse().unwrap(), uid: Some(Uid(uid)) };
        Request::PlanSwap {
            job,
            target: SwapTarget::DefaultClocks,
            at_step: None,
            after: None,
            wait: false,
        }
    }

    #[test]
    fn whatever_a_stranger_asks_is_refused_through_every_door() {
        let (_directory, node) = node();
        block_on(async {
            for door in [Door::Users, Door::Admin] {
                for request in every_request() {
                    let asked = format!("{request:?}");
                    let refusal = refusal(&node, &caller(1000, door), request).await;
                    let code = refusal.map(|refusal| refusal.code);
                    assert_eq!(code, Some(RefusalCode::NotAuthorized), "{asked}");
                }
            }
        });
    }

    #[test]
    fn every_request_of_an_administrator_is_answered_without_a_driver_or_a_job() {
        let (_directory, node) = node();
        block_on(async {
            for request in every_request() {
                let asked = format!("{request:?}");
                let (root, mut holds) = (caller(0, Door::Admin), Holds::default());
                let answered = answer(&node, &root, &mut holds, request);
                let answered = tokio::time::timeout(std::time::Duration::from_secs(20), answered);
                let Ok(Answer::Response(response)) = answered.await else { panic!("{asked}") };
                if let Response::Refused(refusal) = response {
                    assert_ne!(refusal.code, RefusalCode::Internal, "{asked}: {refusal}");
                }
            }
        });
    }

    #[test]
    fn the_agent_acts_for_one_user_for_the_rest_of_its_connection() {
        let (_directory, node) = node();
        let job = JobKey { uid: Uid(0), name: "j".parse().unwrap() };
        node.jobs.find_or_create(job, 1);
        block_on(async {
            let agent = caller(998, Door::Agent);
            assert!(refusal(&node, &agent, swap_of(0)).await.is_some(), "in its own name");
            let on_behalf =
                |uid, administrator| Request::OnBehalf { uid: Uid(uid), pid: None, administrator };
            let holds = &mut Holds::default();
            let answered = answer(&node, &agent, holds, on_behalf(0, false)).await;
            let Answer::Caller(Response::Done, root) = answered else { panic!() };
            assert!(refusal(&node, &root, swap_of(0)).await.is_none());
            assert!(refusal(&node, &root, swap_of(1000)).await.is_some(), "not as administrator");
            for request in [on_behalf(1000, false), on_behalf(0, true), Request::WatchJobs] {
                assert!(refusal(&node, &root, request).await.is_some(), "once and for all");
            }
        });
    }

    #[test]
    fn the_agent_leaves_a_bounded_number_of_jobs_for_all_the_users_that_it_names() {
        let (_directory, node) = node_with("[[rule]]\nusers = ['*']");
        let table = requests_that_change_a_job().into_iter().find_map(|request| match request {
            Request::PlanLoad { table, .. } => Some(table),
            _ => None,
        });
        let left = block_on(async {
            let mut left = 0;
            for uid in 300_000..300_010 {
                let agent = caller(998, Door::Agent);
                let request = Request::OnBehalf { uid: Uid(uid), pid: None, administrator: false };
                let answered = answer(&node, &agent, &mut Holds::default(), request).await;
                let Answer::Caller(_, user) = answered else { panic!() };
                for number in 0..30 {
                    let name = format!("j{number}").parse().unwrap();
                    let job = JobSelector { job: name, uid: Some(Uid(uid)) };
                    let table = table.clone().unwrap();
                    let target = SwapTarget::Table { label: "p".into(), table };
                    let swap = Request::PlanSwap {
                        job,
                        target,
                        at_step: Some(0),
                        after: None,
                        wait: false,
                    };
                    left += u32::from(refusal(&node, &user, swap).await.is_none());
                }
            }
            left
        });
        assert_eq!((left, node.jobs.all().len()), (256, 256));
    }

    #[test]
    fn the_groups_of_a_user_are_those_of_its_accounts_and_not_of_the_agent() {
        let (_directory, node) = node();
        block_on(async {
            let agent = caller(998, Door::Agent);
            let request =
                Request::OnBehalf { uid: Uid(u32::MAX - 7), pid: None, administrator: true };
            let answered = answer(&node, &agent, &mut Holds::default(), request).await;
            let Answer::Caller(Response::Done, nobody) = answered else { panic!() };
            assert!(nobody.peer.groups.is_empty(), "{nobody:?}");
            assert!(refusal(&node, &nobody, Request::Status).await.is_none());
            assert!(refusal(&node, &nobody, swap_of(0)).await.is_some());
        });
    }
}
