//! The configuration file: every key, its default and its check.

use std::path::{Path, PathBuf};

use pfo_protocol::{ADMIN_SOCKET, AGENT_SOCKET, TRAINER_SOCKET};
use pfo_service::{ConfigError, Position, SUBORDINATE_UIDS, Within};
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::rule::Rule;
use crate::terms::Terms;

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where clients connect if systemd passes no sockets.
    pub sockets: Sockets,
    /// Who may do what.
    pub groups: Groups,
    /// The terms of a lease where no rule says otherwise.
    #[serde(deserialize_with = "possible")]
    pub lease: Terms,
    /// The rules about leases. The first one that matches decides.
    #[serde(rename = "rule")]
    pub rules: Vec<Spanned<Rule>>,
    /// What all peers together may use.
    pub limits: Limits,
    /// How clocks are driven.
    pub clocks: Clocks,
    /// A section of release 0.1, which is in agent.toml now.
    #[serde(deserialize_with = "moved")]
    watch: bool,
    /// The NVML driver.
    pub driver: DriverConfig,
    /// Files beside the configuration.
    pub paths: Paths,
    /// The file that it was read from.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

/// `[sockets]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sockets {
    /// For trainers and status.
    pub trainers: PathBuf,
    /// For administration.
    pub admin: PathBuf,
    /// For the agent.
    pub agent: PathBuf,
}

/// `[groups]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Groups {
    /// Members may train with pfo.
    pub trainers: String,
    /// Members may do everything.
    pub administrators: String,
    /// The group that the agent runs as.
    pub agent: String,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections that may be open at once. Those of sessions do not count.
    pub connections: Within<1, 65_536>,
    /// Seconds between two looks at who computes on a leased GPU.
    pub tenant_check_s: Within<1, 60>,
    /// Seconds for which what the agent has asked for lasts, unless it asks again.
    pub agent_silence_s: Within<1, 3_600>,
}

/// `[clocks]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Clocks {
    /// Whether the memory clock is locked to its highest while a GPU is leased.
    pub lock_memory_clock: bool,
    /// Milliseconds from a set call to the new clock, on GPUs that were never calibrated.
    pub settle_ms: Within<0, 10_000>,
    /// Steps in a row that may mismatch before the plan is suspended.
    pub suspend_after_mismatches: Within<1, { u32::MAX }>,
    /// What to do with a leased GPU whose clock another program seems to have set.
    pub on_foreign_clock: ForeignClock,
}

/// What to do with a leased GPU whose clock another program seems to have set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignClock {
    /// Set the plan's clock again at the next step.
    #[default]
    SetAgain,
    /// Report it.
    Leave,
}

/// What the driver is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// To read, and to set clocks and power limits.
    #[default]
    Control,
    /// Only to read.
    Observe,
}

/// `[driver]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DriverConfig {
    /// The NVML library, as the dynamic linker finds it, or a path.
    pub library: PathBuf,
    /// The directory of the device files.
    pub devices: PathBuf,
    /// What it is asked.
    pub mode: Mode,
}

/// `[paths]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Paths {
    /// The ledger file.
    pub ledger: PathBuf,
    /// Which user each subordinate uid counts as, in the format of subuid(5).
    pub subordinate_uids: PathBuf,
    /// A key of release 0.1, which is in agent.toml now.
    #[serde(deserialize_with = "moved")]
    state: bool,
}

impl Default for Sockets {
    fn default() -> Self {
        Self {
            trainers: TRAINER_SOCKET.into(),
            admin: ADMIN_SOCKET.into(),
            agent: AGENT_SOCKET.into(),
        }
    }
}

impl Default for Groups {
    fn default() -> Self {
        Self {
            trainers: "pfo".into(),
            administrators: "pfo-admin".into(),
            agent: "pfo-agent".into(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: Within::of::<1024>(),
            tenant_check_s: Within::of::<5>(),
            agent_silence_s: Within::of::<60>(),
        }
    }
}

impl Default for Clocks {
    fn default() -> Self {
        Self {
            lock_memory_clock: true,
            settle_ms: Within::of::<15>(),
            suspend_after_mismatches: Within::of::<3>(),
            on_foreign_clock: ForeignClock::SetAgain,
        }
    }
}

impl Default for DriverConfig {
    fn default() -> Self {
        Self { library: "libnvidia-ml.so.1".into(), devices: "/dev".into(), mode: Mode::Control }
    }
}

impl Default for Paths {
    fn default() -> Self {
        let subordinate_uids = SUBORDINATE_UIDS.into();
        Self { ledger: "/run/pfo/ledger.json".into(), subordinate_uids, state: false }
    }
}

fn possible<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Terms, D::Error> {
    let terms = Terms::deserialize(deserializer)?;
    terms.check().map_err(D::Error::custom)?;
    Ok(terms)
}

/// Accepts a key that has moved to another file, whatever its value.
fn moved<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

impl Config {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// If it cannot be read, is not TOML, has an unknown key or an impossible value.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&ConfigError::text_of(path)?, path)
    }

    /// Checks the text of a configuration file; `path` is what errors name.
    ///
    /// # Errors
    /// If it is not TOML, has an unknown key or an impossible value.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = ConfigError::parse(text, path)?;
        for rule in &mut config.rules {
            let at = rule.span().start;
            rule.get_mut().line = Position::of(text, at).line;
            rule.get_ref()
                .terms(&config.lease)
                .map_err(|message| ConfigError::wrong(text, path, at, &message))?;
        }
        config.file = Some(path.to_owned());
        Ok(config)
    }

    /// What was read, in a line.
    #[must_use]
    pub fn found(&self) -> String {
        let rules = self.rules.len();
        match &self.file {
            Some(file) => format!("{}: no error, {rules} rules", file.display()),
            None => "there is no configuration file, and the defaults hold".to_owned(),
        }
    }

    /// The keys of the file that have moved to agent.toml, and are ignored here.
    #[must_use]
    pub fn moved_keys(&self) -> Vec<&'static str> {
        let moved = [("watch", self.watch), ("paths.state", self.paths.state)];
        moved.into_iter().filter(|(_, present)| *present).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHIPPED: &str = include_str!("../../daemon/pfod.toml");

    /// The keys of release 0.1 that are in agent.toml now, each with its table.
    const MOVED: [(&str, &str); 2] = [("", "watch"), ("[paths]", "state")];

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("pfod.toml")).map_err(|error| error.to_string())
    }

    /// The shipped file with the lines of one kind in force.
    fn shipped_with(marks: &[&str]) -> String {
        let in_force = |line: &str| {
            marks.iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line).to_owned()
        };
        SHIPPED.lines().map(in_force).fold(String::new(), |text, line| text + &line + "\n")
    }

    /// Every key that may stand in a table, as the error for one that may not names them, but those
    /// that are ignored there.
    fn keys(table: &str) -> Vec<String> {
        let error = parse(&format!("{table}\nno_such_key = 1")).unwrap_err();
        let known = error.split_once("expected").unwrap().1;
        let known = known.split('`').skip(1).step_by(2).map(str::to_owned);
        let moved = |key: &String| MOVED.contains(&(table, key));
        known.filter(|key| !moved(key)).collect()
    }

    #[test]
    fn the_shipped_file_states_exactly_the_defaults() {
        let shipped = Some(PathBuf::from("pfod.toml"));
        let defaults = Config { file: shipped, ..Config::default() };
        assert_eq!(parse(SHIPPED).unwrap(), defaults);
        assert_eq!(parse(&shipped_with(&["#: "])).unwrap(), defaults);
    }

    #[test]
    fn every_key_is_in_the_shipped_file() {
        let defaults = shipped_with(&["#: "]);
        for table in keys("").into_iter().filter(|table| table != "rule") {
            let keys = keys(&format!("[{table}]"));
            assert!(!keys.is_empty(), "{table}");
            let section = defaults.split_once(&format!("\n[{table}]\n")).expect(&table).1;
            let section = section.split("\n[").next().unwrap();
            for key in keys {
                assert!(section.contains(&format!("\n{key} = ")), "{key} of [{table}]");
            }
        }
        let example = parse(&shipped_with(&["#> "])).unwrap();
        assert!(!example.rules.is_empty());
        for key in keys("[[rule]]") {
            assert!(SHIPPED.contains(&format!("\n#> {key} = ")), "{key} of [[rule]]");
        }
    }

    #[test]
    fn a_key_that_is_in_agent_toml_now_is_accepted_and_named_whatever_its_value() {
        assert!(parse(SHIPPED).unwrap().moved_keys().is_empty());
        let old = "[watch]\ndrift_percent = 5\nslow_percent = 10\nsteps = 20\n\
                   [paths]\nstate = '/var/lib/pfo'\nledger = '/run/pfo/ledger.json'\n";
        assert_eq!(parse(old).unwrap().moved_keys(), ["watch", "paths.state"]);
        let strange = parse("watch = [1, 'a']\npaths = { state = 3.5 }").unwrap();
        assert_eq!(strange.moved_keys(), ["watch", "paths.state"]);
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line_and_column() {
        let error = parse("[limits]\n  connection = 3\n").unwrap_err();
        assert_eq!(
            error,
            "pfod.toml, line 2, column 3: unknown field `connection`, expected one of \
             `connections`, `tenant_check_s`, `agent_silence_s`; did you mean `connections`?"
        );
        assert!(parse("\n\n[[rule]]\nuser = ['a']").unwrap_err().contains("line 4, column 1"));
    }

    #[test]
    fn a_value_that_cannot_be_is_refused_where_it_stands() {
        for (text, line, column, said) in [
            ("[lease]\nidle_limit_s = 0", 2, 16, "0 is not between 1 and 86400"),
            ("[lease]\nidle_limit_s = 'long'", 2, 16, "invalid type: string"),
            ("[clocks]\nsuspend_after_mismatches = 0", 2, 28, "0 is not between"),
            (
                "\n[lease]\nmin_mhz = 900\nmax_mhz = 800",
                2,
                1,
                "min_mhz is 900 MHz, max_mhz 800 MHz",
            ),
            ("[lease]\nmin_mhz = 9\n\n[[rule]]\nmax_mhz = 8", 4, 1, "no clock is allowed"),
            ("[[rule]]\ngpus = ['ö', 'a[']", 2, 8, "give patterns"),
            ("[driver\n", 1, 8, ""),
        ] {
            let error = parse(text).unwrap_err();
            let place = format!("pfod.toml, line {line}, column {column}: ");
            assert!(error.starts_with(&place) && error.contains(said), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_file_says_is_taken_or_refused_with_a_place(
            text in "(\\[\\[rule\\]\\]|\\[lease\\]|max_mhz|gpus|users|=|[\\[\\]{}\"'.,#*0-9é\n -]){0,40}"
        ) {
            if let Err(error) = parse(&text) {
                prop_assert!(error.starts_with("pfod.toml, line "), "{error}");
            }
        }
    }

    #[test]
    fn a_rule_knows_the_line_that_it_begins_in() {
        let config = parse("# no rule\n[[rule]]\nallow = true\n\n[[rule]]\nallow = false").unwrap();
        let lines: Vec<_> = config.rules.iter().map(|rule| rule.get_ref().line).collect();
        assert_eq!(lines, [2, 5]);
    }
}
