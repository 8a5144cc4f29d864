//! The daemon's three sockets, and what systemd handed over at the start.

use std::os::fd::OwnedFd;

use pfo_policy::Settings;
use pfo_protocol::SessionId;
use pfo_service::{Door, ListenError, bind, passed_descriptors, passed_listener};
use tokio::net::UnixListener;

use crate::lease::descriptor_store::session_of;

/// What systemd handed over. Taken once.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// The sockets that clients connect to; empty in the foreground.
    listening: Vec<(Door, OwnedFd)>,
    /// What the previous daemon left in the descriptor store, by session.
    pub(crate) kept: Vec<(SessionId, OwnedFd)>,
}

impl Passed {
    /// Takes what systemd handed over.
    ///
    /// # Errors
    /// If the environment that systemd set is inconsistent.
    pub(crate) fn take() -> Result<Self, ListenError> {
        let mut passed = Self::default();
        for found in passed_descriptors()? {
            match session_of(&found.name) {
                Some(session) => passed.kept.push((session, found.descriptor)),
                None => passed.listening.push((door_of(&found.name), found.descriptor)),
            }
        }
        Ok(passed)
    }

    /// Listens on every socket: those that systemd handed over, or those of the configuration.
    ///
    /// # Errors
    /// If a socket cannot be bound or taken over.
    pub(crate) fn listeners(
        &mut self,
        settings: &Settings,
    ) -> Result<Vec<(Door, UnixListener)>, ListenError> {
        let passed = std::mem::take(&mut self.listening);
        if passed.is_empty() {
            return listen(settings);
        }
        let take = |(door, socket)| Ok((door, passed_listener(socket)?));
        passed.into_iter().map(take).collect()
    }
}

/// A socket of an unknown name is treated as the trainers' socket, which grants the least.
fn door_of(name: &str) -> Door {
    match name {
        "admin" => Door::Admin,
        "agent" => Door::Agent,
        _ => Door::Users,
    }
}

/// Binds the sockets of the configuration.
fn listen(settings: &Settings) -> Result<Vec<(Door, UnixListener)>, ListenError> {
    let groups = settings.authority.socket_groups();
    let sockets = &settings.config.sockets;
    Ok(vec![
        (Door::Users, bind(&sockets.trainers, groups.trainers)?),
        (Door::Admin, bind(&sockets.admin, groups.admin)?),
        (Door::Agent, bind(&sockets.agent, groups.agent)?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sockets_of_the_units_lead_to_their_doors() {
        let units = [
            (include_str!("../../../systemd/pfod.socket"), Door::Users),
            (include_str!("../../../systemd/pfod-admin.socket"), Door::Admin),
            (include_str!("../../../systemd/pfod-agent.socket"), Door::Agent),
        ];
        for (unit, door) in units {
            let name = unit.lines().find_map(|line| line.strip_prefix("FileDescriptorName="));
            assert_eq!(door_of(name.unwrap()), door);
        }
    }

    #[test]
    fn a_socket_of_an_unknown_name_is_no_door_for_administration() {
        for name in ["", "unknown", "Admin", "admin ", "agent.sock", "pfod-admin"] {
            assert_eq!(door_of(name), Door::Users, "{name}");
        }
    }
}
