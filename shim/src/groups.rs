//! Who chose the groups of this process, and so what helps where that of the socket is missing.

use std::path::Path;

/// Files that Podman and Docker make in their containers.
const MARKS: [&str; 2] = ["run/.containerenv", ".dockerenv"];

/// Who chose the groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupsFrom {
    Login,
    Slurm,
    Container,
}

impl GroupsFrom {
    /// Who did, below the root directory `root`.
    pub(crate) fn find(root: &Path, in_slurm: bool) -> Self {
        if MARKS.iter().any(|mark| root.join(mark).exists()) {
            return Self::Container;
        }
        if in_slurm { Self::Slurm } else { Self::Login }
    }

    /// What to do.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::Container => {
                "start the container with the group of the socket: `--group-add keep-groups` \
                 (Podman without root, by a user in that group), or `--group-add` with its number"
            }
            Self::Slurm => {
                "add the user to the group of the socket (pfo, unless the site chose another), wait \
                 until Slurm looks it up again (GroupUpdateTime, 10 minutes by default), and submit \
                 the job again"
            }
            Self::Login => {
                "add the user to the group of the socket (pfo, unless the site chose another) and \
                 log in again"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_container_has_chosen_the_groups_also_below_slurm() {
        for mark in MARKS {
            let root = tempfile::tempdir().unwrap();
            assert_eq!(GroupsFrom::find(root.path(), false), GroupsFrom::Login);
            assert_eq!(GroupsFrom::find(root.path(), true), GroupsFrom::Slurm);
            fs::create_dir_all(root.path().join("run")).unwrap();
            fs::write(root.path().join(mark), "").unwrap();
            for in_slurm in [false, true] {
                assert_eq!(GroupsFrom::find(root.path(), in_slurm), GroupsFrom::Container);
            }
        }
    }

    #[test]
    fn each_has_a_remedy_of_its_own() {
        let remedies = [GroupsFrom::Login, GroupsFrom::Slurm, GroupsFrom::Container];
        let words = ["log in", "GroupUpdateTime", "--group-add"];
        for (from, word) in remedies.into_iter().zip(words) {
            let said = words.iter().filter(|word| from.remedy().contains(**word));
            assert_eq!(said.collect::<Vec<_>>(), [&word]);
        }
    }
}
