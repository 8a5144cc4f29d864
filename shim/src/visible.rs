//! What a CUDA ordinal means, from `CUDA_VISIBLE_DEVICES` and the list of the GPUs that CUDA counts.
//!
//! The second-best way, for a process that has not initialized CUDA (else CUDA itself is asked). It
//! never guesses: a wrong answer would change the clocks of another user's GPU. CUDA counts the GPUs
//! whose device files the process can open, which the daemon knows by the open files that it was
//! passed. Only where there are no device files to open do variables decide, as long as none of them
//! says that CUDA might count fewer GPUs than the node has.

use pfo_protocol::{GpuListing, GpuUuid};

use crate::cuda;
use crate::problem::Problem;

/// The GPUs of this process, in the order in which CUDA counts them. CUDA is asked if the process has
/// initialized it; else its variables decide, given the GPUs that the driver shows this process.
///
/// # Errors
/// If one of them is a MIG instance, or if CUDA may count them in another order.
pub fn cuda_gpus(listed: &[GpuListing]) -> Result<Vec<GpuUuid>, Problem> {
    let Some(count) = cuda::count() else {
        let environment = CudaEnvironment::read(|name| std::env::var(name).ok());
        return environment.gpus(listed, listed.len());
    };
    let gpus = (0..count).map(|ordinal| {
        let unknown = || {
            let message = format!("CUDA does not say which GPU cuda:{ordinal} is");
            Problem::unresolved(message, NAME_IT)
        };
        cuda::gpu(ordinal)?.ok_or_else(unknown)
    });
    gpus.collect()
}

/// The variables that decide how CUDA counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct CudaEnvironment {
    /// `CUDA_VISIBLE_DEVICES`; set but empty hides all GPUs.
    pub(crate) visible: Option<String>,
    /// `CUDA_DEVICE_ORDER`.
    pub(crate) order: Option<String>,
    /// `SLURM_STEP_GPUS`, else `SLURM_JOB_GPUS`: the node's own numbers of the job's GPUs.
    pub(crate) slurm_gpus: Option<String>,
    /// `NVIDIA_VISIBLE_DEVICES`: what a container was given.
    pub(crate) container: Option<String>,
}

impl CudaEnvironment {
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            visible: variable("CUDA_VISIBLE_DEVICES"),
            order: variable("CUDA_DEVICE_ORDER"),
            slurm_gpus: variable("SLURM_STEP_GPUS").or_else(|| variable("SLURM_JOB_GPUS")),
            container: variable("NVIDIA_VISIBLE_DEVICES"),
        }
    }

    /// The GPU of a CUDA ordinal, among the GPUs that the daemon lists for a process that can open
    /// this many device files.
    pub(crate) fn gpu(
        &self,
        ordinal: u32,
        listed: &[GpuListing],
        openable: usize,
    ) -> Result<GpuUuid, Problem> {
        let by_bus = by_bus(listed);
        let Some(visible) = &self.visible else {
            return self.by_index(ordinal, ordinal as usize, &by_bus, openable);
        };
        let entries = Entry::read_all(visible, &by_bus)?;
        match entries.get(ordinal as usize) {
            Some(Entry::Uuid(uuid)) => Ok(uuid.clone()),
            Some(Entry::Index(index)) => self.by_index(ordinal, *index, &by_bus, openable),
            None => Err(Problem::unresolved(
                format!(
                    "cuda:{ordinal} does not exist: CUDA_VISIBLE_DEVICES={visible:?} shows {} of \
                     the {} GPUs",
                    entries.len(),
                    by_bus.len()
                ),
                NAME_IT,
            )),
        }
    }

    /// All that CUDA counts.
    fn gpus(&self, listed: &[GpuListing], openable: usize) -> Result<Vec<GpuUuid>, Problem> {
        let count = match &self.visible {
            Some(visible) => Entry::read_all(visible, &by_bus(listed))?.len(),
            None => listed.len(),
        };
        (0..count).map(|ordinal| self.gpu(ordinal as u32, listed, openable)).collect()
    }

    /// The GPU that CUDA gives this index when it sees these GPUs.
    fn by_index(
        &self,
        ordinal: u32,
        index: usize,
        by_bus: &[&GpuListing],
        openable: usize,
    ) -> Result<GpuUuid, Problem> {
        self.cuda_counts(by_bus.len(), openable)
            .map_err(|why| Self::doubt(ordinal, &why, NAME_IT))?;
        let one_model = by_bus.windows(2).all(|pair| pair[0].model == pair[1].model);
        if !one_model && self.order.as_deref() != Some("PCI_BUS_ID") {
            let why = "it sees several models, of which CUDA puts the fastest first";
            let remedy = format!("set CUDA_DEVICE_ORDER=PCI_BUS_ID, or {NAME_IT}");
            return Err(Self::doubt(ordinal, why, &remedy));
        }
        by_bus.get(index).map(|gpu| gpu.uuid.clone()).ok_or_else(|| {
            Problem::unresolved(
                format!("cuda:{ordinal} does not exist: this process has {} GPUs", by_bus.len()),
                NAME_IT,
            )
        })
    }

    /// Whether CUDA counts exactly the listed GPUs, or why it may not.
    fn cuda_counts(&self, listed: usize, openable: usize) -> Result<(), String> {
        if openable > 0 {
            return match openable == listed {
                true => Ok(()),
                false => Err(format!(
                    "this process can open the device files of {openable} GPUs, pfod lists {listed}"
                )),
            };
        }
        let hiding = [("NVIDIA_VISIBLE_DEVICES", &self.container), ("Slurm", &self.slurm_gpus)];
        for (who, given) in hiding {
            if let Some(given) = given.as_deref().filter(|given| !given.trim().is_empty()) {
                return Err(format!(
                    "it can open no device file, and {who} gave it GPUs ({given:?}), which CUDA \
                     numbers anew"
                ));
            }
        }
        Ok(())
    }

    fn doubt(ordinal: u32, why: &str, remedy: &str) -> Problem {
        Problem::unresolved(format!("the GPU of cuda:{ordinal} is not known: {why}"), remedy)
    }
}

const NAME_IT: &str = "name the GPU by UUID (PFO_GPU=GPU-…), or open the session after CUDA is \
                       initialized";

enum Entry {
    Index(usize),
    Uuid(GpuUuid),
}

fn by_bus(listed: &[GpuListing]) -> Vec<&GpuListing> {
    let mut by_bus: Vec<&GpuListing> = listed.iter().collect();
    by_bus.sort_by(|a, b| a.pci_bus_id.cmp(&b.pci_bus_id));
    by_bus
}

impl Entry {
    fn read_all(visible: &str, by_bus: &[&GpuListing]) -> Result<Vec<Self>, Problem> {
        let mut entries = Vec::new();
        for text in visible.split(',').map(str::trim) {
            match Self::read(text, by_bus)? {
                Some(entry) => entries.push(entry),
                None => break,
            }
        }
        Ok(entries)
    }

    /// One entry of the list; `None` for one at which CUDA stops reading it.
    fn read(text: &str, by_bus: &[&GpuListing]) -> Result<Option<Self>, Problem> {
        if text.starts_with("MIG-") {
            return Err(Problem::unresolved(
                format!(
                    "CUDA_VISIBLE_DEVICES names the MIG instance {text:?}, whose clocks belong to \
                     all instances of its GPU"
                ),
                "use whole GPUs",
            ));
        }
        if text.starts_with("GPU-") {
            let mut matching = by_bus.iter().filter(|gpu| gpu.uuid.as_str().starts_with(text));
            return match (matching.next(), matching.next()) {
                (Some(gpu), None) => Ok(Some(Self::Uuid(gpu.uuid.clone()))),
                (None, _) => Ok(None),
                (Some(_), Some(_)) => Err(Problem::unresolved(
                    format!("{text:?} in CUDA_VISIBLE_DEVICES is the beginning of several UUIDs"),
                    "write the whole UUID",
                )),
            };
        }
        // "-1", "NoDevFiles", "" and a number that no GPU has all end the list.
        let index = text.parse::<usize>().ok().filter(|index| *index < by_bus.len());
        Ok(index.map(Self::Index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A100: &str = "NVIDIA A100-SXM4-80GB";

    fn node(models: &[&str]) -> Vec<GpuListing> {
        models
            .iter()
            .enumerate()
            .map(|(index, model)| GpuListing {
                uuid: format!("GPU-{index}{index}{index}a-b{index}").parse().unwrap(),
                pci_bus_id: format!("00000000:{:02X}:00.0", 7 + index).parse().unwrap(),
                model: (*model).to_owned(),
            })
            .collect()
    }

    fn seeing(visible: &str) -> CudaEnvironment {
        CudaEnvironment { visible: Some(visible.to_owned()), ..CudaEnvironment::default() }
    }

    fn index_of(environment: &CudaEnvironment, ordinal: u32) -> Result<usize, Problem> {
        let node = node(&[A100; 4]);
        let uuid = environment.gpu(ordinal, &node, 0)?;
        Ok(node.iter().position(|gpu| gpu.uuid == uuid).unwrap())
    }

    #[test]
    fn without_the_variable_an_ordinal_counts_all_gpus_in_the_order_of_the_bus() {
        let mut node = node(&[A100; 4]);
        node.reverse();
        let uuid = CudaEnvironment::default().gpu(1, &node, 0).unwrap();
        assert_eq!(uuid.as_str(), "GPU-111a-b1");
    }

    #[test]
    fn numbers_in_the_variable_renumber() {
        assert_eq!(index_of(&seeing("2,0"), 0), Ok(2));
        assert_eq!(index_of(&seeing(" 2 , 0 "), 1), Ok(0));
    }

    #[test]
    fn all_gpus_are_those_of_each_ordinal() {
        let node = node(&[A100; 4]);
        let all = |environment: CudaEnvironment| {
            let gpus = environment.gpus(&node, 4).unwrap();
            let index = |uuid| node.iter().position(|gpu| gpu.uuid == uuid).unwrap();
            gpus.into_iter().map(index).collect::<Vec<_>>()
        };
        assert_eq!(all(CudaEnvironment::default()), [0, 1, 2, 3]);
        assert_eq!(all(seeing("2,GPU-0,9,1")), [2, 0]);
        assert_eq!(all(seeing("")), [0; 0]);
        assert!(seeing("1,MIG-a").gpus(&node, 4).is_err());
    }

    #[test]
    fn minus_one_an_unknown_word_or_a_number_too_large_end_the_list() {
        for visible in ["1,-1,2", "1,NoDevFiles,2", "1,9,2", "1,,2", "1,GPU-x,2"] {
            assert_eq!(index_of(&seeing(visible), 0), Ok(1));
            let problem = index_of(&seeing(visible), 1).unwrap_err();
            assert!(problem.message.contains("shows 1 of the 4 GPUs"), "{problem}");
        }
    }

    #[test]
    fn an_empty_variable_hides_every_gpu() {
        let problem = index_of(&seeing(""), 0).unwrap_err();
        assert!(problem.message.contains("shows 0 of the 4 GPUs"), "{problem}");
        assert!(problem.remedy.contains("PFO_GPU"), "{problem}");
    }

    #[test]
    fn the_beginning_of_a_uuid_is_enough_if_only_one_has_it() {
        assert_eq!(index_of(&seeing("GPU-33,GPU-222a-b2"), 0), Ok(3));
        assert_eq!(index_of(&seeing("GPU-33,GPU-222a-b2"), 1), Ok(2));
        let problem = index_of(&seeing("GPU-"), 0).unwrap_err();
        assert!(problem.message.contains("several UUIDs"), "{problem}");
    }

    #[test]
    fn a_mig_instance_is_refused_with_the_reason() {
        let problem = index_of(&seeing("MIG-aaaa"), 0).unwrap_err();
        assert!(problem.message.contains("MIG instance"), "{problem}");
    }

    #[test]
    fn among_several_models_numbers_mean_something_only_in_bus_order() {
        let mixed = node(&["NVIDIA A40", A100]);
        let problem = seeing("1").gpu(0, &mixed, 0).unwrap_err();
        assert!(problem.remedy.contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"), "{problem}");
        let ordered = CudaEnvironment { order: Some("PCI_BUS_ID".into()), ..seeing("1") };
        assert_eq!(ordered.gpu(0, &mixed, 2).unwrap(), mixed[1].uuid);
        assert_eq!(seeing("GPU-1").gpu(0, &mixed, 0).unwrap(), mixed[1].uuid);
    }

    /// Which of four GPUs `cuda:0` is in a process that can open these of them.
    fn first_of(openable: &[usize], environment: &CudaEnvironment) -> Result<usize, Problem> {
        let node = node(&[A100; 4]);
        let listed: Vec<_> = openable.iter().map(|index| node[*index].clone()).collect();
        let uuid = environment.gpu(0, &listed, openable.len())?;
        Ok(node.iter().position(|gpu| gpu.uuid == uuid).unwrap())
    }

    fn in_container(given: &str) -> CudaEnvironment {
        CudaEnvironment { container: Some(given.to_owned()), ..CudaEnvironment::default() }
    }

    #[test]
    fn each_task_that_slurm_binds_to_one_gpu_has_its_own() {
        // srun --gpu-bind=single:1 and --gpus-per-task=1 give every task these two.
        let task = CudaEnvironment { slurm_gpus: Some("0".into()), ..seeing("0") };
        for own in 0..4 {
            assert_eq!(first_of(&[own], &task), Ok(own));
        }
    }

    #[test]
    fn a_job_step_with_some_gpus_counts_those() {
        let step = CudaEnvironment { slurm_gpus: Some("2,3".into()), ..seeing("0,1") };
        assert_eq!(first_of(&[2, 3], &step), Ok(2));
        let unconstrained = CudaEnvironment { slurm_gpus: Some("2,3".into()), ..seeing("2,3") };
        assert_eq!(first_of(&[0, 1, 2, 3], &unconstrained), Ok(2));
    }

    #[test]
    fn void_as_cdi_sets_it_stands_for_the_gpus_of_the_container() {
        assert_eq!(first_of(&[3], &in_container("void")), Ok(3));
        assert_eq!(first_of(&[1, 3], &in_container("void")), Ok(1));
    }

    #[test]
    fn all_stands_for_the_gpus_of_the_container() {
        assert_eq!(first_of(&[3], &in_container("all")), Ok(3));
        assert_eq!(first_of(&[0, 1, 2, 3], &in_container("all")), Ok(0));
    }

    #[test]
    fn a_uuid_of_the_device_plugin_is_unambiguous() {
        assert_eq!(first_of(&[3], &in_container("GPU-333a-b3")), Ok(3));
    }

    #[test]
    fn without_a_device_file_gpus_of_slurm_and_containers_are_not_guessed() {
        for given in ["void", "all", "GPU-333", "0,1"] {
            let problem = index_of(&in_container(given), 0).unwrap_err();
            assert!(problem.message.contains("NVIDIA_VISIBLE_DEVICES"), "{problem}");
        }
        let task = CudaEnvironment { slurm_gpus: Some("0".into()), ..seeing("0") };
        let problem = index_of(&task, 0).unwrap_err();
        assert!(problem.message.contains("Slurm"), "{problem}");
        assert_eq!(index_of(&in_container(""), 0), Ok(0));
    }

    #[test]
    fn a_daemon_that_lists_other_gpus_than_can_be_opened_is_not_believed() {
        let node = node(&[A100; 4]);
        for openable in [1, 3, 5] {
            let problem = CudaEnvironment::default().gpu(0, &node, openable).unwrap_err();
            assert!(problem.message.contains("pfod lists 4"), "{problem}");
        }
    }

    #[test]
    fn an_ordinal_beyond_the_nodes_gpus_is_named() {
        let problem = index_of(&CudaEnvironment::default(), 4).unwrap_err();
        assert!(problem.message.contains("cuda:4 does not exist"), "{problem}");
    }
}
