//! What a member may ask of the agent, with other users' jobs and numbers at the limits.

use std::io;
use std::os::unix::net::UnixStream;

use pfo_protocol::{
    AgentRequest, BeginningRank, ClockTable, JobName, JobSelector, Mhz, P2pTarget, PlanFile,
    SweepControl, SweepOrder, SweepSettings, TrialLength, TrialRun,
};

use super::{PATIENCE, Target, request_agent};
use crate::plan::TestPlan;

/// Bytes of a frontier that nobody can read.
const FRONTIER_BYTES: usize = 4 << 20;

pub(super) fn ask(target: &Target) -> io::Result<()> {
    let Some(socket) = &target.agent else { return Ok(()) };
    let (_session, own) = target.begin_own()?;
    let settings = SweepSettings {
        steps: 10_000,
        settling_steps: 1,
        stride_mhz: Mhz(15),
        min_mhz: Mhz(0),
        max_slowdown: None,
    };
    for job in [own, target.victim.clone()] {
        let order = SweepOrder { job: job.clone(), model: None, settings, reuse: false };
        let length = TrialLength { settling_steps: 1, steps: 50_000 };
        let requests = [
            AgentRequest::Status,
            AgentRequest::SweepStart(order),
            AgentRequest::SweepControl { job: job.clone(), control: SweepControl::Stop },
            AgentRequest::FrontierLoad {
                job: job.clone(),
                label: "f".into(),
                frontier: vec![0x1f; fastrand::usize(..FRONTIER_BYTES)],
            },
            AgentRequest::Straggler { job: job.clone(), slowdown: Some(1e6), wait: false },
            AgentRequest::StragglerAuto { job: job.clone(), on: true },
            AgentRequest::P2pKeep(job.clone()),
            AgentRequest::P2pSet { target: P2pTarget::Model("A40".into()), power_w: Some(1.0) },
            AgentRequest::SweepRead(job.clone()),
            AgentRequest::Profiles,
            AgentRequest::Samples(job.clone()),
            AgentRequest::OrderRead(job.clone()),
            AgentRequest::FrontierRead(job.clone()),
            AgentRequest::FirstPlanLoad {
                job: JobSelector { job: any_name(), ..job.clone() },
                label: "p".into(),
                table: ClockTable::from(&TestPlan::new(1, 2, |_, _| 210)),
            },
            AgentRequest::FirstPlanDrop(job.clone()),
            AgentRequest::JobBegins {
                rank: BeginningRank {
                    job: job.job.clone(),
                    pp_degree: u32::MAX,
                    num_microbatches: Some(0),
                },
                plan: Some(PlanFile {
                    label: "p".into(),
                    json: vec![b'['; fastrand::usize(..FRONTIER_BYTES)],
                }),
            },
            AgentRequest::Record { job, run: TrialRun::Uniform(Mhz(210)), length, samples: true },
        ];
        for asked in requests {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let _ = request_agent(&stream, asked);
        }
    }
    Ok(())
}

/// A name under which nobody has a job yet.
fn any_name() -> JobName {
    format!("none-{}", fastrand::u32(..)).parse().unwrap_or_else(|error| panic!("{error}"))
}
