//! Which socket to talk to. The arguments and the environment decide; nothing is opened here.

use std::ffi::OsString;
use std::path::PathBuf;

use pfo_protocol::{ADMIN_SOCKET, TRAINER_SOCKET};

/// The environment variables, as the man page shows them.
pub(crate) const HELP: &str = "\
Environment:
  PFO_SOCKET        the daemon's socket for trainers, instead of /run/pfo/pfod.sock
  PFO_ADMIN_SOCKET  the daemon's socket for administrators, instead of /run/pfo/admin.sock
  NO_COLOR          no colours on a terminal

The administrators' socket is tried first, then the trainers'. If only PFO_SOCKET is set, or
--socket is given, no other one is tried.";

/// The sockets to try, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sockets(Vec<PathBuf>);

impl Sockets {
    /// The sockets for what was given with `--socket` and in this process's environment.
    pub(crate) fn from_environment(argument: Option<PathBuf>) -> Self {
        Self::choose(argument, std::env::var_os("PFO_SOCKET"), std::env::var_os("PFO_ADMIN_SOCKET"))
    }

    /// Whoever names only one socket means one daemon: trying the other default would reach a
    /// different daemon when the named one is down.
    fn choose(
        argument: Option<PathBuf>,
        trainer: Option<OsString>,
        admin: Option<OsString>,
    ) -> Self {
        let named =
            |path: Option<OsString>| path.filter(|path| !path.is_empty()).map(PathBuf::from);
        let sockets = match (argument, named(admin), named(trainer)) {
            (Some(socket), _, _) => vec![socket],
            (None, None, None) => vec![ADMIN_SOCKET.into(), TRAINER_SOCKET.into()],
            (None, admin, trainer) => admin.into_iter().chain(trainer).collect(),
        };
        Self(sockets)
    }

    /// The paths.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(argument: Option<&str>, trainer: Option<&str>, admin: Option<&str>) -> Vec<String> {
        Sockets::choose(argument.map(Into::into), trainer.map(Into::into), admin.map(Into::into))
            .paths()
            .iter()
            .map(|path| path.display().to_string())
            .collect()
    }

    #[test]
    fn without_a_wish_the_administrators_socket_comes_first() {
        assert_eq!(choose(None, None, None), [ADMIN_SOCKET, TRAINER_SOCKET]);
        assert_eq!(choose(None, Some(""), Some("")), [ADMIN_SOCKET, TRAINER_SOCKET]);
    }

    #[test]
    fn a_named_socket_is_the_only_one() {
        assert_eq!(choose(Some("/a"), Some("/t"), Some("/b")), ["/a"]);
        assert_eq!(choose(None, Some("/t"), None), ["/t"]);
        assert_eq!(choose(None, None, Some("/b")), ["/b"]);
    }

    #[test]
    fn the_environment_may_name_both_sockets() {
        assert_eq!(choose(None, Some("/t"), Some("/b")), ["/b", "/t"]);
    }
}
