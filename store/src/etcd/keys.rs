//! Where everything is in etcd, and what a key there means.
//!
//! ```text
//! /pfo/1/node/<node>                               under the node's lease
//! /pfo/1/job/<uid>/<name>/head                     number of the newest swap
//! /pfo/1/job/<uid>/<name>/node/<node>/armed        of the newest swap
//! /pfo/1/job/<uid>/<name>/node/<node>/member       under the node's lease
//! /pfo/1/job/<uid>/<name>/node/<node>/report
//! /pfo/1/job/<uid>/<name>/swap/<N>/proposal
//! /pfo/1/job/<uid>/<name>/swap/<N>/decision        created once
//! /pfo/1/measured/<uid>/<name>/<node>              under the node's lease
//! /pfo/1/measured/trial/<uid>/<name>/<node>/<N>    under the node's lease
//! /pfo/1/slice/<uid>/<name>/<sha256>
//! /pfo/1/budget/orders                             by comparison with its revision
//! /pfo/1/budget/blueprint                          likewise
//! /pfo/1/budget/draw/<node>
//! /pfo/1/budget/curves/<node>
//! /pfo/1/savings/<node>
//! /pfo/1/slice/<uid>/<name>/<note>                 frontier, profile or sweep
//! /pfo/1/<kind>/check/<node>                       for a moment, while a node checks what it may do
//! ```
//!
//! `<name>` is that of the job, and `<name>@<run>` where its ranks say which run of it they belong to.
//! What is not below `job/` no watch carries. What is under no node's lease is under that of its job,
//! which all of its nodes renew. Numbers of swaps have 20 digits, so that they are in order. Values are
//! JSON but for slices and what is measured of a trial.

use std::fmt::Write;

use pfo_fleet::{Change, Digest, Node};
use serde::de::DeserializeOwned;

use crate::job::JobId;
use crate::verbs::{Agreed, Note, Topic, digest_of};

const ROOT: &str = "/pfo/1/";

/// What all agents read and write below.
pub(super) fn kinds() -> [String; 3] {
    ["job", "measured", "slice"].map(|kind| format!("{ROOT}{kind}/"))
}

/// Below which each node writes one key, which has its name.
pub(super) fn of_one_node() -> [&'static str; 4] {
    [NODES, said(Topic::Draw), said(Topic::Curves), said(Topic::Savings)]
}

/// A key below one of these that means nothing.
pub(super) fn checked(kind: &str, node: &Node) -> String {
    format!("{kind}check/{node}")
}

/// What the keys of all nodes begin with.
pub(super) const NODES: &str = "/pfo/1/node/";

/// Where a record of the fleet is.
pub(super) fn agreed(what: Agreed) -> &'static str {
    match what {
        Agreed::Budgets => "/pfo/1/budget/orders",
        Agreed::Blueprint => "/pfo/1/budget/blueprint",
    }
}

/// What the keys begin with under which nodes say something.
pub(super) fn said(topic: Topic) -> &'static str {
    match topic {
        Topic::Draw => "/pfo/1/budget/draw/",
        Topic::Curves => "/pfo/1/budget/curves/",
        Topic::Savings => "/pfo/1/savings/",
    }
}

/// The keys of one job.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    job: String,
}

impl Keys {
    pub(super) fn of(job: &JobId) -> Self {
        Self { job: path_of(job) }
    }

    /// What the watch of a job covers.
    pub(super) fn prefix(&self) -> String {
        format!("{ROOT}job/{}/", self.job)
    }

    /// The number of the lease of what is kept of the job.
    pub(super) fn lease(&self) -> i64 {
        let Digest(digest) = digest_of(self.job.as_bytes());
        let number = digest.first_chunk().map_or(0, |first| i64::from_be_bytes(*first));
        // etcd gives a number of its own for 0, and refuses those below.
        (number & i64::MAX).max(1)
    }

    pub(super) fn head(&self) -> String {
        self.prefix() + "head"
    }

    /// Below which everything is that a node writes into the job.
    pub(super) fn of_node(&self, node: &Node) -> String {
        format!("{}node/{node}/", self.prefix())
    }

    pub(super) fn member(&self, node: &Node) -> String {
        self.of_node(node) + "member"
    }

    pub(super) fn report(&self, node: &Node) -> String {
        self.of_node(node) + "report"
    }

    /// Below which all swaps are.
    pub(super) fn swaps(&self) -> String {
        self.prefix() + "swap/"
    }

    pub(super) fn swap(&self, number: u64) -> String {
        format!("{}{number:020}/", self.swaps())
    }

    pub(super) fn proposal(&self, number: u64) -> String {
        self.swap(number) + "proposal"
    }

    pub(super) fn armed(&self, node: &Node) -> String {
        self.of_node(node) + "armed"
    }

    pub(super) fn decision(&self, number: u64) -> String {
        self.swap(number) + "decision"
    }

    pub(super) fn slice(&self, digest: Digest) -> String {
        format!("{ROOT}slice/{}/{digest}", self.job)
    }

    pub(super) fn note(&self, note: Note) -> String {
        format!("{ROOT}slice/{}/{}", self.job, note.name())
    }

    /// Where all nodes have what they measured.
    pub(super) fn all_measured(&self) -> String {
        format!("{ROOT}measured/{}/", self.job)
    }

    pub(super) fn measured(&self, node: &Node) -> String {
        format!("{}{node}", self.all_measured())
    }

    /// Where a node has what it measured of a trial.
    pub(super) fn part(&self, node: &Node, number: u64) -> String {
        format!("{ROOT}measured/trial/{}/{node}/{number:020}", self.job)
    }

    /// What it means that a key below the prefix was written or, without a value, deleted. None if
    /// it means nothing: another version's key, or one that no agent has written.
    pub(super) fn change(&self, key: &[u8], value: Option<&[u8]>) -> Option<Change> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix())?;
        let parts: Vec<&str> = key.split('/').collect();
        match (&parts[..], value) {
            (["node", node, "member"], Some(value)) => {
                Some(Change::Member(node.parse().ok()?, Some(read(value)?)))
            }
            (["node", node, "member"], None) => Some(Change::Member(node.parse().ok()?, None)),
            (["node", node, "report"], value) => {
                let report = value.map_or_else(|| Some(Default::default()), read)?;
                Some(Change::Report(node.parse().ok()?, report))
            }
            (["swap", number, "proposal"], value) => {
                let number = number.parse().ok()?;
                let proposed = |value| Some(Change::Proposal(number, read(value)?));
                value.map_or(Some(Change::Forgotten(number)), proposed)
            }
            (["node", node, "armed"], Some(value)) => {
                let (number, answer) = read(value)?;
                Some(Change::Answer(number, node.parse().ok()?, answer))
            }
            (["swap", number, "decision"], Some(value)) => {
                Some(Change::Decision(number.parse().ok()?, read(value)?))
            }
            _ => None,
        }
    }
}

pub(super) fn read<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}

/// A job as a part of a key: letters, digits, `.`, `-` and `_` stay, all else is `%` and two
/// digits. Its run follows after an `@`.
fn path_of(job: &JobId) -> String {
    let mut path = format!("{}/", job.uid.0);
    push_encoded(&mut path, job.name.as_str());
    if let Some(run) = &job.run {
        path.push('@');
        push_encoded(&mut path, run);
    }
    path
}

fn push_encoded(path: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b".-_".contains(&byte) {
            path.push(char::from(byte));
        } else {
            // Writing into a string does not fail.
            let _ = write!(path, "%{byte:02x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_fleet::{Decision, Report};
    use pfo_vocabulary::Uid;

    use super::*;

    fn keys(name: &str) -> Keys {
        Keys::of(&JobId { uid: Uid(7), name: name.parse().unwrap(), run: None })
    }

    #[test]
    fn no_name_of_a_job_leads_into_another_job() {
        assert_eq!(keys("77").head(), "/pfo/1/job/7/77/head");
        assert_eq!(keys("team/j").head(), "/pfo/1/job/7/team%2fj/head");
        assert!(!keys("77.2").head().starts_with(&keys("77").prefix()));
        let run = |run: &str| {
            let run = Some(run.to_owned());
            Keys::of(&JobId { uid: Uid(7), name: "77".parse().unwrap(), run })
        };
        assert_eq!(run("77.1").head(), "/pfo/1/job/7/77@77.1/head");
        assert_eq!(run("a/b@c").head(), "/pfo/1/job/7/77@a%2fb%40c/head");
        assert_ne!(run("77.1").lease(), run("77.2").lease());
        assert_ne!(keys("77@x").head(), run("x").head());
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let (keys, node) = (keys("j"), "n1".parse::<Node>().unwrap());
        let change = |key: String, value: Option<&str>| {
            keys.change(key.as_bytes(), value.map(str::as_bytes))
        };
        let left = Change::Member(node.clone(), None);
        assert_eq!(change(keys.member(&node), None), Some(left));
        let decided = Change::Decision(12, Decision::Commit);
        assert_eq!(change(keys.decision(12), Some("\"commit\"")), Some(decided));
        assert_eq!(change(keys.proposal(12), None), Some(Change::Forgotten(12)));
        let reported = Change::Report(node.clone(), Report::default());
        assert_eq!(
            change(keys.report(&node), Some(r#"{"took":null,"late":null}"#)),
            Some(reported)
        );
    }

    #[test]
    fn what_no_agent_writes_means_nothing() {
        let keys = keys("j");
        let prefix = keys.prefix();
        let (wrong, bytes): (&[&str], &[u8]) = (
            &["", "head", "node//member", "node/a b/member", "swap/x/decision", "node/n/armed/m"],
            b"\"?\"",
        );
        for key in wrong {
            assert_eq!(
                keys.change(format!("{prefix}{key}").as_bytes(), Some(bytes)),
                None,
                "{key}"
            );
        }
        assert_eq!(keys.change(keys.decision(1).as_bytes(), Some(b"\xff")), None);
        assert_eq!(keys.change(b"/pfo/1/job/8/j/member/n", None), None);
    }
}
