//! The life of the daemon: clean up after the predecessor, serve, and leave nothing locked.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::ClosingReason;
use systemd::daemon::watchdog_enabled;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::cli::ConfigSource;
use crate::config::Config;
use crate::connections::Connections;
use crate::driver_watch::watch_driver;
use crate::job_watch::watch_jobs;
use crate::journal;
use crate::ledger::{Ledger, LedgerError};
use crate::listen::{ListenError, Passed, listen};
use crate::log_limit::tell_left_out;
use crate::node::Node;
use crate::notify;
use crate::reload::{config_status, look_up_names_again, reload, warn_of_unknown};
use crate::resume::resume;
use crate::serve::accept;
use crate::sys::allow_interruptions;
use crate::throttle_watch::watch_throttling;

/// Sessions have so long to restore their clocks when the daemon stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Clocks that could not be restored are tried again so often, as long as there are any.
const OWED_EVERY: Duration = Duration::from_secs(5);

/// Names that nobody had are looked up again so often.
const LOOK_UP_EVERY: Duration = Duration::from_secs(60);

/// Why the daemon ended other than by a signal to stop.
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
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start, or cannot restore every clock at its end.
pub fn run(source: ConfigSource, config: Config) -> Result<(), DaemonError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    let result = runtime.block_on(serve(source, config));
    // A request that waits for a driver that hangs must not keep the daemon from stopping.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn serve(source: ConfigSource, config: Config) -> Result<(), DaemonError> {
    let ledger = open_ledger(&config.paths.ledger)?;
    let passed = Passed::take()?;
    allow_interruptions()?;
    let node = Arc::new(Node::new(source, config, ledger));
    for (entry, why) in node.restore_owed() {
        tracing::error!(
            name: journal::STILL_LOCKED,
            gpu_uuid = %entry.gpu_uuid, job = %entry.job, uid = entry.uid, pid = entry.pid,
            "cannot restore the clocks yet: {why}"
        );
        node.owed.notify_one();
    }
    if let Err(why) = node.driver.get() {
        tracing::error!("{why}; waiting for the driver");
    }
    warn_of_unknown(&config_status(&node).unknown_names);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let open = Arc::new(Connections::default());
    let mut accepting = JoinSet::new();
    let listening = listen(passed.listening, &node.settings())?;
    resume(&node, passed.kept).await;
    node.sweeps.restore(&node);
    for listener in listening {
        accepting.spawn(accept(Arc::clone(&node), listener, Arc::clone(&open)));
    }
    tokio::spawn(restore_later(Arc::clone(&node)));
    tokio::spawn(tell_left_out());
    tokio::spawn(watch_driver(Arc::clone(&node)));
    tokio::spawn(watch_throttling(Arc::clone(&node)));
    tokio::spawn(watch_jobs(Arc::clone(&node)));
    tokio::spawn(look_up_later(Arc::clone(&node)));
    if let Some(period) = watchdog_enabled().ok().filter(|period| *period > 0) {
        tokio::spawn(feed_watchdog(Duration::from_micros(period / 2)));
    }
    notify::tell("READY");
    tracing::info!("pfod {} serves", env!("CARGO_PKG_VERSION"));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => {
                let node = Arc::clone(&node);
                // Its outcome is in the journal and in status.
                drop(tokio::task::spawn_blocking(move || reload(&node)));
            }
        }
    }
    notify::tell("STOPPING");
    accepting.shutdown().await;
    stop(&node).await
}

/// Ends every lease. Where systemd keeps the connections, their ranks are not told: if this is a
/// restart, the next daemon takes them up, and if not, systemd closes them.
async fn stop(node: &Node) -> Result<(), DaemonError> {
    node.leases.close();
    node.jobs.keep_all();
    let sessions = node.leases.sessions();
    tracing::info!("stopping, {} leases end", sessions.len());
    for session in sessions {
        if !session.hand_over() {
            session.end(ClosingReason::ShuttingDown, "pfod is stopping");
        }
    }
    let until = Instant::now() + STOP_TIMEOUT;
    while !node.leases.sessions().is_empty() && Instant::now() < until {
        node.leases.sessions().iter().for_each(|session| session.interrupt());
        sleep(Duration::from_millis(5)).await;
    }
    let locked: Vec<_> =
        node.ledger.entries().into_iter().map(|entry| entry.gpu_uuid.to_string()).collect();
    if locked.is_empty() { Ok(()) } else { Err(DaemonError::StillLocked(locked.join(", "))) }
}

/// Sleeps until something is owed, then tries until nothing is.
async fn restore_later(node: Arc<Node>) {
    loop {
        node.owed.notified().await;
        loop {
            sleep(OWED_EVERY).await;
            let worker = Arc::clone(&node);
            let left = tokio::task::spawn_blocking(move || worker.restore_owed()).await;
            if left.is_ok_and(|left| left.is_empty()) {
                break;
            }
        }
    }
}

/// Looks for names that nobody had: a node's accounts may come from a service that starts later.
async fn look_up_later(node: Arc<Node>) {
    loop {
        sleep(LOOK_UP_EVERY).await;
        if !node.settings().authority.unknown_names().is_empty() {
            let worker = Arc::clone(&node);
            let _ = tokio::task::spawn_blocking(move || look_up_names_again(&worker)).await;
        }
    }
}

async fn feed_watchdog(period: Duration) {
    loop {
        notify::tell("WATCHDOG");
        sleep(period).await;
    }
}

fn open_ledger(path: &Path) -> Result<Ledger, LedgerError> {
    match Ledger::open(path) {
        Err(error @ LedgerError::Invalid { .. }) => {
            tracing::error!("{error}");
            Ledger::replace(path)
        }
        result => result,
    }
}

/// Restores what the ledger says is locked, without serving anybody.
///
/// # Errors
/// If something is still locked.
pub fn restore_only(source: ConfigSource, config: Config) -> Result<(), DaemonError> {
    let ledger = open_ledger(&config.paths.ledger)?;
    let left = Node::new(source, config, ledger).restore_owed();
    if left.is_empty() {
        return Ok(());
    }
    let reasons = left.iter().map(|(entry, why)| format!("{} ({why})", entry.gpu_uuid));
    Err(DaemonError::StillLocked(reasons.collect::<Vec<_>>().join(", ")))
}
