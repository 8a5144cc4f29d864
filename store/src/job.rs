use std::fmt;

use pfo_vocabulary::{JobName, Uid};

/// A run of a job, the same on all of its nodes: users are the same everywhere by uid, and its name is the
/// scheduler's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    /// Whose job it is.
    pub uid: Uid,
    /// Its name.
    pub name: JobName,
    /// Which run of it, if its ranks say so: a job that was restarted has the same name, and nothing else
    /// in common with what its former self has left.
    pub run: Option<String>,
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} of user {}", self.name, self.uid)
    }
}
