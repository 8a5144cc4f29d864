//! Applying another configuration while sessions run.
//!
//! A session that is no longer allowed is ended; the others continue on their new terms. Settings
//! that cannot change while the daemon runs stay as they are, and are named.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pfo_policy::{Config, Settings};
use pfo_protocol::{
    ADMIN_SOCKET, ClosingReason, ConfigStatus, GpuName, GpuUuid, Refusal, Reloaded, TRAINER_SOCKET,
};
use pfo_service::{ConfigError, NodeAccounts, Peer, Service, UnknownName, lock};

use crate::host::journal;
use crate::job::{Job, JobKey};
use crate::lease::Session;
use crate::node::Node;
use crate::refusal::internal;

/// Reads the configuration again and applies it. An invalid one changes nothing.
pub(crate) fn reload(node: &Node) -> Reloaded {
    let _one_at_a_time = lock(&node.reloading);
    Service.reloading();
    let read = read(node);
    let refused = read.as_ref().err().cloned();
    let mut outcome = read.map_or_else(|_| Reloaded::default(), |new| put_into_force(node, new));
    node.config_refused.store(refused.clone().map(Arc::new));
    outcome.config = config_status(node);
    log(&outcome);
    Service
        .reloaded(&refused.map_or_else(String::new, |why| format!("configuration refused: {why}")));
    outcome
}

/// Retries names that did not resolve; their rights take effect if they do now.
pub(crate) fn look_up_names_again(node: &Node) {
    let _one_at_a_time = lock(&node.reloading);
    let old = node.settings();
    let new = Settings::new(old.config.clone(), &NodeAccounts);
    let unknown = new.authority.unknown_names();
    let found_some = unknown.len() < old.authority.unknown_names().len();
    if found_some && !unknown.iter().any(UnknownName::is_uncertain) {
        tracing::info!("names of the configuration that were missing have accounts now");
        put_into_force(node, new);
    }
}

/// What is in force, and which keys are not.
pub(crate) fn config_status(node: &Node) -> ConfigStatus {
    let settings = node.settings();
    let outdated = node.source.read().map(|mut new| {
        keep_what_cannot_change(&mut new, &settings.config);
        new != settings.config
    });
    ConfigStatus {
        file: settings.config.file.as_ref().map(|path| path.display().to_string()),
        refused: node.config_refused.load().as_deref().cloned().or_else(|| {
            let file = settings.config.file.as_deref()?;
            let writable = ConfigError::writable_by_others(file).map(|why| why.to_string());
            writable.or_else(|| closed_to_its_group(&settings))
        }),
        restart_needed_for: node.restart_needed_for.load().to_vec(),
        unknown_names: settings.authority.unknown_names().iter().map(ToString::to_string).collect(),
        outdated: outdated.unwrap_or(true),
    }
}

/// The settings that the file leads to now. What requires a restart is named in the node's status.
fn read(node: &Node) -> Result<Settings, String> {
    let mut config = node.source.read().map_err(|error| error.to_string())?;
    let restart_needed_for = keep_what_cannot_change(&mut config, &node.settings().config);
    let settings = resolved(config)?;
    closed_to_its_group(&settings).map_or(Ok(()), Err)?;
    node.restart_needed_for.store(Arc::new(restart_needed_for));
    Ok(settings)
}

/// The settings of a configuration that is to be in force.
///
/// # Errors
/// In words, if it names what has no account here, or none that is known now: nobody loses a right by that.
pub fn resolved(config: Config) -> Result<Settings, String> {
    let settings = Settings::new(config, &NodeAccounts);
    match settings.authority.unknown_names().first() {
        Some(name) => Err(format!("the configuration names what this node does not know: {name}")),
        None => Ok(settings),
    }
}

/// The first packaged socket that the group of the configuration cannot open: systemd makes them,
/// for the groups of their units.
fn closed_to_its_group(settings: &Settings) -> Option<String> {
    let Config { sockets, groups: names, .. } = &settings.config;
    let groups = settings.authority.socket_groups();
    let packaged = [
        (&sockets.trainers, TRAINER_SOCKET, &names.trainers, groups.trainers, ""),
        (&sockets.admin, ADMIN_SOCKET, &names.administrators, groups.admin, "-admin"),
    ];
    packaged.into_iter().find_map(|(socket, path, name, group, unit)| {
        let found = socket.metadata().ok().filter(|_| socket == Path::new(path))?;
        let closed = group?.0 != found.gid() && found.mode() & 0o006 != 0o006;
        let units = format!("pfod{unit}.socket pfo-agent{unit}.socket");
        closed.then(|| {
            format!(
                "{path} is not open to group {name}: put SocketGroup={name} below [Socket] with \
                 `systemctl edit {units}`, then `systemctl restart {units}`"
            )
        })
    })
}

fn keep_what_cannot_change(new: &mut Config, running: &Config) -> Vec<String> {
    let changed = [
        ("sockets.trainers", new.sockets.trainers != running.sockets.trainers),
        ("sockets.admin", new.sockets.admin != running.sockets.admin),
        ("sockets.agent", new.sockets.agent != running.sockets.agent),
        ("driver.library", new.driver.library != running.driver.library),
        ("driver.devices", new.driver.devices != running.driver.devices),
        ("driver.mode", new.driver.mode != running.driver.mode),
        ("paths.ledger", new.paths.ledger != running.paths.ledger),
        ("paths.subordinate_uids", new.paths.subordinate_uids != running.paths.subordinate_uids),
    ];
    new.sockets = running.sockets.clone();
    new.driver = running.driver.clone();
    new.paths = running.paths.clone();
    changed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key.to_owned()).collect()
}

/// From here on every new session has the new terms; then the running ones get them.
fn put_into_force(node: &Node, settings: Settings) -> Reloaded {
    node.replace_settings(settings);
    let held = node.leases.held();
    let ended =
        held.iter().filter_map(|(gpu, session)| grant_anew(node, gpu, session).err()).collect();
    // Plans are checked when they are loaded and swapped to. Every session has its new terms by
    // now, so no plan can pass a check of the old ones any more.
    let suspended = node.jobs.all().iter().flat_map(|job| suspend(job)).collect();
    Reloaded { config: ConfigStatus::default(), ended, suspended }
}

/// The plans of a job that its ranks may no longer run, each with the reason.
fn suspend(job: &Job) -> Vec<String> {
    let JobKey { uid, name } = &job.key;
    let report = |(plan, misfit)| {
        tracing::warn!(
            name: journal::PLAN_SUSPENDED, job = %name, uid = uid.0, plan,
            "suspended plan {plan} of job {name}, user {uid}, which runs at default clocks \
             now: {misfit}"
        );
        format!("job {name}, plan {plan}: {misfit}")
    };
    job.suspend_what_is_not_allowed().into_iter().map(report).collect()
}

/// Gives a session the terms that it would get if it opened now.
///
/// # Errors
/// In words, if it would be refused and was therefore ended.
fn grant_anew(node: &Node, gpu: &GpuUuid, session: &Session) -> Result<(), String> {
    let holder = &session.holder;
    let grant = || {
        let peer = Peer::of(session.stream()).map_err(|error| internal(&error))?;
        let peer = node.settings().authority.identify(peer, session.stream());
        let gpu = node.driver.gpu(&GpuName::Uuid(gpu.clone()))?;
        node.grant(&peer, &gpu, session.has_device())
    };
    match grant() {
        Ok(grant) => {
            let idle_limit = Duration::from_secs(grant.terms.idle_limit_s.get().into());
            // Takes effect with the next read; the current one keeps its time limit.
            let _ = session.stream().set_read_timeout(Some(idle_limit));
            session.grant.store(Arc::new(grant));
            Ok(())
        }
        Err(Refusal { message: why, .. }) => {
            session.end(ClosingReason::Revoked, format!("the configuration has changed: {why}"));
            Err(format!("job {}, rank {}, process {}: {why}", holder.job, holder.rank, holder.pid))
        }
    }
}

fn log(outcome: &Reloaded) {
    let ConfigStatus { file, refused, restart_needed_for, .. } = &outcome.config;
    if let Some(why) = refused {
        tracing::error!("{why}; the former configuration stays in force");
        return;
    }
    let file = file.as_deref().unwrap_or("the defaults");
    tracing::info!("{file} in force, {} sessions ended", outcome.ended.len());
    for key in restart_needed_for {
        tracing::warn!("{key} has changed; restart pfod to put it into force");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, "pfod.toml".as_ref()).unwrap()
    }

    #[test]
    fn what_cannot_change_while_the_daemon_runs_is_named_and_stays_as_it_is() {
        let running = config("");
        let mut new = config(
            "[sockets]\ntrainers = '/a'\nadmin = '/b'\nagent = '/c'\n\
             [driver]\nlibrary = '/d'\ndevices = '/f'\nmode = 'observe'\n[paths]\nledger = '/e'\n\
             subordinate_uids = '/g'\n[lease]\nmax_mhz = 900",
        );
        let named = keep_what_cannot_change(&mut new, &running);
        assert_eq!(
            named,
            [
                "sockets.trainers",
                "sockets.admin",
                "sockets.agent",
                "driver.library",
                "driver.devices",
                "driver.mode",
                "paths.ledger",
                "paths.subordinate_uids"
            ]
        );
        assert_eq!((&new.sockets, &new.driver), (&running.sockets, &running.driver));
        assert_eq!(new.paths, running.paths);
        assert_ne!(new.lease, running.lease, "what may change does");
        assert!(keep_what_cannot_change(&mut new, &running).is_empty());
    }
}
