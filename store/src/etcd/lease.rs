//! Leases: that of an agent, for what it says of itself, and those of jobs, for what is kept of them.
//! Each is renewed for as long as the agent lives, or takes part in the job.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Error, LeaseGrantOptions, LeaseKeepAliveStream, LeaseKeeper};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::members::Members;
use crate::error::StoreError;

/// gRPC's code for a lease that exists.
const EXISTS: i32 = 9;

/// gRPC's code for one that does not.
const NOT_FOUND: i32 = 5;

pub(super) struct Lease {
    members: Members,
    seconds: u16,
    /// The number under which others renew it, too.
    common: Option<i64>,
    held: Arc<Mutex<Option<Held>>>,
}

#[derive(Debug)]
struct Held {
    id: i64,
    renewing: JoinHandle<()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Lease {
    pub(super) fn of(members: Members, seconds: u16) -> Self {
        Self { members, seconds, common: None, held: Arc::default() }
    }

    /// A lease that all nodes with this number share: it expires when the last of them is gone.
    pub(super) fn in_common(members: Members, seconds: u16, number: i64) -> Self {
        Self { common: Some(number), ..Self::of(members, seconds) }
    }

    /// The lease; a new one if there is none or the last one has expired.
    pub(super) async fn id(&self) -> Result<i64, StoreError> {
        let mut held = self.held.lock().await;
        if let Some(held) = held.as_ref().filter(|held| !held.renewing.is_finished()) {
            return Ok(held.id);
        }
        let every = Duration::from_secs(self.seconds.into()) / 3;
        let (id, stream) = match self.common {
            None => (self.grant(None).await?, Err(every)),
            // Mostly another node has been granted it, so that the members have nothing to agree on.
            Some(number) => match self.members.client().lease_keep_alive(number).await {
                Ok(begun) => (number, Ok(begun)),
                Err(_) => (self.grant(Some(number)).await?, Err(Duration::ZERO)),
            },
        };
        let renewing = tokio::spawn(renew(self.members.clone(), id, every, stream));
        *held = Some(Held { id, renewing });
        Ok(id)
    }

    /// A lease of this number, or of any; of a number there may be one.
    async fn grant(&self, number: Option<i64>) -> Result<i64, StoreError> {
        let options = number.map(|number| LeaseGrantOptions::new().with_id(number));
        let grant = |client: &Client| {
            let (mut leases, options) = (client.lease_client(), options.clone());
            async move { leases.grant(self.seconds.into(), options).await }
        };
        match (self.members.ask(grant).await, number) {
            (Ok(granted), _) => Ok(granted.id()),
            (Err(Error::GRpcStatus(status)), Some(number))
                if i32::from(status.code()) == EXISTS =>
            {
                Ok(number)
            }
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Has the next write ask for another lease, if this is what was wrong with a write. Whatever else
    /// was, the lease is held: a store that is full grants no other one.
    pub(super) async fn forget_if_expired<T>(&self, id: i64, written: &Result<T, Error>) {
        if let Err(Error::GRpcStatus(status)) = written
            && i32::from(status.code()) == NOT_FOUND
        {
            self.held.lock().await.take_if(|held| held.id == id);
        }
    }
}

/// Renews a lease until it has expired, over a stream that has begun or, after a pause, over a new one.
async fn renew(
    members: Members,
    id: i64,
    every: Duration,
    stream: Result<(LeaseKeeper, LeaseKeepAliveStream), Duration>,
) {
    let mut client = members.client();
    let mut renewing = match stream {
        Ok(begun) => Ok(begun),
        Err(pause) => {
            sleep(pause).await;
            client.lease_keep_alive(id).await
        }
    };
    loop {
        match renewing {
            Ok((mut keeper, mut answers)) => loop {
                sleep(every).await;
                if keeper.keep_alive().await.is_err() {
                    break;
                }
                match timeout(every, answers.message()).await {
                    Ok(Ok(Some(answer))) if answer.ttl() > 0 => {}
                    Ok(Ok(Some(_))) => return,
                    _ => break,
                }
            },
            Err(Error::LeaseKeepAliveError(_)) => return,
            Err(error) => {
                tracing::debug!("cannot renew the lease in the store: {error}");
                members.was_unanswered();
                sleep(every / 5).await;
            }
        }
        renewing = client.lease_keep_alive(id).await;
    }
}
