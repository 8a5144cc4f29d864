//! What a daemon takes up from its predecessor, on disk from before it does so until it has lived
//! with that for a while. So daemons that die of it find out together what they die of.
//!
//! A daemon takes everything up as long as few have died. Each of those that follow leaves out
//! another part of what all of them had taken up, and the first one that lives has left out the
//! cause. Parts that were left out in vain are taken up again.

use std::collections::HashSet;
use std::fs;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::replace::replace_in_own_directory;
use crate::versioned::parse_versioned;

const FORMAT: &str = "pfo-attempt/1";

/// A daemon that has lived this long does not die of what it took up.
pub const LIVED: Duration = Duration::from_secs(10);

/// Deaths in a row that may have any cause.
const EXCUSED: usize = 4;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk<T> {
    format: String,
    /// How many daemons have begun in a row, none of which lived.
    daemons: usize,
    /// What all of them had taken up.
    suspects: Vec<T>,
}

/// The file.
#[derive(Clone, Debug)]
pub struct Attempt(PathBuf);

impl Attempt {
    /// The one beside another file of the daemon.
    #[must_use]
    pub fn beside(file: &Path) -> Self {
        Self(file.with_file_name("attempt.json"))
    }

    /// Begins to take parts up, those first that changed last. Returns the number of daemons that
    /// died of these in a row, and what to leave out.
    #[must_use]
    pub fn begin<T>(&self, mut parts: Vec<T>) -> (usize, Vec<T>)
    where
        T: Clone + Eq + Hash + Serialize + DeserializeOwned,
    {
        let mut seen = HashSet::new();
        parts.retain(|part| seen.insert(part.clone()));
        if parts.is_empty() {
            self.end();
            return (0, Vec::new());
        }
        let (deaths, suspects) = self.read(&parts);
        let left_out = match deaths.checked_sub(EXCUSED) {
            None => Vec::new(),
            Some(tried) => suspects.get(tried).map_or(parts, |suspect| vec![suspect.clone()]),
        };
        let (format, daemons) = (FORMAT.into(), deaths.saturating_add(1));
        let written = serde_json::to_vec(&OnDisk { format, daemons, suspects })
            .map_err(Into::into)
            .and_then(|bytes| replace_in_own_directory(&self.0, &bytes));
        if let Err(error) = written {
            tracing::warn!("cannot write {}: {error}", self.0.display());
        }
        (deaths, left_out)
    }

    fn read<T: Clone + PartialEq + DeserializeOwned>(&self, parts: &[T]) -> (usize, Vec<T>) {
        let found = fs::read(&self.0).ok().and_then(|bytes| parse_versioned(&bytes, FORMAT).ok());
        match found {
            Some(OnDisk::<T> { daemons, mut suspects, .. }) => {
                suspects.retain(|suspect| parts.contains(suspect));
                if suspects.is_empty() { (0, parts.to_vec()) } else { (daemons, suspects) }
            }
            None => (0, parts.to_vec()),
        }
    }

    /// Ends the attempt: the daemon lives, or stops in order.
    pub fn end(&self) {
        let _ = fs::remove_file(&self.0);
    }

    /// Ends the attempt of a daemon that did not die of itself, as systemd says to what it runs
    /// afterwards: it was stopped, was killed, or did not answer the watchdog.
    pub fn end_if_ended_by_others(&self) {
        let said = |name| std::env::var(name).unwrap_or_default();
        let died = match said("SERVICE_RESULT").as_str() {
            "" | "oom-kill" => true,
            "signal" | "core-dump" => {
                !matches!(said("EXIT_STATUS").as_str(), "KILL" | "TERM" | "INT")
            }
            _ => false,
        };
        if !died {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt() -> (tempfile::TempDir, Attempt) {
        let directory = tempfile::tempdir().unwrap();
        let attempt = Attempt::beside(&directory.path().join("ledger.json"));
        (directory, attempt)
    }

    fn left_out(attempt: &Attempt, parts: &[&str]) -> Vec<String> {
        attempt.begin(parts.iter().map(|part| (*part).to_owned()).collect()).1
    }

    /// Daemons that die whenever they have taken `cause` up; returns what the first one that lives
    /// has left out, and how many have died.
    fn until_one_lives(attempt: &Attempt, parts: &[&str], cause: &str) -> (Vec<String>, usize) {
        (0..100)
            .map(|deaths| (left_out(attempt, parts), deaths))
            .find(|(out, _)| out.iter().any(|out| out == cause))
            .unwrap()
    }

    #[test]
    fn the_first_daemon_that_lives_has_left_out_the_cause_and_nothing_else() {
        for (place, cause) in ["new", "middle", "old"].iter().enumerate() {
            let (_directory, attempt) = attempt();
            let (out, deaths) = until_one_lives(&attempt, &["new", "middle", "old"], cause);
            assert_eq!((out, deaths), (vec![(*cause).to_owned()], EXCUSED + place));
        }
    }

    #[test]
    fn a_few_deaths_or_any_number_with_life_in_between_leave_nothing_out() {
        let (_directory, attempt) = attempt();
        for _ in 0..10 {
            for _ in 0..EXCUSED {
                assert!(left_out(&attempt, &["a", "b"]).is_empty());
            }
            attempt.end();
        }
    }

    #[test]
    fn what_came_after_the_first_death_is_not_suspected() {
        let (_directory, attempt) = attempt();
        assert!(left_out(&attempt, &["old"]).is_empty());
        for _ in 1..EXCUSED {
            assert!(left_out(&attempt, &["new", "old"]).is_empty());
        }
        assert_eq!(left_out(&attempt, &["new", "old"]), ["old"]);
    }

    #[test]
    fn suspects_that_are_gone_are_forgotten_with_their_deaths() {
        let (_directory, attempt) = attempt();
        for _ in 0..EXCUSED {
            assert!(left_out(&attempt, &["gone"]).is_empty());
        }
        for _ in 0..EXCUSED {
            assert!(left_out(&attempt, &["another"]).is_empty());
        }
    }

    #[test]
    fn a_daemon_comes_up_with_nothing_if_no_part_alone_is_the_cause() {
        let (_directory, attempt) = attempt();
        let parts = ["a", "b"];
        for _ in 0..EXCUSED + parts.len() {
            assert_ne!(left_out(&attempt, &parts), parts);
        }
        assert_eq!(left_out(&attempt, &parts), parts);
    }

    #[test]
    fn a_file_of_another_form_counts_no_deaths() {
        let (directory, attempt) = attempt();
        for content in ["", "{}", r#"{"format":"pfo-attempt/2","daemons":99,"suspects":["a"]}"#] {
            fs::write(directory.path().join("attempt.json"), content).unwrap();
            assert!(left_out(&attempt, &["a"]).is_empty(), "{content}");
        }
    }
}
