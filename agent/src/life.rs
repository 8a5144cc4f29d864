//! The life of the agent: continue what an earlier one left, serve, and stop in order.

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pfo_service::{
    Connections, Door, ListenError, PassedDescriptor, People, Service, accept, bind, feed_watchdog,
    passed_descriptors, passed_listener, report_left_out,
};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinSet, spawn_blocking};

use crate::budget::{BudgetFiles, BudgetMeans, Budgets};
use crate::calibration::Calibrations;
use crate::cli::ConfigSource;
use crate::config::Config;
use crate::first_plan::{FirstPlanFiles, FirstPlanMeans, FirstPlans};
use crate::fleet::Fleet;
use crate::front::{Services, talk};
use crate::guard::Guards;
use crate::ledger::Ledger;
use crate::metrics;
use crate::p2p::P2pStore;
use crate::pfod::{Pfod, Questions};
use crate::profile::ProfileStore;
use crate::settings::{InForce, Settings};
use crate::steer::{Standings, Steering};
use crate::straggler::{JobFiles, Stragglers, share_frontiers};
use crate::sweep::{Means, SweepFiles, Sweeps, share_sweeps};
use crate::tune::{TuneFiles, Tunes};
use crate::watch::{Taps, Watcher};

/// `FileDescriptorName=` of the administrators' socket.
const ADMIN_SOCKET_NAME: &str = "admin";

/// `FileDescriptorName=` of the socket for metrics.
const METRICS_SOCKET_NAME: &str = "metrics";

/// How long the agent waits at its end for files that are being written.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Why the agent ended other than by a signal to stop.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// There is no runtime.
    #[error("cannot start: {0}")]
    Runtime(#[from] io::Error),
    /// There is no socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start.
pub fn run(source: ConfigSource, config: Config) -> Result<(), AgentError> {
    pfo_service::serve(4, STOP_TIMEOUT, serve(source, config))?
}

async fn serve(source: ConfigSource, config: Config) -> Result<(), AgentError> {
    let settings = Arc::new(InForce::new(source, config));
    let (for_metrics, passed): (Vec<_>, _) = passed_descriptors()?
        .into_iter()
        .partition(|passed| is_for(&passed.name, METRICS_SOCKET_NAME));
    let metrics_socket = metrics_listener(for_metrics, &settings.now())?;
    let listeners = listen(passed, &settings.now())?;
    let services = Arc::new(Services::new(settings));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    restore(Arc::clone(&services)).await;
    let mut tasks = JoinSet::new();
    let open = Arc::new(Connections::default());
    for (door, listener) in listeners {
        let (most, talking) = (Arc::clone(&services), Arc::clone(&services));
        let people = Arc::clone(&services.people);
        let most = move || most.settings.now().config.limits.connections.get();
        let talk = move |conversation| talk(Arc::clone(&talking), conversation);
        tasks.spawn(accept(listener, door, Arc::clone(&open), people, most, talk));
    }
    let watching = Arc::clone(&services);
    tasks.spawn(async move { watching.watcher.run(|| watching.settings.now().limits()).await });
    let budgets = Arc::clone(&services.budgets);
    tasks.spawn(async move { budgets.run().await });
    let first_plans = Arc::clone(&services.first_plans);
    tasks.spawn(async move { first_plans.run().await });
    tasks.spawn(Arc::clone(&services.guards).run());
    if let Some(fleet) = services.fleet.clone() {
        let (stragglers, steering) = (&services.stragglers, &services.steering);
        let shared =
            share_frontiers(Arc::clone(stragglers), Arc::clone(steering), Arc::clone(&fleet));
        tasks.spawn(shared);
        tasks.spawn(share_sweeps(Arc::clone(&services.sweeps), Arc::clone(&fleet)));
        let (told, ledger) = (Arc::clone(&fleet), Arc::clone(&services.ledger));
        tasks.spawn(async move { told.tell_saved(ledger).await });
        tasks.spawn(async move { fleet.run().await });
    }
    tasks.spawn(metrics::serve(Arc::clone(&services), metrics_socket));
    tasks.spawn(report_left_out(Arc::clone(&services.people)));
    tasks.spawn(feed_watchdog());
    Service.ready();
    tracing::info!("pfo-agent {} serves", env!("CARGO_PKG_VERSION"));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => reload(&services).await,
        }
    }
    Service.stopping();
    tracing::info!("pfo-agent stops; the next one continues its sweeps and tunes");
    tasks.shutdown().await;
    if spawn_blocking(move || services.ledger.end()).await.is_err() {
        tracing::error!("what was measured last is not in the ledger");
    }
    Ok(())
}

/// Continues with what an earlier agent left.
async fn restore(services: Arc<Services>) {
    let restore = move || {
        services.stragglers.restore();
        services.sweeps.restore();
        services.budgets.restore();
        services.steering.standings.restore();
        services.first_plans.restore();
        services.tunes.restore(&services);
    };
    if spawn_blocking(restore).await.is_err() {
        tracing::error!(
            "cannot continue the sweeps, tunes, frontiers, budgets, guards and first plans of an earlier \
             agent"
        );
    }
}

async fn reload(services: &Arc<Services>) {
    Service.reloading();
    let services = Arc::clone(services);
    let refused = spawn_blocking(move || services.settings.reload()).await.unwrap_or_default();
    let status = refused.map_or_else(String::new, |why| format!("configuration refused: {why}"));
    Service.reloaded(&status);
}

fn listen(
    passed: Vec<PassedDescriptor>,
    settings: &Settings,
) -> Result<Vec<(Door, UnixListener)>, ListenError> {
    if passed.is_empty() {
        let (users, administrators) = settings.authority.socket_groups();
        let sockets = &settings.config.sockets;
        return Ok(vec![
            (Door::Users, bind(&sockets.users, users)?),
            (Door::Admin, bind(&sockets.admin, administrators)?),
        ]);
    }
    let listen = |PassedDescriptor { name, descriptor }| {
        let door = if is_for(&name, ADMIN_SOCKET_NAME) { Door::Admin } else { Door::Users };
        Ok((door, passed_listener(descriptor)?))
    };
    passed.into_iter().map(listen).collect()
}

/// The socket for metrics that systemd passed, or that the configuration names.
fn metrics_listener(
    passed: Vec<PassedDescriptor>,
    settings: &Settings,
) -> Result<Option<UnixListener>, ListenError> {
    let Some(passed) = passed.into_iter().next() else {
        let (_, administrators) = settings.authority.socket_groups();
        return Ok(metrics::bind_socket(&settings.config.metrics, administrators));
    };
    passed_listener(passed.descriptor).map(Some)
}

/// Whether a passed socket has this name. Without `FileDescriptorName=`, systemd names it after its unit.
fn is_for(name: &str, what: &str) -> bool {
    let unit = Path::new(name).extension().is_some_and(|end| end == "socket");
    name == what || unit && name.contains(&format!("-{what}."))
}

impl Services {
    fn new(settings: Arc<InForce>) -> Self {
        let now = settings.now();
        let (sockets, paths) = (&now.config.sockets, &now.config.paths);
        let pfod = Pfod::at(sockets.pfod.clone());
        let questions = Arc::new(Questions::to(pfod.clone()));
        let people = Arc::new(People::in_file(&paths.subordinate_uids));
        let profiles = Arc::new(ProfileStore::under(&paths.state, Arc::clone(&people)));
        let files = JobFiles::under(&paths.runtime);
        let stragglers = Arc::new(Stragglers::new(files, Arc::clone(&people)));
        let fleet = Fleet::new(&now.config.fleet, pfod.clone(), Arc::clone(&questions));
        let ledger = Arc::new(Ledger::under(&paths.state, Arc::clone(&settings)));
        let steering = Arc::new(Steering {
            pfod: pfod.clone(),
            questions: Arc::clone(&questions),
            fleet: fleet.clone(),
            ledger: Arc::clone(&ledger),
            standings: Standings::under(&paths.runtime),
        });
        let sweeps = sweeps(&steering, &profiles, &people, &paths.state);
        let budgets = budgets(&settings, &stragglers, &steering);
        let guards = Arc::new(Guards {
            steering: Arc::clone(&steering),
            people: Arc::clone(&people),
            stragglers: Arc::clone(&stragglers),
            settings: Arc::clone(&settings),
            budgets: Arc::clone(&budgets),
        });
        let calibrations = Arc::new(Calibrations::under(&paths.state, Arc::clone(&people)));
        let first_plans = first_plans(&settings, &people, &steering);
        let watcher = Watcher {
            taps: Taps { pfod: pfod.clone(), calibrations: Arc::clone(&calibrations) },
            steering: Arc::clone(&steering),
            stragglers: Arc::clone(&stragglers),
            budgets: Arc::clone(&budgets),
            first_plans: Arc::clone(&first_plans),
            shown: Mutex::default(),
        };
        let tunes = Arc::new(Tunes::new(TuneFiles::under(&paths.state), Arc::clone(&people)));
        Self {
            started: Instant::now(),
            tunes,
            p2p: Arc::new(P2pStore::under(&paths.state, Arc::clone(&people))),
            sweeps: Arc::new(sweeps),
            guards,
            budgets,
            ledger,
            calibrations,
            watcher: Arc::new(watcher),
            first_plans,
            fleet,
            steering,
            settings,
            people,
            pfod,
            questions,
            profiles,
            stragglers,
            refusals: AtomicU64::default(),
        }
    }
}

fn sweeps(
    steering: &Arc<Steering>,
    profiles: &Arc<ProfileStore>,
    people: &Arc<People>,
    state: &Path,
) -> Sweeps {
    Sweeps::new(Means {
        questions: Arc::clone(&steering.questions),
        profiles: Arc::clone(profiles),
        steering: Arc::clone(steering),
        files: SweepFiles::under(state),
        people: Arc::clone(people),
    })
}

fn budgets(
    settings: &Arc<InForce>,
    stragglers: &Arc<Stragglers>,
    steering: &Arc<Steering>,
) -> Arc<Budgets> {
    let paths = &settings.now().config.paths;
    Budgets::new(BudgetMeans {
        pfod: steering.pfod.clone(),
        questions: Questions::to(steering.pfod.clone()),
        stragglers: Arc::clone(stragglers),
        settings: Arc::clone(settings),
        ledger: Arc::clone(&steering.ledger),
        files: Arc::new(BudgetFiles::under(&paths.state, &paths.runtime)),
        steering: Arc::clone(steering),
    })
}

fn first_plans(
    settings: &Arc<InForce>,
    people: &Arc<People>,
    steering: &Arc<Steering>,
) -> Arc<FirstPlans> {
    Arc::new(FirstPlans::new(FirstPlanMeans {
        questions: Questions::to(steering.pfod.clone()),
        people: Arc::clone(people),
        steering: Arc::clone(steering),
        files: FirstPlanFiles::under(&settings.now().config.paths.state),
    }))
}
