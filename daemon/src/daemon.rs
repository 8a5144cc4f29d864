//! The life of the daemon: serve, meanwhile clean up after the predecessor, and leave nothing
//! locked.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pfo_keeper::{Damage, Ledger, LedgerError, only_observe, only_observes};
use pfo_policy::{Config, Mode};
use pfo_protocol::ClosingReason;
use pfo_service::{
    ListenError, Service, accept, allow_interruptions, feed_watchdog, report_left_out,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep};

use crate::cli::ConfigSource;
use crate::front::{Passed, talk};
use crate::gpu::{watch_clocks, watch_driver};
use crate::host::journal;
use crate::node::Node;
use crate::requests::{look_up_names_again, reload, watch_grants};
use crate::session::resume;

/// How long sessions that are just opening have to be kept by systemd when the daemon stops.
const OPENING_TIMEOUT: Duration = Duration::from_secs(1);

/// How long sessions have to restore their clocks when the daemon stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// How often a daemon that stops looks at what it waits for.
const STOP_POLL: Duration = Duration::from_millis(5);

/// How long the driver has to restore what is owed when no client is served meanwhile.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(20);

/// How often unknown names are resolved again.
const LOOK_UP_EVERY: Duration = Duration::from_secs(60);

/// What a loss means, and what an administrator does about it.
const LOST: &str = "locks may be in place that pfod does not know; reset them with `pfoctl clocks \
                    reset --all`, then `pfoctl clocks acknowledge`";

/// Why the daemon ended without a signal to stop.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// There is no runtime.
    #[error("cannot start: {0}")]
    Runtime(#[from] io::Error),
    /// There is no socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// There is no ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Some clocks are still locked.
    #[error("these clocks are still locked: {0}; they are restored when pfod runs again")]
    StillLocked(String),
    /// Locks may be in place that pfod does not know.
    #[error("the ledger was damaged ({0}), and {LOST}")]
    LedgerLost(String),
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start, or cannot restore every clock when it stops.
pub fn run(source: ConfigSource, config: Config) -> Result<(), DaemonError> {
    // A request that waits for a hung driver must not keep the daemon from stopping.
    pfo_service::serve(8, Duration::from_secs(1), serve(source, config))?
}

async fn serve(source: ConfigSource, config: Config) -> Result<(), DaemonError> {
    only_observe(config.driver.mode == Mode::Observe);
    let ledger = Ledger::open(&config.paths.ledger)?;
    report_damage(&ledger);
    // A mount that was read-only when the unit started stays so for this process: the next one will
    // see whether it can be written.
    ledger.check_writable()?;
    source.keep(&config);
    let mut passed = Passed::take()?;
    allow_interruptions()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let node = Arc::new(Node::new(source, config, ledger));
    let listening = passed.listeners(&node.settings())?;
    Service.ready();
    begin_watches(&node);
    let kept = std::mem::take(&mut passed.kept);
    // Sessions of the previous daemon come first: their ranks are in the middle of a step.
    resume(&node, kept).await;
    // A grant that ended while there was no daemon ends the lease of a session that is resumed.
    tokio::spawn(watch_grants(Arc::clone(&node)));
    let mut accepting = JoinSet::new();
    for (door, listener) in listening {
        let (asked, talker, people) =
            (Arc::clone(&node), Arc::clone(&node), Arc::clone(&node.people));
        let most = move || asked.settings().config.limits.connections.get();
        let each = move |conversation| talk(Arc::clone(&talker), conversation);
        accepting.spawn(accept(listener, door, Arc::clone(&node.connections), people, most, each));
    }
    let what = if only_observes() { "only observes, and sets nothing" } else { "serves" };
    tracing::info!("pfod {} {what}", env!("CARGO_PKG_VERSION"));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => {
                let node = Arc::clone(&node);
                // Its outcome is in the journal and in status.
                drop(spawn_blocking(move || reload(&node)));
            }
        }
    }
    Service.stopping();
    accepting.shutdown().await;
    stop(&node).await
}

fn report_damage(ledger: &Ledger) {
    match ledger.damage() {
        Some(Damage { reason, lost_entries: false }) => {
            tracing::error!("the ledger is damaged ({reason}); every entry in it was salvaged");
        }
        Some(Damage { reason, lost_entries: true }) => tracing::error!(
            name: journal::LEDGER_DAMAGED,
            "the ledger was damaged ({reason}), and {LOST}"
        ),
        None => {}
    }
}

/// Starts what runs beside the connections. None of it wakes up while there is nothing to do.
fn begin_watches(node: &Arc<Node>) {
    let load = Arc::clone(node);
    drop(spawn_blocking(move || {
        if let Err(why) = load.driver.get() {
            tracing::error!("{why}; waiting for the driver");
        }
    }));
    for name in node.settings().authority.unknown_names() {
        tracing::warn!(
            "this node has no {name}: what the configuration grants to it has no effect"
        );
    }
    for key in node.settings().config.moved_keys() {
        tracing::warn!("{key} is ignored: it belongs in /etc/pfo/agent.toml");
    }
    let (driver, leases) = (Arc::clone(&node.driver), Arc::clone(&node.leases));
    tokio::spawn(Arc::clone(&node.owed).restore());
    tokio::spawn(report_left_out(Arc::clone(&node.people)));
    tokio::spawn(watch_driver(Arc::clone(&driver), Arc::clone(&leases)));
    tokio::spawn(watch_clocks(driver, leases));
    tokio::spawn(look_up_later(Arc::clone(node)));
    tokio::spawn(feed_watchdog());
}

/// Ends every lease. Where systemd keeps the connections, their ranks are not notified: after a
/// restart the next daemon continues them, and after a stop systemd closes them.
async fn stop(node: &Node) -> Result<(), DaemonError> {
    node.leases.close();
    node.jobs.keep_all();
    node.attempt.end();
    // A rank may have its welcome a moment before its connection is kept.
    let closed = Instant::now();
    while !node.leases.sessions().iter().all(|session| session.has_begun())
        && closed.elapsed() < OPENING_TIMEOUT
    {
        sleep(STOP_POLL).await;
    }
    let sessions = node.leases.sessions();
    tracing::info!("stopping; {} leases end", sessions.len());
    for session in sessions {
        if !session.hand_over() {
            session.end(ClosingReason::ShuttingDown, "pfod is stopping");
        }
    }
    let began = Instant::now();
    while !node.leases.sessions().is_empty() && began.elapsed() < STOP_TIMEOUT {
        node.leases.sessions().iter().for_each(|session| session.interrupt());
        sleep(STOP_POLL).await;
    }
    let locked: Vec<_> =
        node.ledger.entries().into_iter().map(|entry| entry.gpu_uuid.to_string()).collect();
    if locked.is_empty() { Ok(()) } else { Err(DaemonError::StillLocked(locked.join(", "))) }
}

/// Resolves unknown names again: a node's accounts may come from a service that starts later.
async fn look_up_later(node: Arc<Node>) {
    while !node.settings().authority.unknown_names().is_empty() {
        sleep(LOOK_UP_EVERY).await;
        let worker = Arc::clone(&node);
        let _ = spawn_blocking(move || look_up_names_again(&worker)).await;
    }
}

/// Restores what the ledger says is locked, without serving clients.
///
/// # Errors
/// If something is still locked, or may be.
pub fn restore_only(source: ConfigSource, config: Config) -> Result<(), DaemonError> {
    let ledger = Ledger::open(&config.paths.ledger)?;
    report_damage(&ledger);
    let damage = ledger.damage();
    let node = Node::new(source, config, ledger);
    node.attempt.end_if_ended_by_others();
    let left = node.owed.restore_now(RESTORE_TIMEOUT);
    if !left.is_empty() {
        let reasons = left.iter().map(|(entry, why)| format!("{} ({why})", entry.gpu_uuid));
        return Err(DaemonError::StillLocked(reasons.collect::<Vec<_>>().join(", ")));
    }
    match damage {
        Some(Damage { reason, lost_entries: true }) => Err(DaemonError::LedgerLost(reason)),
        _ => Ok(()),
    }
}
