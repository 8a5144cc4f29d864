//! The configuration file: every key, its default and its check.

use std::path::{Path, PathBuf};

use pfo_protocol::{AGENT_SOCKET, PFO_AGENT_ADMIN_SOCKET, PFO_AGENT_SOCKET};
use pfo_service::{ConfigError, Position, SUBORDINATE_UIDS, Within};
use serde::Deserialize;

use crate::budget::BudgetConfig;
use crate::fleet::FleetConfig;
use crate::ledger::LedgerConfig;
use crate::metrics::MetricsConfig;

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where clients connect when systemd hands over no sockets, and where `pfod` listens.
    pub(crate) sockets: Sockets,
    /// Who may do what.
    pub(crate) groups: Groups,
    /// What all peers together may take.
    pub(crate) limits: Limits,
    /// What is reported of jobs that run plans.
    pub(crate) watch: Watch,
    /// How the slowdown that was allowed is kept.
    pub(crate) guard: Guard,
    /// How long savings are remembered, and what energy costs.
    pub(crate) ledger: LedgerConfig,
    /// How power budgets are kept.
    pub(crate) budget: BudgetConfig,
    /// The store that the agents of several nodes share.
    pub(crate) fleet: FleetConfig,
    /// Where what is known is served to Prometheus.
    pub(crate) metrics: MetricsConfig,
    /// Files beside the configuration.
    pub(crate) paths: Paths,
    /// The file that it was read from.
    #[serde(skip)]
    pub(crate) file: Option<PathBuf>,
}

/// `[sockets]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sockets {
    /// For users.
    pub(crate) users: PathBuf,
    /// For administration.
    pub(crate) admin: PathBuf,
    /// Where `pfod` listens for the agent.
    pub(crate) pfod: PathBuf,
}

/// `[groups]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Groups {
    /// Members may measure their own jobs and change the plans of these.
    pub(crate) trainers: String,
    /// Members may do everything.
    pub(crate) administrators: String,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// Connections that may be open at once.
    pub(crate) connections: Within<1, 65_536>,
}

/// `[watch]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Watch {
    /// Percent by which a step's time or energy may differ from the plan's prediction.
    pub(crate) drift_percent: Within<1, 1000>,
    /// Percent by which a rank's instructions may take longer than was profiled.
    pub(crate) slow_percent: Within<1, 1000>,
    /// Steps in a row before it is reported.
    pub(crate) steps: Within<1, 100_000>,
}

/// `[guard]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Guard {
    /// Steps in a thousand that may run at default clocks, to compare with.
    pub(crate) default_steps_permille: Within<0, 1000>,
}

/// `[paths]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Paths {
    /// What was measured.
    pub(crate) state: PathBuf,
    /// What does not outlive the node's boot.
    pub(crate) runtime: PathBuf,
    /// Which user each subordinate uid counts as, in the format of subuid(5).
    pub(crate) subordinate_uids: PathBuf,
}

impl Default for Sockets {
    fn default() -> Self {
        Self {
            users: PFO_AGENT_SOCKET.into(),
            admin: PFO_AGENT_ADMIN_SOCKET.into(),
            pfod: AGENT_SOCKET.into(),
        }
    }
}

impl Default for Groups {
    fn default() -> Self {
        Self { trainers: "pfo".into(), administrators: "pfo-admin".into() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: Within::of::<1024>() }
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            drift_percent: Within::of::<5>(),
            slow_percent: Within::of::<5>(),
            steps: Within::of::<5>(),
        }
    }
}

impl Default for Guard {
    fn default() -> Self {
        Self { default_steps_permille: Within::of::<5>() }
    }
}

impl Guard {
    /// The share of steps that may run at default clocks.
    pub(crate) fn share(self) -> f64 {
        f64::from(self.default_steps_permille.get()) / 1000.0
    }
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            state: "/var/lib/pfo-agent".into(),
            runtime: "/run/pfo-agent".into(),
            subordinate_uids: SUBORDINATE_UIDS.into(),
        }
    }
}

impl Config {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// If it cannot be read, is not TOML, has an unknown key or an impossible value.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&ConfigError::text_of(path)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let config: Self = ConfigError::parse(text, path)?;
        if let Some(message) = config.fleet.contradiction() {
            let key = text.find("store_loss_s").or_else(|| text.find("lease_s"));
            let position = Position::of(text, key.unwrap_or_default());
            return Err(ConfigError::Wrong { path: path.to_owned(), position, message });
        }
        if let Some(message) = config.budget.contradiction() {
            let section = text.find("[budget]").unwrap_or_default();
            let key = text.get(section..).and_then(|rest| rest.find("\nfleet"));
            let key = key.map_or(section, |key| section.saturating_add(key).saturating_add(1));
            let position = Position::of(text, key);
            return Err(ConfigError::Wrong { path: path.to_owned(), position, message });
        }
        Ok(Self { file: Some(path.to_owned()), ..config })
    }

    /// Keeps what cannot change while the agent runs as it is. Returns the keys that ask for
    /// something else.
    pub(crate) fn keep_unchangeable(&mut self, running: &Self) -> Vec<&'static str> {
        let changed = [
            ("sockets.users", self.sockets.users != running.sockets.users),
            ("sockets.admin", self.sockets.admin != running.sockets.admin),
            ("sockets.pfod", self.sockets.pfod != running.sockets.pfod),
            (
                "paths.subordinate_uids",
                self.paths.subordinate_uids != running.paths.subordinate_uids,
            ),
            ("paths.state", self.paths.state != running.paths.state),
            ("paths.runtime", self.paths.runtime != running.paths.runtime),
            ("fleet", self.fleet != running.fleet),
            ("metrics", self.metrics != running.metrics),
        ];
        self.sockets = running.sockets.clone();
        self.paths = running.paths.clone();
        self.fleet = running.fleet.clone();
        self.metrics = running.metrics.clone();
        changed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHIPPED: &str = include_str!("../agent.toml");

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("agent.toml")).map_err(|error| error.to_string())
    }

    /// The shipped file with its defaults in force.
    fn shipped_defaults() -> String {
        let in_force = |line: &str| line.strip_prefix("#: ").unwrap_or(line).to_owned();
        SHIPPED.lines().map(in_force).fold(String::new(), |text, line| text + &line + "\n")
    }

    /// Every key that a table may have, as the error for an unknown one names them.
    fn keys(table: &str) -> Vec<String> {
        let error = parse(&format!("{table}\nno_such_key = 1")).unwrap_err();
        let known = error.split_once("expected").unwrap().1;
        known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_shipped_file_states_exactly_the_defaults() {
        let file = Some(PathBuf::from("agent.toml"));
        let defaults = Config { file, ..Config::default() };
        assert_eq!(parse(SHIPPED).unwrap(), defaults);
        assert_eq!(parse(&shipped_defaults()).unwrap(), defaults);
    }

    #[test]
    fn every_key_is_in_the_shipped_file() {
        let defaults = shipped_defaults();
        for table in keys("") {
            let keys = keys(&format!("[{table}]"));
            assert!(!keys.is_empty(), "{table}");
            let section = defaults.split_once(&format!("\n[{table}]\n")).expect(&table).1;
            let section = section.split("\n[").next().unwrap();
            for key in keys {
                assert!(section.contains(&format!("\n{key} = ")), "{key} of [{table}]");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_refused_where_it_stands() {
        for (text, place, said) in [
            ("[limits]\n  connection = 3\n", "line 2, column 3: ", "expected `connections`"),
            ("[watch]\nsteps = 0", "line 2, column 9: ", "0 is not between 1 and 100000"),
            ("[paths]\nstate = 7", "line 2, column 9: ", "invalid type: integer"),
            ("[sockets\n", "line 1, column 9: ", ""),
            ("[fleet]\nnode = 'a_b'", "line 2, column 8: ", "\"a_b\" is no name of a node"),
            (
                "[fleet]\nendpoints = ['http://e:1']",
                "line 2, column 13: ",
                "give https://HOST:PORT",
            ),
            ("[fleet]\nendpoints = ['https://e']", "line 2, column 13: ", "give https://HOST:PORT"),
            ("[fleet]\non_store_loss = 'x'", "line 2, column 17: ", "`keep` or `default-clocks`"),
            (
                "[fleet]\non_store_loss = 'default-clocks'\nstore_loss_s = 9",
                "line 3, column 1: ",
                "give store_loss_s more than 15",
            ),
            ("[budget]\nkeys = ['ann']", "line 2, column 8: ", "\"ann\" is no key"),
            ("[budget]\nfleet = true", "line 2, column 1: ", "budget.keys lists nobody"),
            ("[fleet]\nname = 'a b'", "line 2, column 8: ", "\"a b\" is no name of a fleet"),
            ("[ledger]\nkeep_days = 0", "line 2, column 13: ", "0 is not between 1 and 36500"),
            ("[ledger]\nprice_per_kwh = -1", "line 2, column 17: ", "-1 is not between 0 and"),
            ("[ledger]\ncurrency = \"\\n\"", "line 2, column 12: ", "no name of a currency"),
            ("[ledger]\ntariff_file = 't'", "line 2, column 15: ", "no absolute path"),
            ("[metrics]\nlisten = 9420", "line 2, column 10: ", "invalid type: integer"),
            ("[metrics]\nlisten = 'here:1'", "line 2, column 10: ", "such as 127.0.0.1:9420"),
            ("[metrics]\nlisten = '::1:0'", "line 2, column 10: ", "\"::1:0\" is no address"),
            (
                "[metrics]\nsocket = 'm.sock'",
                "line 2, column 10: ",
                "\"m.sock\" is no absolute path",
            ),
            ("[metrics]\ntextfile = '/x/p.txt'", "line 2, column 12: ", "ends with .prom"),
            ("[metrics]\ntextfile_every_s = 0", "line 2, column 20: ", "0 is not between 1"),
        ] {
            let error = parse(text).unwrap_err();
            let place = format!("agent.toml, {place}");
            assert!(error.starts_with(&place) && error.contains(said), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_reload_keeps_what_takes_a_restart_and_names_it() {
        let running = Config::default();
        let new = "[paths]\nstate = '/x'\n[fleet]\nnode = 'n'\n[watch]\nsteps = 9\n\
                   [metrics]\nlisten = '127.0.0.1:9420'";
        let mut new = parse(new).unwrap();
        assert_eq!(new.keep_unchangeable(&running), ["paths.state", "fleet", "metrics"]);
        assert_eq!((new.paths.clone(), new.watch.steps.get()), (running.paths, 9));
        assert_eq!((new.fleet, new.metrics), (running.fleet, running.metrics));
    }

    proptest! {
        #[test]
        fn whatever_the_file_says_is_taken_or_refused_with_a_place(
            text in "(\\[watch\\]|\\[limits\\]|steps|connections|=|[\\[\\]{}\"'.,#*0-9é\n -]){0,40}"
        ) {
            if let Err(error) = parse(&text) {
                prop_assert!(error.starts_with("agent.toml, line "), "{error}");
            }
        }
    }
}
