//! A user who trains on a plan while others do whatever they do, and must not notice.

use pfo_protocol::{
    ClientMessage, ClockTable, DpRank, Event, GpuName, GpuUuid, Hello, JobSelector, Mark, Mhz,
    PlannedUnit, Rank, RankPosition, Request, Response, Stage, SwapTarget, TpRank, Unit,
};
use pfo_service::now_ns;
use pfod::fuzzing::Daemon;

use super::frame;
use super::machine::Machine;
use super::operation::{LINES, STEP, VICTIM, VICTIM_JOB};

const SEAT: usize = 0;

/// Its session, in the middle of a step.
#[derive(Debug, Default)]
pub(super) struct Victim {
    sequence: u64,
    step: u64,
    /// The next event of the step.
    position: usize,
}

impl Victim {
    /// Opens its session, and swaps to its plan.
    pub(super) fn begin(daemon: &mut Daemon, gpu: &GpuUuid) -> Self {
        let job = VICTIM_JOB.parse().expect("a name");
        let position = RankPosition {
            rank: Rank(0),
            pp_rank: Stage(0),
            dp_rank: DpRank(0),
            tp_rank: TpRank(0),
            pp_degree: 1,
            dp_degree: 1,
            tp_degree: 1,
        };
        let hello = Hello {
            client: "victim".into(),
            job,
            position,
            gpu: GpuName::Uuid(gpu.clone()),
            num_microbatches: Some(2),
            next_step: 0,
        };
        let job = JobSelector { job: hello.job.clone(), uid: None };
        daemon.hello(SEAT, VICTIM, hello).expect("a session");
        let planned = STEP.map(|(instruction, microbatch, mhz)| PlannedUnit {
            unit: Unit::new(instruction, microbatch),
            mhz: Mhz(mhz),
            wait_mhz: None,
        });
        let table = ClockTable::new(2, None, vec![planned.to_vec()]).expect("a table");
        let target = SwapTarget::Table { label: "victim.json".into(), table };
        let swap = Request::PlanSwap { job, target, at_step: None, after: None, wait: false };
        let swapped = daemon.ask(LINES.len() - 1, swap);
        assert!(matches!(swapped, Some(Response::Swapped(_))), "{swapped:?}");
        Self::default()
    }

    /// Goes on to its next instruction, which runs at the clock of the plan.
    pub(super) fn go_on(&mut self, daemon: &mut Daemon, machine: &Machine) {
        if self.position == 0 {
            self.send(daemon, Mark::StepBegin(self.step));
        }
        let (instruction, microbatch, mhz) = STEP[self.position];
        let unit = Unit::new(instruction, microbatch);
        self.send(daemon, Mark::InstructionBegin(unit));
        assert_eq!(machine.set()[0].sm, Some(Mhz(mhz)), "the clock of another user's job");
        self.send(daemon, Mark::InstructionEnd(unit));
        self.position += 1;
        if self.position == STEP.len() {
            self.send(daemon, Mark::StepEnd(self.step));
            self.position = 0;
            self.step += 1;
        }
    }

    /// Its session was taken up by the next daemon, and its plan holds from the next step on.
    pub(super) fn is_continued(&mut self) {
        self.step += u64::from(self.position > 0);
        self.position = 0;
    }

    pub(super) fn end(daemon: &mut Daemon) {
        assert!(daemon.sessions().any(|open| open == SEAT), "a session of another user ended");
        daemon.send(SEAT, &ClientMessage::Goodbye.to_frame().expect("a frame"));
    }

    fn send(&mut self, daemon: &mut Daemon, mark: Mark) {
        let event = Event { sequence: self.sequence, client_ns: now_ns(), mark };
        daemon.send(SEAT, &frame(&event));
        self.sequence += 1;
    }
}
