//! A rank in the process of the test, event by event, where no training is needed.

use pfo::{Gpu, Instruction, RankDescription, Session};

use crate::node::Node;
use crate::plan::one_f_one_b;

/// A rank of a 1F1B pipeline, on the GPU of its number.
pub struct Rank {
    /// Its session.
    pub session: Session,
    order: Vec<(Instruction, u32)>,
}

impl Rank {
    /// Opens a session that must hold its lease.
    #[must_use]
    pub fn open(node: &Node, job: &str, rank: u32, stages: u32, microbatches: u32) -> Self {
        let rank = Self::open_anyway(node, job, rank, stages, microbatches);
        assert_eq!(rank.session.problem(), None);
        rank
    }

    /// Opens a session, whether it holds its lease or not.
    #[must_use]
    pub fn open_anyway(node: &Node, job: &str, rank: u32, stages: u32, microbatches: u32) -> Self {
        Self::open_with_plan(node, job, (rank, stages, microbatches), None)
    }

    /// The same of a rank, in a pipeline of some stages and microbatches, that names the plan with which
    /// its job begins.
    #[must_use]
    pub fn open_with_plan(
        node: &Node,
        job: &str,
        (rank, stages, microbatches): (u32, u32, u32),
        plan: Option<&str>,
    ) -> Self {
        let session = Session::open(RankDescription {
            job: Some(job.into()),
            gpu: Some(Gpu::Uuid(node.machine.uuid(rank as usize))),
            socket: Some(node.socket()),
            devices: Some(node.machine.devices()),
            rank: pfo::Rank(rank),
            pp_rank: pfo::Stage(rank as u16),
            pp_degree: stages,
            num_microbatches: Some(microbatches),
            setup_timeout: crate::wait::LONG,
            plan: plan.map(Into::into),
            ..RankDescription::default()
        });
        let order = one_f_one_b(rank, stages, microbatches);
        Self { session: session.unwrap(), order }
    }

    /// All ranks of a pipeline.
    #[must_use]
    pub fn open_all(node: &Node, job: &str, stages: u32, microbatches: u32) -> Vec<Self> {
        (0..stages).map(|rank| Self::open(node, job, rank, stages, microbatches)).collect()
    }

    /// The instructions of a step in order.
    #[must_use]
    pub fn order(&self) -> &[(Instruction, u32)] {
        &self.order
    }

    /// Sends a whole step.
    pub fn step(&self) {
        self.session.step_begin();
        self.instructions();
        self.session.step_end();
    }

    /// Sends every instruction of a step.
    pub fn instructions(&self) {
        for position in 0..self.order.len() {
            self.instruction(position);
        }
    }

    /// Sends one instruction of a step.
    pub fn instruction(&self, position: usize) {
        self.begin(position);
        self.session.instruction_end();
    }

    /// Sends the begin of one instruction of a step.
    pub fn begin(&self, position: usize) {
        let (instruction, microbatch) = self.order[position];
        self.session.instruction_begin(instruction, microbatch);
    }
}
