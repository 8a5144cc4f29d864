//! Which jobs a budget or its terms are for, as arguments say it.

use std::str::FromStr;

use pfo_protocol::{BudgetScope, JobName, JobSelector, Uid};

use crate::user;

/// `node`, `user:NAME` or `job:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Node,
    User(Uid),
    Job(JobName),
}

impl Scope {
    /// With the owner of its job.
    pub(super) fn of(self, uid: Option<Uid>) -> BudgetScope {
        match self {
            Self::Node => BudgetScope::Node,
            Self::User(uid) => BudgetScope::User(uid),
            Self::Job(job) => BudgetScope::Job(JobSelector { job, uid }),
        }
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "node" => Ok(Self::Node),
            Some(("user", name)) => user::parse(name).map(Self::User),
            Some(("job", name)) => name.parse().map(Self::Job).map_err(|error| format!("{error}")),
            _ => Err("give node, user:NAME or job:NAME".to_owned()),
        }
    }
}

/// As arguments say it.
pub(super) fn shown(scope: &BudgetScope) -> String {
    match scope {
        BudgetScope::Node => "node".to_owned(),
        BudgetScope::User(uid) => format!("user:{}", user::name_of(*uid)),
        BudgetScope::Job(job) => format!("job:{}", job.job),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_the_node_a_user_or_a_job() {
        assert_eq!("node".parse(), Ok(Scope::Node));
        assert_eq!("user:0".parse(), Ok(Scope::User(Uid(0))));
        assert_eq!("job:a:b".parse(), Ok(Scope::Job("a:b".parse().unwrap())));
        for text in ["", "nodes", "job:", "user:no such user", "rack:3"] {
            assert!(text.parse::<Scope>().is_err(), "{text}");
        }
        assert_eq!(shown(&Scope::Job("j".parse().unwrap()).of(Some(Uid(5)))), "job:j");
    }
}
