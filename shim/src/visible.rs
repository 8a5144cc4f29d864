//! What a CUDA ordinal means, from `CUDA_VISIBLE_DEVICES` and the list of all GPUs of the node.
//!
//! The second-best way, for a process that has not initialized CUDA (else CUDA itself is asked). It
//! never guesses: a wrong answer would change the clocks of another user's GPU.

use pfo_protocol::{GpuListing, GpuUuid};

use crate::problem::Problem;

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

    /// The GPU of a CUDA ordinal.
    pub(crate) fn gpu(&self, ordinal: u32, node: &[GpuListing]) -> Result<GpuUuid, Problem> {
        let mut by_bus: Vec<&GpuListing> = node.iter().collect();
        by_bus.sort_by(|a, b| a.pci_bus_id.cmp(&b.pci_bus_id));
        let Some(visible) = &self.visible else {
            return self.by_index(ordinal, ordinal as usize, &by_bus);
        };
        let mut entries = Vec::new();
        for text in visible.split(',').map(str::trim) {
            match Entry::read(text, &by_bus)? {
                Some(entry) => entries.push(entry),
                None => break,
            }
        }
        match entries.get(ordinal as usize) {
            Some(Entry::Uuid(uuid)) => Ok(uuid.clone()),
            Some(Entry::Index(index)) => self.by_index(ordinal, *index, &by_bus),
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

    /// The GPU that CUDA gives this index when it sees the whole node.
    fn by_index(
        &self,
        ordinal: u32,
        index: usize,
        by_bus: &[&GpuListing],
    ) -> Result<GpuUuid, Problem> {
        self.numbers_are_the_nodes(ordinal)?;
        let one_model = by_bus.windows(2).all(|pair| pair[0].model == pair[1].model);
        if !one_model && self.order.as_deref() != Some("PCI_BUS_ID") {
            return Err(Problem::unresolved(
                format!(
                    "the GPU of cuda:{ordinal} is not known: the node has several models and \
                     CUDA puts the fastest first"
                ),
                format!("set CUDA_DEVICE_ORDER=PCI_BUS_ID, or {NAME_IT}"),
            ));
        }
        by_bus.get(index).map(|gpu| gpu.uuid.clone()).ok_or_else(|| {
            Problem::unresolved(
                format!("cuda:{ordinal} does not exist: the node has {} GPUs", by_bus.len()),
                NAME_IT,
            )
        })
    }

    /// Slurm with device cgroups and container runtimes hide GPUs below CUDA, which then counts
    /// only what is left: its numbers are not the node's any more.
    fn numbers_are_the_nodes(&self, ordinal: u32) -> Result<(), Problem> {
        let doubt = |who: &str, given: &str| {
            Problem::unresolved(
                format!(
                    "the GPU of cuda:{ordinal} is not known: {who} ({given:?}), and CUDA \
                     numbers what it left"
                ),
                NAME_IT,
            )
        };
        if let Some(given) = self.container.as_deref()
            && !matches!(given.trim(), "" | "all" | "void")
        {
            return Err(doubt("the container was given GPUs by NVIDIA_VISIBLE_DEVICES", given));
        }
        if let Some(given) = self.slurm_gpus.as_deref()
            && self.visible.as_deref() != Some(given)
        {
            return Err(doubt("Slurm gave the job other numbers", given));
        }
        Ok(())
    }
}

const NAME_IT: &str = "name the GPU by UUID (PFO_GPU=GPU-…), or open the session after CUDA is \
                       initialized";

enum Entry {
    Index(usize),
    Uuid(GpuUuid),
}

impl Entry {
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
        let uuid = environment.gpu(ordinal, &node)?;
        Ok(node.iter().position(|gpu| gpu.uuid == uuid).unwrap())
    }

    #[test]
    fn without_the_variable_an_ordinal_counts_all_gpus_in_the_order_of_the_bus() {
        let mut node = node(&[A100; 4]);
        node.reverse();
        let uuid = CudaEnvironment::default().gpu(1, &node).unwrap();
        assert_eq!(uuid.as_str(), "GPU-111a-b1");
    }

    #[test]
    fn numbers_in_the_variable_renumber() {
        assert_eq!(index_of(&seeing("2,0"), 0), Ok(2));
        assert_eq!(index_of(&seeing(" 2 , 0 "), 1), Ok(0));
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
        let problem = seeing("1").gpu(0, &mixed).unwrap_err();
        assert!(problem.remedy.contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"), "{problem}");
        let ordered = CudaEnvironment { order: Some("PCI_BUS_ID".into()), ..seeing("1") };
        assert_eq!(ordered.gpu(0, &mixed).unwrap(), mixed[1].uuid);
        assert_eq!(seeing("GPU-1").gpu(0, &mixed).unwrap(), mixed[1].uuid);
    }

    #[test]
    fn gpus_renumbered_by_slurm_or_a_container_are_not_guessed() {
        let slurm = CudaEnvironment { slurm_gpus: Some("3".into()), ..seeing("0") };
        let problem = index_of(&slurm, 0).unwrap_err();
        assert!(problem.message.contains("Slurm"), "{problem}");
        let container =
            CudaEnvironment { container: Some("GPU-333".into()), ..CudaEnvironment::default() };
        let problem = index_of(&container, 0).unwrap_err();
        assert!(problem.message.contains("NVIDIA_VISIBLE_DEVICES"), "{problem}");
        let agreeing = CudaEnvironment {
            slurm_gpus: Some("2,3".into()),
            container: Some("all".into()),
            ..seeing("2,3")
        };
        assert_eq!(index_of(&agreeing, 1), Ok(3));
    }

    #[test]
    fn an_ordinal_beyond_the_nodes_gpus_is_named() {
        let problem = index_of(&CudaEnvironment::default(), 4).unwrap_err();
        assert!(problem.message.contains("cuda:4 does not exist"), "{problem}");
    }
}
