//! Everything that commands print, held against snapshots without what differs from run to run.

use insta::Settings;
use nix::unistd::{User, geteuid};

use crate::identity::{Identity, group_names};

/// Holds everything that one or more commands printed, or a program answered, against the snapshot
/// of this test. `make snapshots` writes it anew.
#[macro_export]
macro_rules! assert_printed {
    ($($text:expr),+ $(,)?) => {{
        let text = [$($text.to_string()),+].join("\n");
        $crate::of_every_run().bind(|| $crate::insta::assert_snapshot!(text));
    }};
}

/// Replaces what is another in each run, or for another user, by its name.
#[must_use]
pub fn of_every_run() -> Settings {
    let own = Identity::own().uid;
    let name = User::from_uid(geteuid()).ok().flatten().map_or(own.to_string(), |own| own.name);
    let (trainers, _) = group_names();
    let mut settings = Settings::clone_current();
    for (pattern, instead) in [
        (r"/[^ \n]*/pfo-test-[A-Za-z0-9]+", "/DIRECTORY"),
        (r"\bprocess \d+", "process PID"),
        (r"\bpid[ =]\d+", "pid PID"),
        (r"\b1[789]\d{8}\b", "UNIX_S"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", "TIME"),
        (&format!(r"\buser {own}\b"), "user OWN"),
        (&format!(r"\b{name} may\b"), "OWN may"),
        (&format!(r"\bof {name}\b"), "of OWN"),
        (&format!(r"\buser {name}\b"), "user OWN"),
        (&format!(r"\buid={own}\b"), "uid=OWN"),
        (&format!(r"\bgroup {trainers}\b"), "group TRAINERS"),
    ] {
        settings.add_filter(pattern, instead);
    }
    settings
}
