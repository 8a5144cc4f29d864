//! What the launcher says of the process that it started.

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables of a launcher.
struct Launcher {
    rank: &'static str,
    /// The rank among the processes of the node.
    local_rank: &'static [&'static str],
    /// How many processes it started.
    size: &'static str,
    /// Whether those that it did not start inherit its variables and no size.
    has_heirs: bool,
}

/// `torchrun`, Open MPI, MPICH and other users of PMI, `PMIx`, Slurm.
///
/// The innermost comes first: `mpirun` starts `torchrun`, and Slurm `mpirun`, whose own process is then the
/// one that Slurm's variables describe. Slurm gives a batch script rank 0, and says the size only to what
/// `srun` starts.
const LAUNCHERS: [Launcher; 5] = [
    Launcher::of("RANK", &["LOCAL_RANK"], "WORLD_SIZE"),
    Launcher::of("OMPI_COMM_WORLD_RANK", &["OMPI_COMM_WORLD_LOCAL_RANK"], "OMPI_COMM_WORLD_SIZE"),
    Launcher::of("PMI_RANK", &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"], "PMI_SIZE"),
    Launcher::of("PMIX_RANK", &[], ""),
    Launcher {
        has_heirs: true,
        ..Launcher::of("SLURM_PROCID", &["SLURM_LOCALID"], "SLURM_STEP_NUM_TASKS")
    },
];

impl Launcher {
    const fn of(
        rank: &'static str,
        local_rank: &'static [&'static str],
        size: &'static str,
    ) -> Self {
        Self { rank, local_rank, size, has_heirs: false }
    }

    /// Whether it may have started this many processes or more.
    fn has_started(&self, ranks: u64, variable: Variable<'_>) -> bool {
        let size = number(variable, self.size).or(self.has_heirs.then_some(1));
        size.is_none_or(|size| u64::from(size) >= ranks)
    }
}

/// The global rank that a launcher gave this process; `None` if no launcher started it.
#[must_use]
pub fn launched_rank() -> Option<u32> {
    rank(&|name| std::env::var(name).ok())
}

pub(crate) fn rank(variable: Variable<'_>) -> Option<u32> {
    LAUNCHERS.iter().find_map(|launcher| number(variable, launcher.rank))
}

/// The local rank of this process, which has a global rank in a job of `ranks` ranks.
///
/// A launcher that calls it another rank, or that started fewer processes, did not start it but one of its
/// ancestors, as Slurm does with a batch script that starts the ranks itself: what it says is not about this
/// process.
pub(crate) fn local_rank(variable: Variable<'_>, rank: u32, ranks: u64) -> Option<u32> {
    let of = |names: &[&str]| names.iter().find_map(|name| number(variable, name));
    let (launcher, local) =
        LAUNCHERS.iter().find_map(|launcher| Some((launcher, of(launcher.local_rank)?)))?;
    let is_it = number(variable, launcher.rank).is_none_or(|launched| launched == rank);
    (is_it && launcher.has_started(ranks, variable)).then_some(local)
}

/// Which run of the job this process belongs to, the same in all of its ranks: a job that Slurm has
/// requeued has the same name and id, and another restart count.
///
/// `torchrun` numbers its restarts, too, but each of its agents only those that it has begun: what
/// `TORCHELASTIC_RESTART_COUNT` says differs between the nodes of a job, and is of no use here.
pub(crate) fn run(variable: Variable<'_>) -> Option<String> {
    let text = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(named) = text("PFO_RUN") {
        return Some(named);
    }
    // The components of a heterogeneous job have ids of their own.
    let job = text("SLURM_JOB_ID_HET_GROUP_0").or_else(|| text("SLURM_JOB_ID"));
    let restarts = text("SLURM_RESTART_COUNT").unwrap_or_else(|| "0".to_owned());
    let slurm = job.map(|job| format!("{job}.{restarts}"));
    let elastic = text("TORCHELASTIC_RUN_ID").filter(|run| run != "none");
    match (slurm, elastic) {
        (Some(slurm), Some(elastic)) => Some(format!("{slurm}+{elastic}")),
        (slurm, elastic) => slurm.or(elastic),
    }
}

fn number(variable: Variable<'_>, name: &str) -> Option<u32> {
    variable(name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(set: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| Some(set.iter().find(|(key, _)| *key == name)?.1.to_owned())
    }

    #[test]
    fn every_launcher_gives_rank_and_local_rank() {
        for set in [
            &[("RANK", "5"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "8")][..],
            &[("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")],
            &[("PMI_RANK", "5"), ("MPI_LOCALRANKID", "1"), ("PMI_SIZE", "8")],
            &[("PMI_RANK", "5"), ("PMI_LOCAL_RANK", "1")],
            &[("SLURM_PROCID", "5"), ("SLURM_LOCALID", "1"), ("SLURM_STEP_NUM_TASKS", "8")],
        ] {
            let set = variables(set);
            assert_eq!((rank(&set), local_rank(&set, 5, 8)), (Some(5), Some(1)));
        }
    }

    #[test]
    fn mpirun_in_a_slurm_job_is_not_the_process_that_slurm_started() {
        let set = variables(&[
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
        ]);
        assert_eq!((rank(&set), local_rank(&set, 3, 4)), (Some(3), Some(3)));
    }

    #[test]
    fn what_a_launcher_did_not_start_itself_has_none_of_its_local_ranks() {
        // A batch script that starts the ranks, and one task on each of two nodes that does.
        const BATCH: &[(&str, &str)] = &[("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0")];
        const TASK: &[(&str, &str)] =
            &[("SLURM_PROCID", "1"), ("SLURM_LOCALID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
        const TORCHRUN: &[(&str, &str)] =
            &[("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2")];
        for (set, rank) in [(BATCH, 2), (BATCH, 0), (TASK, 5), (TASK, 1), (TORCHRUN, 1)] {
            assert_eq!(local_rank(&variables(set), rank, 4), None, "{set:?}");
        }
        assert_eq!(local_rank(&variables(BATCH), 0, 1), Some(0));
        assert_eq!(local_rank(&variables(TASK), 1, 2), Some(0));
        assert_eq!(local_rank(&variables(TORCHRUN), 1, 1), Some(1), "ranks of a job of its own");
    }

    #[test]
    fn a_requeued_job_is_another_run_of_the_same_name() {
        for (set, expected) in [
            (&[("SLURM_JOB_ID", "77")][..], Some("77.0")),
            (&[("SLURM_JOB_ID", "77"), ("SLURM_RESTART_COUNT", "2")], Some("77.2")),
            (&[("SLURM_JOB_ID", "78"), ("SLURM_JOB_ID_HET_GROUP_0", "77")], Some("77.0")),
            (&[("SLURM_JOB_ID", "77"), ("TORCHELASTIC_RUN_ID", "r")], Some("77.0+r")),
            (&[("TORCHELASTIC_RUN_ID", "r"), ("TORCHELASTIC_RESTART_COUNT", "1")], Some("r")),
            (&[("TORCHELASTIC_RUN_ID", "none")], None),
            (&[("SLURM_JOB_ID", "77"), ("PFO_RUN", "mine")], Some("mine")),
            (&[("SLURM_JOB_ID", "")], None),
        ] {
            assert_eq!(run(&variables(set)).as_deref(), expected, "{set:?}");
        }
    }

    #[test]
    fn without_a_launcher_there_is_nothing_to_go_by() {
        let set = variables(&[("RANK", "first"), ("SLURM_PROCID", "")]);
        assert_eq!((rank(&set), local_rank(&set, 0, 1)), (None, None));
    }
}
