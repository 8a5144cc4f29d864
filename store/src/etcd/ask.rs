//! Asking a store of several members, any of which may be away.

use std::future::Future;
use std::time::Duration;

use etcd_client::Error;
use tokio::time::{Instant, sleep};

/// How long a question is repeated, and the pauses in between at first and at most. The client hands each
/// question to any member, also to one that it cannot reach, or that waits for a leader that is gone.
const REPEATING: Duration = Duration::from_secs(5);
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// gRPC's codes for a connection that broke, an error below gRPC, and a member that cannot serve.
const UNREACHED: [i32; 3] = [1, 2, 14];

/// Asks until a member answers, for a while. A question may arrive twice.
pub(super) async fn ask<T, F>(question: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let (began, mut pause) = (Instant::now(), PAUSES.0);
    loop {
        match question().await {
            Err(error) if is_unreached(&error) && began.elapsed() < REPEATING => {
                sleep(pause).await;
                pause = PAUSES.1.min(2 * pause);
            }
            answer => return answer,
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
