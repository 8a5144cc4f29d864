//! Which sockets to try. The arguments and the environment decide; nothing is opened here.

use std::env;
use std::path::PathBuf;

use pfo_protocol::{ADMIN_SOCKET, PFO_AGENT_ADMIN_SOCKET, PFO_AGENT_SOCKET, TRAINER_SOCKET};

/// The environment variables, as the man page shows them.
pub(crate) const HELP: &str = "\
Environment:
  PFO_SOCKET        pfod's socket for trainers, instead of /run/pfo/pfod.sock
  PFO_ADMIN_SOCKET  pfod's socket for administrators, instead of /run/pfo/admin.sock
  PFO_AGENT_SOCKET  pfo-agent's socket, instead of those in /run/pfo
  PFO_JOURNAL       the program that reads the journal, instead of pfo-journal
  NO_COLOR          no colours on a terminal

pfoctl tries the administrators' socket of each daemon first, then the users'. If --socket,
PFO_SOCKET or PFO_ADMIN_SOCKET names a socket of pfod, pfoctl tries no other one of pfod, and
expects pfo-agent's sockets beside it, unless --agent-socket or PFO_AGENT_SOCKET names one.";

/// The sockets of both daemons, in the order in which to try them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Daemons {
    pfod: Vec<PathBuf>,
    agent: Vec<PathBuf>,
}

/// What names sockets: arguments and variables.
#[derive(Debug, Default)]
struct Named {
    socket: Option<PathBuf>,
    agent_socket: Option<PathBuf>,
    trainer_variable: Option<PathBuf>,
    admin_variable: Option<PathBuf>,
    agent_variable: Option<PathBuf>,
}

impl Daemons {
    /// The sockets that `--socket`, `--agent-socket` and this process's environment lead to.
    pub(crate) fn from_environment(socket: Option<PathBuf>, agent_socket: Option<PathBuf>) -> Self {
        let variable = |name| env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        Self::choose(Named {
            socket,
            agent_socket,
            trainer_variable: variable("PFO_SOCKET"),
            admin_variable: variable("PFO_ADMIN_SOCKET"),
            agent_variable: variable("PFO_AGENT_SOCKET"),
        })
    }

    /// A socket that is named belongs to one pair of daemons: the default sockets would lead to
    /// another pair while the named one is down.
    fn choose(named: Named) -> Self {
        let Named { socket, agent_socket, trainer_variable, admin_variable, agent_variable } =
            named;
        let named: Vec<PathBuf> = match socket {
            Some(socket) => vec![socket],
            None => admin_variable.into_iter().chain(trainer_variable).collect(),
        };
        let agent = match (agent_socket.or(agent_variable), named.last()) {
            (Some(agent), _) => vec![agent],
            (None, None) => vec![PFO_AGENT_ADMIN_SOCKET.into(), PFO_AGENT_SOCKET.into()],
            (None, Some(beside)) => ["pfo-agent-admin.sock", "pfo-agent.sock"]
                .map(|name| beside.with_file_name(name))
                .into(),
        };
        let pfod = match named.is_empty() {
            true => vec![ADMIN_SOCKET.into(), TRAINER_SOCKET.into()],
            false => named,
        };
        Self { pfod, agent }
    }

    pub(crate) fn pfod_sockets(&self) -> &[PathBuf] {
        &self.pfod
    }

    pub(crate) fn agent_sockets(&self) -> &[PathBuf] {
        &self.agent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(argument: Option<&str>, trainer: Option<&str>, admin: Option<&str>) -> Daemons {
        Daemons::choose(Named {
            socket: argument.map(Into::into),
            trainer_variable: trainer.map(Into::into),
            admin_variable: admin.map(Into::into),
            ..Named::default()
        })
    }

    fn paths(sockets: &[PathBuf]) -> Vec<&str> {
        sockets.iter().map(|path| path.to_str().unwrap()).collect()
    }

    #[test]
    fn by_default_the_administrators_sockets_come_first() {
        let daemons = choose(None, None, None);
        assert_eq!(paths(&daemons.pfod), [ADMIN_SOCKET, TRAINER_SOCKET]);
        assert_eq!(paths(&daemons.agent), [PFO_AGENT_ADMIN_SOCKET, PFO_AGENT_SOCKET]);
    }

    #[test]
    fn a_named_socket_is_the_only_one_of_pfod_and_the_agents_are_beside_it() {
        for daemons in [
            choose(Some("/d/a"), Some("/e/t"), Some("/f/b")),
            choose(None, Some("/d/a"), None),
            choose(None, None, Some("/d/a")),
        ] {
            assert_eq!(paths(&daemons.pfod), ["/d/a"]);
            let beside = ["/d/pfo-agent-admin.sock", "/d/pfo-agent.sock"];
            assert_eq!(paths(&daemons.agent), beside);
        }
    }

    #[test]
    fn the_environment_may_name_both_sockets_of_pfod() {
        let daemons = choose(None, Some("/d/t"), Some("/e/b"));
        assert_eq!(paths(&daemons.pfod), ["/e/b", "/d/t"]);
        assert_eq!(paths(&daemons.agent)[1], "/d/pfo-agent.sock");
    }

    #[test]
    fn a_named_socket_of_the_agent_is_the_only_one_and_changes_nothing_for_pfod() {
        for (agent_socket, agent_variable) in [(Some("/a"), Some("/v")), (None, Some("/a"))] {
            let daemons = Daemons::choose(Named {
                agent_socket: agent_socket.map(Into::into),
                agent_variable: agent_variable.map(Into::into),
                ..Named::default()
            });
            assert_eq!(paths(&daemons.agent), ["/a"]);
            assert_eq!(paths(&daemons.pfod), [ADMIN_SOCKET, TRAINER_SOCKET]);
        }
    }
}
