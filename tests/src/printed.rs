//! Everything that commands print, held against snapshots without what differs from run to run.

use crate::identity::{Identity, group_names};

/// Holds everything that one or more commands printed, or a program answered, against the snapshot
/// of this test. `make snapshots` writes it anew.
#[macro_export]
macro_rules! assert_printed {
    ($($text:expr),+ $(,)?) => {
        $crate::insta::with_settings!({ filters => $crate::changing_text() }, {
            $crate::insta::assert_snapshot!([$($text.to_string()),+].join("\n"))
        })
    };
}

/// What is another one in each run, as a regular expression, and its name in snapshots.
#[must_use]
pub fn changing_text() -> Vec<(String, &'static str)> {
    let own = Identity::own().uid;
    let (trainers, _) = group_names();
    let patterns = [
        (r"/[^ \n]*/pfo-test-[A-Za-z0-9]+", "/DIRECTORY"),
        (r"\bprocess \d+", "process PID"),
        (r"\bpid \d+", "pid PID"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", "TIME"),
    ];
    let of_machine = [
        (format!(r"\buser {own}\b"), "user OWN"),
        (format!(r"\bgroup {trainers}\b"), "group TRAINERS"),
    ];
    let patterns = patterns.map(|(pattern, name)| (pattern.to_owned(), name));
    patterns.into_iter().chain(of_machine).collect()
}
