//! Of which values a payload of Kareus consists.

use pfo_vocabulary::Instruction;

use crate::payload::Payload;

/// What a stage's layers are spread over, which says what overlaps in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// GPUs that each have a part of every tensor.
    TensorParallel,
    /// GPUs that each have a part of the context, too.
    ContextParallel,
}

impl Layout {
    pub(crate) const ALL: [Self; 2] = [Self::TensorParallel, Self::ContextParallel];

    /// The columns of a forward.
    pub(crate) fn forward(self) -> &'static [&'static str] {
        match self {
            Self::TensorParallel => &["attention_configs", "mlp_configs"],
            Self::ContextParallel => {
                &["fwd_qkv_ar", "fwd_qkv_ag", "fwd_ao_ag", "fwd_ao_ar", "fwd_mlp"]
            }
        }
    }

    /// The columns of the forward that a backward runs again; empty where it runs none.
    pub(crate) fn recomputed(self) -> &'static [&'static str] {
        match self {
            Self::TensorParallel => &["recompute_attention_configs", "recompute_mlp_configs"],
            Self::ContextParallel => self.forward(),
        }
    }

    /// The columns of a backward without that.
    pub(crate) fn backward(self) -> &'static [&'static str] {
        match self {
            Self::TensorParallel => self.forward(),
            Self::ContextParallel => &[
                "bwd_qkv_ar",
                "bwd_qkv_rs",
                "bwd_a_rs",
                "bwd_a_ag",
                "bwd_o_ag",
                "bwd_o_ar",
                "bwd_mlp",
            ],
        }
    }

    /// All columns, as Kareus' profiles have them.
    pub(crate) fn columns(self) -> impl Iterator<Item = &'static str> {
        let [first, second] = match self {
            Self::TensorParallel => [self.recomputed(), self.forward()],
            Self::ContextParallel => [self.forward(), self.backward()],
        };
        first.iter().chain(second).copied()
    }

    /// The columns of which an instruction's payload consists; none if it has none of so many values.
    pub(crate) fn columns_of(
        self,
        instruction: Instruction,
        values: usize,
    ) -> Option<Vec<&'static str>> {
        let recomputing = [self.recomputed(), self.backward()].concat();
        let known = match instruction {
            Instruction::Forward => vec![self.forward().to_vec()],
            Instruction::Backward => vec![self.backward().to_vec(), recomputing],
            _ => Vec::new(),
        };
        known.into_iter().find(|columns| columns.len() == values)
    }

    /// The one that all of these payloads have, if there is one.
    pub(crate) fn of<'a>(
        payloads: &(impl Iterator<Item = (Instruction, &'a Payload)> + Clone),
    ) -> Option<Self> {
        let has_all = |layout: &Self| {
            payloads.clone().all(|(instruction, payload)| {
                layout.columns_of(instruction, payload.values().count()).is_some()
            })
        };
        Self::ALL.into_iter().find(has_all)
    }

    /// Whether a backward of so many values runs its forward again.
    pub(crate) fn recomputes(self, values: usize) -> bool {
        values == self.recomputed().len() + self.backward().len()
    }
}
