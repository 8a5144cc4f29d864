//! Which jobs a budget or its terms are for, as arguments say it.

use std::str::FromStr;

use pfo_protocol::{BudgetScope, JobName, JobSelector, NameError, PartitionName, Uid};

use crate::user;

/// `node`, `partition:NAME`, `user:NAME` or `job:NAME`; after `fleet/`, or for `fleet` itself, on all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Node,
    User(Uid),
    Job(JobName),
    Fleet,
    FleetUser(Uid),
    FleetJob(JobName),
    Partition(PartitionName),
    FleetPartition(PartitionName),
}

impl Scope {
    /// With the owner of its job.
    pub(super) fn of(self, uid: Option<Uid>) -> BudgetScope {
        match self {
            Self::Node => BudgetScope::Node,
            Self::User(uid) => BudgetScope::User(uid),
            Self::Job(job) => BudgetScope::Job(JobSelector { job, uid }),
            Self::Fleet => BudgetScope::Fleet,
            Self::FleetUser(uid) => BudgetScope::FleetUser(uid),
            Self::FleetJob(job) => BudgetScope::FleetJob(JobSelector { job, uid }),
            Self::Partition(name) => BudgetScope::Partition(name),
            Self::FleetPartition(name) => BudgetScope::FleetPartition(name),
        }
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "node" => Ok(Self::Node),
            None if text == "fleet" => Ok(Self::Fleet),
            Some(("user", name)) => user::parse(name).map(Self::User),
            Some(("job", name)) => named(name).map(Self::Job),
            Some(("fleet/user", name)) => user::parse(name).map(Self::FleetUser),
            Some(("fleet/job", name)) => named(name).map(Self::FleetJob),
            Some(("partition", name)) => named(name).map(Self::Partition),
            Some(("fleet/partition", name)) => named(name).map(Self::FleetPartition),
            _ => Err("give node, partition:NAME, user:NAME or job:NAME, or for all nodes fleet, \
                      fleet/partition:NAME, fleet/user:NAME or fleet/job:NAME"
                .to_owned()),
        }
    }
}

fn named<T: FromStr<Err = NameError>>(name: &str) -> Result<T, String> {
    name.parse().map_err(|error: NameError| error.to_string())
}

/// As arguments say it.
pub(super) fn shown(scope: &BudgetScope) -> String {
    match scope {
        BudgetScope::Node => "node".to_owned(),
        BudgetScope::User(uid) => format!("user:{}", user::name_of(*uid)),
        BudgetScope::Job(job) => format!("job:{}", job.job),
        BudgetScope::Fleet => "fleet".to_owned(),
        BudgetScope::FleetUser(uid) => format!("fleet/user:{}", user::name_of(*uid)),
        BudgetScope::FleetJob(job) => format!("fleet/job:{}", job.job),
        BudgetScope::Partition(name) => format!("partition:{name}"),
        BudgetScope::FleetPartition(name) => format!("fleet/partition:{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_the_node_a_partition_a_user_or_a_job() {
        assert_eq!("node".parse(), Ok(Scope::Node));
        assert_eq!("user:0".parse(), Ok(Scope::User(Uid(0))));
        assert_eq!("job:a:b".parse(), Ok(Scope::Job("a:b".parse().unwrap())));
        assert_eq!("fleet".parse(), Ok(Scope::Fleet));
        assert_eq!("fleet/user:0".parse(), Ok(Scope::FleetUser(Uid(0))));
        assert_eq!("fleet/job:a:b".parse(), Ok(Scope::FleetJob("a:b".parse().unwrap())));
        for (text, is_of_fleet) in [("partition:a:b/c", false), ("fleet/partition:a:b/c", true)] {
            let scope = text.parse::<Scope>().unwrap().of(None);
            assert_eq!((shown(&scope).as_str(), scope.is_of_fleet()), (text, is_of_fleet));
        }
        for text in [
            "",
            "nodes",
            "fleet/",
            "fleet/node",
            "fleet:x",
            "job:",
            "user:no such user",
            "rack:3",
            "partition:",
            "partition",
            "partition:a b",
            "fleet/partition:\u{1b}[2J",
            "partition:größe",
        ] {
            assert!(text.parse::<Scope>().is_err(), "{text}");
        }
        assert_eq!(shown(&Scope::Job("j".parse().unwrap()).of(Some(Uid(5)))), "job:j");
        assert_eq!(shown(&Scope::FleetJob("j".parse().unwrap()).of(None)), "fleet/job:j");
    }
}
