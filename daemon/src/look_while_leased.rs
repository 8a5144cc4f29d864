//! Looks at something every now and then, as long as any GPU is leased. Looking may block.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::node::Node;

/// Looks for as long as the daemon runs; `look` is given what it returned the last time.
pub async fn look_while_leased<Seen: Send + 'static>(
    node: Arc<Node>,
    every: Duration,
    mut seen: Seen,
    look: fn(&Node, Seen) -> Seen,
) {
    loop {
        sleep(every).await;
        if node.leases.held().is_empty() {
            continue;
        }
        let worker = Arc::clone(&node);
        let looking = tokio::task::spawn_blocking(move || look(&worker, seen));
        let Ok(looked) = looking.await else { return };
        seen = looked;
    }
}
