//! Whether a hello gets the lease that it asks for, and why not.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use pfo_policy::Permit;
use pfo_protocol::{GpuUuid, Hello, Holder, Refusal, RefusalCode};
use pfo_service::blocking;

use super::{Opening, Origin, in_words};
use crate::job::JobKey;
use crate::lease::{Denied, Session};
use crate::node::Node;

/// How long to wait for the previous session of the same rank to end, and how often to check. A trainer
/// waits for the answer for 2 s.
const FORMER_SESSION_WAIT: Duration = Duration::from_millis(1500);
const FORMER_SESSION_POLL: Duration = Duration::from_millis(10);

/// Checks a hello and takes the lease that it requests.
///
/// # Errors
/// Why there is no session.
pub(crate) async fn open(
    node: &Arc<Node>,
    permit: &Permit,
    hello: Hello,
    origin: Origin,
    socket: OwnedFd,
) -> Result<Opening, Refusal> {
    let peer = &permit.caller().peer;
    hello.position.check().map_err(|error| {
        let remedy = "ranks count from 0; check the degrees (pp, dp, tp) that the trainer gives";
        Refusal::new(RefusalCode::Malformed, error.to_string(), remedy)
    })?;
    node.drain.check()?;
    let (asked, name) = (Arc::clone(&node.driver), hello.gpu.clone());
    // A driver that is being loaded must not block the runtime.
    let gpu = blocking(move || asked.gpu(&name)).await??;
    let is_given = || match &origin {
        Origin::Hello(open) => node.is_given(peer.uid, &gpu, open),
        Origin::LastDaemon(_) => true,
    };
    let has_device = is_given();
    let grant = node.grant(peer, &gpu, has_device)?;
    // What the last daemon saw is known only where it had to look.
    let is_known = matches!(origin, Origin::Hello(_)) || grant.terms.require_device;
    let has_device = has_device && is_known;
    let key = JobKey { uid: peer.uid, name: hello.job.clone() };
    let holder = Holder {
        job: hello.job.clone(),
        rank: hello.position.rank,
        uid: peer.uid,
        pid: peer.pid,
        session: match origin {
            Origin::Hello(_) => node.next_session(),
            Origin::LastDaemon(session) => session,
        },
    };
    let session = Arc::new(Session::new(holder, peer.person, grant, UnixStream::from(socket)));
    session.set_has_device(has_device);
    match (&origin, hello.next_step.checked_sub(1)) {
        // A rank that comes back to a new daemon is in the middle of its steps.
        (Origin::Hello(_), Some(step)) => session.progress.begin_step(step),
        (Origin::Hello(_), None) => {}
        (Origin::LastDaemon(_), _) => {
            session.mark_kept();
            session.progress.forget_step();
        }
    }
    let waiting_since = tokio::time::Instant::now();
    loop {
        match node.leases.acquire(&gpu.uuid, Arc::clone(&session)) {
            Ok(lease) => {
                // A reload, a revocation or the end of a grant that came in between did not see the
                // session.
                let has_device = has_device && is_given();
                session.set_has_device(has_device);
                session.grant.store(Arc::new(node.grant(peer, &gpu, has_device)?));
                node.revocations.check(&key, &gpu.uuid)?;
                node.drain.check()?;
                let node = Arc::clone(node);
                return Ok(Opening { node, lease, gpu, hello, origin, watch: None, begun: None });
            }
            Err(denied)
                if will_pass(&denied, &session.holder)
                    && waiting_since.elapsed() < FORMER_SESSION_WAIT =>
            {
                tokio::time::sleep(FORMER_SESSION_POLL).await;
            }
            Err(denied) => return Err(denial(&denied, permit, &gpu.uuid, &session)),
        }
    }
}

/// Whether the GPU is held only by the end of a previous session, or by an attempt that may still
/// be refused: repeated attempts must not keep the GPU from other users.
fn will_pass(denied: &Denied, own: &Holder) -> bool {
    match denied {
        Denied::Held(session) => {
            let other = &session.holder;
            let former = (other.uid, &other.job, other.rank) == (own.uid, &own.job, own.rank);
            former || !session.has_begun()
        }
        Denied::Restoring => true,
        Denied::TooMany(_) | Denied::Closed => false,
    }
}

fn denial(denied: &Denied, permit: &Permit, gpu: &GpuUuid, own: &Session) -> Refusal {
    match denied {
        Denied::Held(session) => {
            let (own, other) = (&own.holder, &session.holder);
            let holder =
                if permit.sees(other.uid) { in_words(session) } else { "another user".into() };
            let remedy = match (own.uid, &own.job) == (other.uid, &other.job) {
                _ if own.pid == other.pid && own.pid.0 > 0 => "close that session first",
                true if own.rank == other.rank => "end the process of the rank's former session",
                true => "two ranks are given the same GPU; check gpu, PFO_GPU and the local ranks",
                false => "use another GPU, or wait until that job ends",
            };
            Refusal::new(RefusalCode::GpuHeld, format!("GPU {gpu} is held by {holder}"), remedy)
        }
        Denied::Restoring => Refusal::new(
            RefusalCode::GpuUnavailable,
            format!("the clocks that an earlier session left on GPU {gpu} are being restored"),
            "wait until that is over, or see `pfoctl status`",
        ),
        Denied::Closed => Refusal::new(
            RefusalCode::ShuttingDown,
            "pfod is stopping",
            "the session opens again when pfod is back",
        ),
        Denied::TooMany(held) => {
            let grant = own.grant.load();
            let allowed = grant.terms.sessions_per_user.get();
            let place = &grant.place;
            let message = format!(
                "the user has {held} sessions, the administrator allows {allowed} ({place})"
            );
            let remedy = "end some, or ask for a higher sessions_per_user";
            Refusal::new(RefusalCode::LimitReached, message, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_policy::{Action, Authority, Caller, Config};
    use pfo_protocol::{Pid, Rank, SessionId, Uid};
    use pfo_service::{Door, NodeAccounts, Peer};

    use super::*;
    use crate::lease::example_grant;

    fn holder(uid: u32, rank: u32) -> Holder {
        let (job, pid, session) = ("j".parse().unwrap(), Pid(1), SessionId(1));
        Holder { job, rank: Rank(rank), uid: Uid(uid), pid, session }
    }

    fn session(uid: u32, rank: u32, terms: &str) -> Session {
        let stream = UnixStream::pair().unwrap().0;
        Session::new(holder(uid, rank), Uid(uid), example_grant(terms), stream)
    }

    fn held(uid: u32, rank: u32, has_begun: bool) -> Denied {
        let session = session(uid, rank, "");
        if has_begun {
            session.mark_begun();
        }
        Denied::Held(Arc::new(session))
    }

    #[test]
    fn a_rank_waits_for_the_end_of_its_former_session_and_for_no_other_that_has_begun() {
        let own = holder(7, 0);
        assert!(will_pass(&held(7, 0, true), &own));
        assert!(will_pass(&held(8, 0, false), &own), "it may be refused yet");
        assert!(will_pass(&Denied::Restoring, &own));
        assert!(!will_pass(&held(7, 1, true), &own));
        assert!(!will_pass(&held(8, 0, true), &own));
        assert!(!will_pass(&Denied::TooMany(3), &own) && !will_pass(&Denied::Closed, &own));
    }

    fn permit(uid: u32, door: Door) -> Permit {
        let config = Config::parse("[[rule]]\nusers = ['*']", "pfod.toml".as_ref()).unwrap();
        let (uid, person) = (Uid(uid), Uid(uid));
        let peer = Peer { uid, person, pid: Pid(3), groups: Vec::new(), cgroups: Vec::new() };
        let authority = Authority::new(&config, "node", &NodeAccounts);
        authority.permit(&Caller::new(peer, door), Action::SeeStatus).unwrap()
    }

    #[test]
    fn a_denial_names_who_holds_the_gpu_or_the_limit_and_what_set_it() {
        let gpu = "GPU-1".parse().unwrap();
        let root = permit(0, Door::Admin);
        let own = session(9, 0, "sessions_per_user = 3");
        let denied = |denied: &Denied| denial(denied, &root, &gpu, &own);
        let refusal = denied(&held(8, 5, true));
        assert_eq!(refusal.code, RefusalCode::GpuHeld);
        let by = "GPU GPU-1 is held by job j, rank 5 (user 8, process 1)";
        assert_eq!(refusal.message, by);
        for (uid, by) in [(8, by), (7, "GPU GPU-1 is held by another user")] {
            let user = permit(uid, Door::Users);
            let refusal = denial(&held(8, 5, true), &user, &gpu, &own);
            assert_eq!(refusal.message, by);
        }
        for (pid, rank, remedy) in [
            (2, 4, "two ranks are given the same GPU"),
            (2, 5, "the rank's former session"),
            (1, 4, "close that session first"),
            (1, 5, "close that session first"),
        ] {
            let mut own = session(8, rank, "");
            own.holder.pid = Pid(pid);
            let refusal = denial(&held(8, 5, true), &root, &gpu, &own);
            assert!(refusal.remedy.contains(remedy), "{refusal:?}");
        }
        let refusal = denied(&Denied::TooMany(3));
        assert_eq!(refusal.code, RefusalCode::LimitReached);
        assert!(
            refusal.message.contains("has 3 sessions, the administrator allows 3"),
            "{refusal}"
        );
        assert_eq!(denied(&Denied::Restoring).code, RefusalCode::GpuUnavailable);
        assert_eq!(denied(&Denied::Closed).code, RefusalCode::ShuttingDown);
    }
}
