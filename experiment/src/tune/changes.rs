//! How many changes of clocks the policy allows a GPU. `pfod` leaves out those that a plan asks for beyond:
//! it then runs at clocks that nobody planned.

use pfo_protocol::{GpuUuid, PolicyVerdict, Request, Response};

use crate::bench::Bench;
use crate::error::TuneError;
use crate::subject::{Subject, unexpected};

impl<B: Bench> Subject<'_, B> {
    /// The changes of clocks that each GPU of the job may make in a second, as the policy says it of the
    /// user; without end if it says nothing.
    pub(crate) async fn changes_per_second(&mut self) -> Result<f64, TuneError> {
        let status = self.status().await?;
        let ranks = self.in_status(&status).map_or(&[][..], |job| &job.ranks);
        let gpus: Vec<&GpuUuid> = ranks.iter().map(|rank| &rank.gpu_uuid).collect();
        match self.pfod(Request::PolicyExplain { who: None, gpu: None }).await? {
            Response::Policy(verdicts) => {
                Ok(least_of(&verdicts, &gpus).map_or(f64::INFINITY, f64::from))
            }
            other => Err(unexpected(&other)),
        }
    }
}

fn least_of(verdicts: &[PolicyVerdict], gpus: &[&GpuUuid]) -> Option<u32> {
    let of_job = verdicts.iter().filter(|verdict| gpus.contains(&&verdict.gpu.uuid));
    of_job.filter_map(|verdict| Some(verdict.terms.as_ref()?.changes_per_second)).min()
}

#[cfg(test)]
pub(crate) mod tests {
    use pfo_planner::{
        Frontier, Instruction, Mhz, Options, Pipeline, Plan, Profile, Schedule, Watts,
    };
    use pfo_protocol::{GpuListing, LeaseTerms};

    use super::*;

    /// A plan for one stage: two forwards and two backwards at these clocks.
    pub(crate) fn plan_of(clocks: [u32; 4]) -> Plan {
        let csv = "stage,instruction,frequency,time,energy\n0,forward,1400,1,99\n0,forward,900,2,99\n\
                   0,backward,1400,1,99\n0,backward,900,2,99\n";
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let pipeline = Pipeline::new(&profile, Schedule::GPipe, 2).unwrap();
        let options = Options { plans: 2, ..Options::default() };
        let frontier = Frontier::optimize(&pipeline, Watts(1.0), options, &|_| {}).unwrap();
        let mut plan = frontier.plan(0).unwrap();
        let planned = plan.stages[0].instructions.iter_mut();
        planned.zip(clocks).for_each(|(one, mhz)| one.frequency_mhz = Mhz(mhz));
        plan
    }

    #[test]
    fn the_change_from_one_step_to_the_next_counts_and_what_asks_for_no_clock_does_not() {
        assert_eq!(plan_of([900; 4]).most_clock_changes(), 0);
        assert_eq!(plan_of([1400, 900, 900, 900]).most_clock_changes(), 2);
        let mut plan = plan_of([1400, 900, 1400, 900]);
        assert_eq!(plan.most_clock_changes(), 4);
        plan.stages[0].instructions[1].instruction = Instruction::Load;
        assert_eq!(plan.most_clock_changes(), 2);
    }

    #[test]
    fn the_gpu_that_may_change_least_decides_and_those_of_others_do_not() {
        let verdict = |digit: char, changes_per_second: u32| PolicyVerdict {
            index: 0,
            gpu: GpuListing {
                uuid: uuid(digit),
                pci_bus_id: "00000000:01:00.0".parse().unwrap(),
                model: "A100".to_owned(),
            },
            decided_by: "the policy".to_owned(),
            terms: Some(LeaseTerms {
                min_mhz: Mhz(210),
                max_mhz: Mhz(1410),
                min_power_limit_w: 100,
                changes_per_second,
                restore_to_mhz: None,
                sessions_per_user: 1,
                idle_limit_s: 1,
                require_process: false,
                require_device: false,
            }),
        };
        let verdicts = [verdict('1', 50), verdict('2', 20), verdict('3', 1)];
        assert_eq!(least_of(&verdicts, &[&uuid('1'), &uuid('2')]), Some(20));
        assert_eq!(least_of(&verdicts, &[&uuid('4')]), None);
    }

    fn uuid(digit: char) -> GpuUuid {
        let of = |length| digit.to_string().repeat(length);
        format!("GPU-{}-{}-{}-{}-{}", of(8), of(4), of(4), of(4), of(12)).parse().unwrap()
    }
}
