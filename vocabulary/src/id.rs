//! Numbers that identify something, and must not be mistaken for each other.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $number:ty) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $number);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A user, as the kernel of this node numbers it.
    Uid, u32
);
id!(
    /// A group, as the kernel of this node numbers it.
    Gid, u32
);
id!(
    /// A process, as the kernel of this node numbers it.
    Pid, u32
);
id!(
    /// A process of a job, counted from 0 over all nodes.
    Rank, u32
);
id!(
    /// A data-parallel replica of a job.
    DpRank, u32
);
id!(
    /// A tensor-parallel shard of a stage.
    TpRank, u32
);
id!(
    /// A rank's session with `pfod`.
    SessionId, u64
);

impl Uid {
    /// The superuser of the node.
    pub const ROOT: Self = Self(0);
}

/// A pipeline stage, counted from 0 at the input of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
// Four bytes on the wire, as libpfo 0.1 sends it.
#[serde(try_from = "u32", into = "u32")]
pub struct Stage(pub u16);

impl Stage {
    /// Its place in a list of all stages.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<u32> for Stage {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        u16::try_from(number)
            .map(Self)
            .map_err(|_| format!("stage {number} is beyond {}, the last one possible", u16::MAX))
    }
}

impl From<Stage> for u32 {
    fn from(stage: Stage) -> Self {
        stage.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_beyond_the_last_one_is_refused_with_its_number() {
        assert_eq!(serde_json::from_str::<Stage>("65535").unwrap(), Stage(65535));
        let error = serde_json::from_str::<Stage>("65536").unwrap_err().to_string();
        assert!(error.contains("65536"), "{error}");
    }
}
