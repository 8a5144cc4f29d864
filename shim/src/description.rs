//! How a rank describes itself, completed from the environment and checked before anything is
//! sent.

use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pfo_protocol::{DpRank, JobName, NameError, Rank, RankPosition, Stage, TRAINER_SOCKET, TpRank};

use crate::gpu::{Gpu, GpuError};
use crate::groups::GroupsFrom;
use crate::launcher;
use crate::visible::CudaEnvironment;

/// A rank: its job, its place in it and its GPU.
///
/// ```
/// let description = pfo::RankDescription {
///     job: Some("llama-7b".into()),
///     rank: pfo::Rank(5),
///     pp_rank: pfo::Stage(1),
///     pp_degree: 4,
///     dp_rank: pfo::DpRank(1),
///     dp_degree: 2,
///     gpu: Some(pfo::Gpu::CudaOrdinal(1)),
///     ..Default::default()
/// };
/// assert_eq!(description.tp_degree, 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankDescription {
    /// The job; else the environment's `PFO_JOB`, else its `SLURM_JOB_ID`.
    pub job: Option<String>,
    /// The GPU; else the environment's `PFO_GPU`, else the only GPU on which CUDA has a context in
    /// this process, else the CUDA ordinal that the launcher's local rank is (`torchrun`, Open MPI,
    /// PMI, Slurm), if that launcher calls this process [`rank`](Self::rank), too. A process that
    /// `CUDA_VISIBLE_DEVICES` shows a single GPU, or that can open the device file of a single one,
    /// has that one. If none of them says which, there is no lease.
    pub gpu: Option<Gpu>,
    /// The daemon's socket; else the environment's `PFO_SOCKET`, else `/run/pfo/pfod.sock`.
    pub socket: Option<PathBuf>,
    /// The directory of the GPU device files; else the environment's `PFO_DEVICES`, else `/dev`.
    /// Those that this process can open prove to the daemon which GPUs it was given.
    pub devices: Option<PathBuf>,
    /// The global rank.
    pub rank: Rank,
    /// The pipeline stage, counted from 0.
    pub pp_rank: Stage,
    /// The data-parallel rank.
    pub dp_rank: DpRank,
    /// The tensor-parallel rank.
    pub tp_rank: TpRank,
    /// The number of pipeline stages.
    pub pp_degree: u32,
    /// The number of data-parallel replicas.
    pub dp_degree: u32,
    /// The number of tensor-parallel shards.
    pub tp_degree: u32,
    /// How many microbatches a step has, if it is known and always the same.
    pub num_microbatches: Option<u32>,
    /// The number of the first step; not 0 if training continues from a checkpoint.
    pub first_step: u64,
    /// How long [`Session::open`](crate::Session::open) waits for the daemon's answer at most.
    pub setup_timeout: Duration,
    /// The plan with which the job begins, the same for every rank: a file as `pfoctl plan export` writes
    /// it, or `auto` for the plan that is kept for the job, if there is one; else the environment's
    /// `PFO_PLAN`. Without either the job begins with what is kept for it, too, but a plan that does not
    /// fit is reported by `pfoctl status` only.
    pub plan: Option<PathBuf>,
}

impl Default for RankDescription {
    fn default() -> Self {
        Self {
            job: None,
            gpu: None,
            socket: None,
            devices: None,
            rank: Rank(0),
            pp_rank: Stage(0),
            dp_rank: DpRank(0),
            tp_rank: TpRank(0),
            pp_degree: 1,
            dp_degree: 1,
            tp_degree: 1,
            num_microbatches: None,
            first_step: 0,
            setup_timeout: Duration::from_secs(2),
            plan: None,
        }
    }
}

/// Why a description is invalid, the only error of [`Session::open`](crate::Session::open).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptionError {
    /// Neither the description nor the environment names the job.
    #[error("the job has no name; give one, or set PFO_JOB")]
    NoJob,
    /// The job's name is not one.
    #[error("{source_of_name}: {error}")]
    Job {
        /// Where the name came from.
        source_of_name: &'static str,
        /// What is wrong with it.
        error: NameError,
    },
    /// The GPU's name is not one.
    #[error("{source_of_name}: {error}")]
    Gpu {
        /// Where the name came from.
        source_of_name: &'static str,
        /// What is wrong with it.
        error: GpuError,
    },
    /// A rank is not below its degree.
    #[error("{dimension}_rank {rank} is not below {dimension}_degree {degree}; ranks count from 0")]
    Rank {
        /// `pp`, `dp` or `tp`.
        dimension: &'static str,
        /// The rank.
        rank: u32,
        /// The degree.
        degree: u32,
    },
    /// A stage of the C or Python API that no pipeline has.
    #[error("pp_rank is {0}; it must be 0 to {max}", max = u16::MAX)]
    Stage(u32),
    /// A step cannot have no microbatches.
    #[error("num_microbatches is 0; give the number, or none if it is not known")]
    NoMicrobatches,
    /// The kernel cannot take the path as a socket's.
    #[error("the socket path {path:?} has {length} bytes; a socket's path has 1 to 107")]
    SocketPath {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// A structure of the C API whose size is none.
    #[error("a struct pfo_rank of {0} bytes; call pfo_rank_init first")]
    StructSize(usize),
    /// A structure of a newer C API that asks for something that did not exist yet.
    #[error(
        "struct pfo_rank has fields set that this release of libpfo does not know; install a newer one"
    )]
    NewerFields,
    /// A text of the C API that cannot be read.
    #[error("{field} is not UTF-8 text")]
    Text {
        /// The field of the description.
        field: &'static str,
    },
}

/// A description with nothing left out and nothing wrong.
#[derive(Clone, Debug)]
pub(crate) struct CheckedRank {
    pub(crate) job: JobName,
    /// Which run of the job, if the environment says so.
    pub(crate) run: Option<String>,
    /// `None` if nobody says which.
    pub(crate) gpu: Option<Gpu>,
    /// Whether the GPU is more than the launcher's local rank.
    pub(crate) gpu_is_named: bool,
    pub(crate) cuda: CudaEnvironment,
    pub(crate) groups: GroupsFrom,
    pub(crate) socket: PathBuf,
    pub(crate) devices: PathBuf,
    pub(crate) position: RankPosition,
    pub(crate) num_microbatches: Option<NonZeroU32>,
    pub(crate) first_step: u64,
    pub(crate) setup_timeout: Duration,
    pub(crate) plan: Option<PathBuf>,
    pub(crate) agent_socket: PathBuf,
}

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The name of the agent's socket, in the directory of the daemon's.
const AGENT_SOCKET: &str = "pfo-agent.sock";

/// `sun_path` has 108 bytes, the last one NUL.
const LONGEST_SOCKET_PATH: usize = 107;

impl RankDescription {
    /// A description with everything that the environment gives, and with the global rank that the
    /// launcher gave, else 0.
    ///
    /// # Errors
    /// If the environment names a GPU in no known way or names no job.
    pub fn from_env() -> Result<Self, DescriptionError> {
        Self::default().filled(&environment)
    }

    fn filled(self, variable: Variable<'_>) -> Result<Self, DescriptionError> {
        Ok(Self {
            job: Some(self.job_name(variable)?.into()),
            // What only the launcher says is read again when the session opens.
            gpu: self.gpu_name(variable)?.filter(|_| self.gpu_is_named(variable)),
            socket: Some(self.socket_path(variable)?),
            devices: Some(self.devices_path(variable)),
            plan: self.plan_path(variable),
            rank: Rank(launcher::rank(variable).unwrap_or(0)),
            ..self
        })
    }

    /// Fills in what is left out and checks the rest.
    pub(crate) fn complete(self) -> Result<CheckedRank, DescriptionError> {
        self.complete_from(&environment)
    }

    fn complete_from(&self, variable: Variable<'_>) -> Result<CheckedRank, DescriptionError> {
        for (dimension, rank, degree) in [
            ("pp", self.pp_rank.into(), self.pp_degree),
            ("dp", self.dp_rank.0, self.dp_degree),
            ("tp", self.tp_rank.0, self.tp_degree),
        ] {
            if rank >= degree {
                return Err(DescriptionError::Rank { dimension, rank, degree });
            }
        }
        let num_microbatches = match self.num_microbatches.map(NonZeroU32::new) {
            Some(None) => return Err(DescriptionError::NoMicrobatches),
            Some(some) => some,
            None => None,
        };
        Ok(CheckedRank {
            job: self.job_name(variable)?,
            run: launcher::run(variable),
            gpu: self.gpu_name(variable)?,
            gpu_is_named: self.gpu_is_named(variable),
            cuda: CudaEnvironment::read(variable),
            groups: GroupsFrom::find(Path::new("/"), variable("SLURM_JOB_ID").is_some()),
            socket: self.socket_path(variable)?,
            devices: self.devices_path(variable),
            position: RankPosition {
                rank: self.rank,
                pp_rank: self.pp_rank,
                dp_rank: self.dp_rank,
                tp_rank: self.tp_rank,
                pp_degree: self.pp_degree,
                dp_degree: self.dp_degree,
                tp_degree: self.tp_degree,
            },
            num_microbatches,
            first_step: self.first_step,
            setup_timeout: self.setup_timeout,
            plan: self.plan_path(variable),
            agent_socket: self.agent_socket_path(variable)?,
        })
    }

    fn plan_path(&self, variable: Variable<'_>) -> Option<PathBuf> {
        let given = || first(variable, &["PFO_PLAN"]).map(|(_, path)| path.into());
        self.plan.clone().or_else(given)
    }

    /// The agent of the daemon that is asked for the lease listens beside it.
    fn agent_socket_path(&self, variable: Variable<'_>) -> Result<PathBuf, DescriptionError> {
        match first(variable, &["PFO_AGENT_SOCKET"]) {
            Some((_, path)) => Ok(path.into()),
            None => Ok(self.socket_path(variable)?.with_file_name(AGENT_SOCKET)),
        }
    }

    fn job_name(&self, variable: Variable<'_>) -> Result<JobName, DescriptionError> {
        let (source_of_name, name) = match &self.job {
            Some(job) => ("job", job.clone()),
            None => first(variable, &["PFO_JOB", "SLURM_JOB_ID"]).ok_or(DescriptionError::NoJob)?,
        };
        name.try_into().map_err(|error| DescriptionError::Job { source_of_name, error })
    }

    fn gpu_name(&self, variable: Variable<'_>) -> Result<Option<Gpu>, DescriptionError> {
        if let Some(gpu) = &self.gpu {
            return Ok(Some(gpu.clone()));
        }
        if let Some((source_of_name, name)) = first(variable, &["PFO_GPU"]) {
            let read = name.parse();
            return read.map(Some).map_err(|error| DescriptionError::Gpu { source_of_name, error });
        }
        let launched = match variable("CUDA_VISIBLE_DEVICES") {
            Some(visible) if !visible.contains(',') => Some(0),
            _ => launcher::local_rank(variable, self.rank.0, self.ranks()),
        };
        Ok(launched.map(Gpu::CudaOrdinal))
    }

    /// The ranks of the job.
    fn ranks(&self) -> u64 {
        let degrees = [self.pp_degree, self.dp_degree, self.tp_degree];
        degrees.into_iter().fold(1, |ranks, degree| u64::from(degree).saturating_mul(ranks))
    }

    fn gpu_is_named(&self, variable: Variable<'_>) -> bool {
        self.gpu.is_some() || first(variable, &["PFO_GPU"]).is_some()
    }

    fn devices_path(&self, variable: Variable<'_>) -> PathBuf {
        let given = || first(variable, &["PFO_DEVICES"]).map(|(_, path)| path.into());
        self.devices.clone().or_else(given).unwrap_or_else(|| "/dev".into())
    }

    fn socket_path(&self, variable: Variable<'_>) -> Result<PathBuf, DescriptionError> {
        let given = || variable("PFO_SOCKET").filter(|path| !path.is_empty());
        let path = match &self.socket {
            Some(path) => path.clone(),
            None => given().unwrap_or_else(|| TRAINER_SOCKET.to_owned()).into(),
        };
        match bytes(&path) {
            1..=LONGEST_SOCKET_PATH => Ok(path),
            length => Err(DescriptionError::SocketPath { path, length }),
        }
    }
}

fn bytes(path: &Path) -> usize {
    path.as_os_str().as_bytes().len()
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The first of these variables that has a value, and its name.
fn first(variable: Variable<'_>, names: &[&'static str]) -> Option<(&'static str, String)> {
    names.iter().find_map(|name| Some((*name, variable(name).filter(|value| !value.is_empty())?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(set: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| {
            let found = set.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    fn complete(set: &'static [(&str, &str)]) -> Result<CheckedRank, DescriptionError> {
        RankDescription::default().complete_from(&variables(set))
    }

    #[test]
    fn the_environment_fills_what_the_description_leaves_out() {
        let rank = complete(&[
            ("PFO_JOB", "j"),
            ("SLURM_JOB_ID", "77"),
            ("PFO_GPU", "07:00.0"),
            ("LOCAL_RANK", "3"),
            ("PFO_SOCKET", "/tmp/s"),
        ])
        .unwrap();
        assert_eq!(rank.job.as_str(), "j");
        assert_eq!(rank.gpu, Some("07:00.0".parse().unwrap()));
        assert_eq!(rank.socket, Path::new("/tmp/s"));
    }

    #[test]
    fn without_pfos_own_variables_those_of_the_launcher_count() {
        let rank =
            complete(&[("PFO_JOB", ""), ("SLURM_JOB_ID", "77"), ("SLURM_LOCALID", "2")]).unwrap();
        assert_eq!(rank.job.as_str(), "77");
        assert_eq!(rank.gpu, Some(Gpu::CudaOrdinal(2)));
        assert_eq!(rank.socket, Path::new(TRAINER_SOCKET));
    }

    #[test]
    fn a_gpu_that_nobody_names_is_not_ordinal_0() {
        assert_eq!(complete(&[("PFO_JOB", "j")]).unwrap().gpu, None);
        let several = complete(&[("PFO_JOB", "j"), ("CUDA_VISIBLE_DEVICES", "0,1,2,3")]);
        assert_eq!(several.unwrap().gpu, None);
        let batch =
            variables(&[("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0")]);
        for rank in [Rank(0), Rank(2)] {
            let spawned = RankDescription { rank, pp_degree: 4, ..Default::default() };
            assert_eq!(spawned.complete_from(&batch).unwrap().gpu, None);
        }
    }

    #[test]
    fn a_launcher_that_shows_each_rank_one_gpu_means_that_one() {
        let one =
            complete(&[("PFO_JOB", "j"), ("SLURM_LOCALID", "2"), ("CUDA_VISIBLE_DEVICES", "6")]);
        assert_eq!(one.unwrap().gpu, Some(Gpu::CudaOrdinal(0)));
        let more =
            complete(&[("PFO_JOB", "j"), ("LOCAL_RANK", "2"), ("CUDA_VISIBLE_DEVICES", "4,5,6")]);
        assert_eq!(more.unwrap().gpu, Some(Gpu::CudaOrdinal(2)));
    }

    #[test]
    fn a_local_rank_names_no_gpu_also_when_it_is_read_from_the_environment() {
        const LAUNCHED: &[(&str, &str)] =
            &[("PFO_JOB", "j"), ("LOCAL_RANK", "2"), ("PFO_DEVICES", "/own")];
        let rank = RankDescription::default().filled(&variables(LAUNCHED)).unwrap();
        let rank = rank.complete_from(&variables(LAUNCHED)).unwrap();
        assert_eq!((rank.gpu, rank.gpu_is_named), (Some(Gpu::CudaOrdinal(2)), false));
        assert_eq!(rank.devices, Path::new("/own"));
        let named = complete(&[("PFO_JOB", "j"), ("PFO_GPU", "cuda:2")]).unwrap();
        assert_eq!((named.gpu, named.gpu_is_named), (Some(Gpu::CudaOrdinal(2)), true));
        assert_eq!(named.devices, Path::new("/dev"));
    }

    #[test]
    fn what_the_description_says_comes_before_the_environment() {
        let description = RankDescription {
            job: Some("mine".into()),
            gpu: Some(Gpu::CudaOrdinal(1)),
            socket: Some("/mine".into()),
            ..Default::default()
        };
        let rank = description
            .complete_from(&variables(&[("PFO_JOB", "j"), ("PFO_GPU", "?"), ("PFO_SOCKET", "/s")]))
            .unwrap();
        assert_eq!(
            (rank.job.as_str(), rank.gpu, rank.socket.to_str()),
            ("mine", Some(Gpu::CudaOrdinal(1)), Some("/mine"))
        );
    }

    #[test]
    fn a_description_read_from_the_environment_has_the_launchers_rank() {
        let set = variables(&[("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "12")]);
        let description = RankDescription::default().filled(&set).unwrap();
        assert_eq!((description.job.as_deref(), description.rank), (Some("7"), Rank(12)));
    }

    #[test]
    fn each_mistake_is_named_with_its_value_and_where_it_came_from() {
        let message = |error: Result<CheckedRank, DescriptionError>| error.unwrap_err().to_string();
        assert!(message(complete(&[])).contains("PFO_JOB"));
        let text = message(complete(&[("PFO_JOB", "j"), ("PFO_GPU", "nvidia0")]));
        assert!(text.starts_with("PFO_GPU: \"nvidia0\""), "{text}");
        let text = message(complete(&[("PFO_JOB", "a b")]));
        assert!(text.starts_with("PFO_JOB: ") && text.contains("\"a b\""), "{text}");

        let with = |change: fn(&mut RankDescription)| {
            let mut description = RankDescription::default();
            change(&mut description);
            message(description.complete_from(&variables(&[("PFO_JOB", "j")])))
        };
        let text = with(|d| d.pp_rank = Stage(4));
        assert!(text.contains("pp_rank 4 is not below pp_degree 1"), "{text}");
        let text = with(|d| d.tp_degree = 0);
        assert!(text.contains("tp_rank 0 is not below tp_degree 0"), "{text}");
        assert!(with(|d| d.num_microbatches = Some(0)).contains("num_microbatches is 0"));
        let text = with(|d| d.socket = Some("x".repeat(108).into()));
        assert!(text.contains("108 bytes"), "{text}");
    }
}
