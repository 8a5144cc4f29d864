//! The members of etcd, any of which may be away.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// How long a question is repeated, and the pauses in between at first and at most. The client hands each
/// question to any member, also to one that it cannot reach, or that waits for a leader that is gone.
const REPEATING: Duration = Duration::from_secs(5);
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// gRPC's codes for a connection that broke, an error below gRPC, and a member that cannot serve.
const UNREACHED: [i32; 3] = [1, 2, 14];

/// How long the first member may take to answer before the others are connected to, too, and the
/// milliseconds after which they are anyway: those of many nodes that start at once are spread.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
const OTHERS_AFTER_MS: std::ops::Range<u64> = 10_000..40_000;

/// A client that connects to one member, whichever, and later to the others.
///
/// A connection over TLS costs a member more than all that a node asks to join a job, and a thousand
/// nodes may join one at once.
#[derive(Clone)]
pub(super) struct Members {
    client: Client,
    count: usize,
    heard: Arc<Heard>,
}

/// What became of questions so far.
#[derive(Default)]
struct Heard {
    has_answered: AtomicBool,
    unanswered: Notify,
}

impl Members {
    /// Connects when it is used.
    pub(super) async fn open(endpoints: &[String], options: ConnectOptions) -> Result<Self, Error> {
        let mut first = endpoints.to_vec();
        fastrand::shuffle(&mut first);
        let others = first.split_off(first.len().min(1));
        let client = Client::connect(first, Some(options)).await?;
        let heard = Arc::default();
        tokio::spawn(connect_to(others, client.clone(), Arc::clone(&heard)));
        Ok(Self { client, count: endpoints.len(), heard })
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Asks until a member answers, for a while. A question may arrive twice.
    pub(super) async fn ask<T, F>(&self, question: impl Fn(&Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.ask_for(REPEATING, question).await
    }

    async fn ask_for<T, F>(
        &self,
        repeating: Duration,
        question: impl Fn(&Client) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let (began, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            match question(&self.client).await {
                Err(error) if is_unreached(&error) && began.elapsed() < repeating => {
                    self.was_unanswered();
                    sleep(pause).await;
                    pause = PAUSES.1.min(2 * pause);
                }
                answer => {
                    self.heard.has_answered.store(true, Relaxed);
                    return answer;
                }
            }
        }
    }

    /// Asks whether any of them answers: if there is one only, once.
    pub(super) async fn answer(&self) -> Result<(), Error> {
        let repeating = if self.count > 1 { REPEATING } else { Duration::ZERO };
        let status = |client: &Client| {
            let mut client = client.clone();
            async move { client.status().await }
        };
        self.ask_for(repeating, status).await.map(drop)
    }

    /// Has the other members connected to, if they are not yet.
    pub(super) fn was_unanswered(&self) {
        self.heard.unanswered.notify_one();
    }
}

/// Connects to these members, too: in a while, or as soon as the first one does not answer.
async fn connect_to(others: Vec<String>, client: Client, heard: Arc<Heard>) {
    let in_a_while = async {
        sleep(FIRST_ANSWER).await;
        if heard.has_answered.load(Relaxed) {
            sleep(Duration::from_millis(fastrand::u64(OTHERS_AFTER_MS))).await;
        }
    };
    tokio::select! {
        () = in_a_while => {}
        () = heard.unanswered.notified() => {}
    }
    for other in others {
        if let Err(error) = client.add_endpoint(&other).await {
            tracing::warn!("cannot use the member {other} of the store: {error}");
        }
    }
}

fn is_unreached(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => UNREACHED.contains(&i32::from(status.code())),
        Error::TransportError(_) | Error::IoError(_) => true,
        _ => false,
    }
}
