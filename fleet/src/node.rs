use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest name of a node, in bytes (RFC 1123).
const LONGEST: usize = 253;

/// A node of the fleet, by the name in its certificate.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Node(String);

/// A text that is no name of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of a node: 1 to {LONGEST} letters, digits, '.' and '-' are")]
pub struct NotANode(String);

impl Node {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Node {
    /// The only node of a job that has all of its ranks on one.
    #[must_use]
    pub fn alone() -> Self {
        Self("here".into())
    }
}

impl FromStr for Node {
    type Err = NotANode;

    fn from_str(text: &str) -> Result<Self, NotANode> {
        let fits = |letter: u8| letter.is_ascii_alphanumeric() || b".-".contains(&letter);
        if (1..=LONGEST).contains(&text.len()) && text.bytes().all(fits) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NotANode(text.chars().take(80).collect()))
        }
    }
}

impl TryFrom<String> for Node {
    type Error = NotANode;

    fn try_from(text: String) -> Result<Self, NotANode> {
        text.parse()
    }
}

impl From<Node> for String {
    fn from(node: Node) -> Self {
        node.0
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_be_a_path_in_the_store() {
        assert!("gpu-17.cluster".parse::<Node>().is_ok());
        for wrong in ["", "a/b", "a b", "a\n", "é", &"x".repeat(LONGEST + 1)] {
            assert!(wrong.parse::<Node>().is_err(), "{wrong}");
        }
    }
}
