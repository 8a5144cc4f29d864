//! A job that has ranks on other nodes, too, with the agents there.

use std::sync::Arc;

use pfo_fleet::{Digest, Guard, Length, Node, Run, Standing, Terms};
use pfo_planner::{Conditions, Profile};
use pfo_protocol::{JobView, PlanStatus, Refusal, RefusalCode, TrialLength};
use pfo_store::Note;

use crate::fleet::{
    AllSlow, Change as FleetChange, Fleet, Noted, Stands as FleetStands, WholeComparison,
    WholeHold, WholeTurn,
};
use crate::job::JobKey;
use crate::ledger::Compared;
use crate::pfod::Asker;
use crate::steer::{
    Change, ComparedTurn, Comparison, Doing, Hold, Measured, Stands, Steer, SteerError,
    SwapRequest, Swapped, Turn, WholeJob,
};
use crate::straggler::{Labelled, SlowStages};

/// The hand on a job of several nodes.
#[derive(Debug)]
pub(super) struct OnNodes {
    fleet: Arc<Fleet>,
    job: JobView,
    key: JobKey,
}

impl OnNodes {
    pub(super) fn of(fleet: &Arc<Fleet>, job: &JobView) -> Self {
        Self { fleet: Arc::clone(fleet), job: job.clone(), key: JobKey::of(job) }
    }
}

impl Steer for OnNodes {
    fn key(&self) -> &JobKey {
        &self.key
    }

    fn look(&self) -> Doing<'_, WholeJob> {
        Box::pin(async {
            let view = self.fleet.view(&self.key).await?;
            let members = self.fleet.members(&self.key).await?;
            Ok(WholeJob { view, members })
        })
    }

    fn stands(&self) -> Doing<'_, Stands> {
        Box::pin(async {
            let view = self.fleet.view(&self.key).await?;
            let FleetStands { number, step, in_trial, run, standing } =
                self.fleet.known_to_stand(&self.key).await?;
            Ok(Stands { view, number, step, in_trial, run, standing })
        })
    }

    fn guard(&self) -> Doing<'_, Option<Guard>> {
        Box::pin(async {
            let stands = self.fleet.stands(&self.key).await;
            Ok(stands.and_then(|stands| stands.standing.guard))
        })
    }

    fn plan_of<'a>(&'a self, run: &'a Run) -> Doing<'a, Option<Labelled>> {
        Box::pin(async { Ok(self.fleet.plan_of(&self.key, run).await?) })
    }

    fn publish(&self, Labelled { label, table }: Labelled) -> Doing<'_, Run> {
        Box::pin(async move { Ok(self.fleet.publish(&self.key, &self.job, label, &table).await?) })
    }

    fn swap(&self, request: SwapRequest) -> Doing<'_, Swapped> {
        Box::pin(async move {
            let swapped = self.fleet.swap(&self.job, request).await?;
            Ok(Swapped::Fleet(swapped))
        })
    }

    fn change(&self, change: Change) -> Doing<'_, Swapped> {
        let Change { by, run, standing, after, wait } = change;
        let (after, standing) = (Some(after), Some(standing));
        let terms = Terms { after, standing, ..Terms::default() };
        let change = FleetChange { run: Some(run), by_uid: by.uid, terms, wait };
        Box::pin(async move { Ok(Swapped::Fleet(self.fleet.change(&self.key, change).await?)) })
    }

    fn compare(&self, number: u64) -> Box<dyn Comparison> {
        Box::new(WholeComparison::of(&self.fleet, &self.key, number))
    }

    fn is_for_this_node<'a>(&'a self, node: &'a Node) -> Doing<'a, bool> {
        Box::pin(async {
            let view = self.fleet.view(&self.key).await?;
            Ok(self.fleet.is_for_this_node(&view, node).await)
        })
    }

    fn node(&self) -> &Node {
        self.fleet.name()
    }

    fn noted(&self, note: Note) -> Doing<'_, Option<Noted>> {
        Box::pin(async move {
            let noted = self.fleet.noted(&self.key, note).await;
            noted.map_err(|why| not_shared(&self.key, &why))
        })
    }

    fn fetch_noted<'a>(&'a self, noted: &'a Noted) -> Doing<'a, Vec<u8>> {
        Box::pin(async {
            let bytes = self.fleet.fetch_noted(&self.key, noted).await;
            bytes.map_err(|why| not_shared(&self.key, &why))
        })
    }

    fn note(&self, note: Note, label: String, bytes: Vec<u8>) -> Doing<'_, ()> {
        Box::pin(async move { Ok(self.fleet.write_note(&self.key, note, label, bytes).await?) })
    }

    fn publish_profile<'a>(&'a self, profile: &'a Profile) -> Doing<'a, Vec<Digest>> {
        Box::pin(async { Ok(self.fleet.publish_profile(&self.key, profile).await?) })
    }

    fn fetch_profile<'a>(&'a self, digests: &'a [Digest]) -> Doing<'a, Profile> {
        Box::pin(async {
            let profile = self.fleet.fetch_profile(&self.job, digests).await;
            profile.map_err(|why| not_shared(&self.key, &why))
        })
    }

    fn note_slow(&self, stages: &SlowStages, conditions: &Conditions) {
        self.fleet.note_slow(&self.key, stages, conditions);
    }

    fn all_slow(&self) -> Doing<'_, Option<AllSlow>> {
        Box::pin(async { Ok(self.fleet.all_slow(&self.key).await) })
    }

    fn hold(&self, by: Asker) -> Box<dyn Hold> {
        let (fleet, job) = (Arc::clone(&self.fleet), self.job.clone());
        Box::new(HoldOnNodes { fleet, job, by, held: None })
    }
}

impl Comparison for WholeComparison {
    fn turn(&mut self, run: Run, length: TrialLength) -> Doing<'_, ComparedTurn> {
        let TrialLength { settling_steps, steps } = length;
        let length = Length { settling_steps, steps, samples: false };
        Box::pin(async move {
            let WholeTurn { step, recorded } = self.turn_of(run, length).await?;
            Ok(ComparedTurn { step, trial: recorded.trial })
        })
    }

    fn end(
        self: Box<Self>,
        outcome: (Run, Standing),
        compared: Option<pfo_fleet::Compared>,
    ) -> Doing<'static, ()> {
        Box::pin(async move { Ok(self.end_with(outcome, compared).await?) })
    }
}

fn not_shared(key: &JobKey, why: &str) -> SteerError {
    let message = format!("what the other nodes of {key} have made cannot be fetched: {why}");
    let remedy = "`pfoctl fleet check` says what is wrong with the store";
    SteerError::Refused(Refusal::new(RefusalCode::LimitReached, message, remedy))
}

/// A job that the agents of its nodes hold.
#[derive(Debug)]
struct HoldOnNodes {
    fleet: Arc<Fleet>,
    job: JobView,
    by: Asker,
    held: Option<WholeHold>,
}

impl Hold for HoldOnNodes {
    fn turn(&mut self, turn: Turn) -> Doing<'_, Measured> {
        let Turn { setting, length, samples } = turn;
        Box::pin(async move {
            let turn = (setting, length, samples);
            Ok(self.fleet.trial(self.by.uid, &self.job, turn, &mut self.held).await?)
        })
    }

    fn is_held(&self) -> bool {
        self.held.is_some()
    }

    fn take(&mut self, plan: PlanStatus, compared: Compared) {
        if let Some(held) = &mut self.held {
            held.take(compared.shared(plan.label, plan.predicted_energy_j));
        }
    }

    fn end(&mut self, keep: bool) -> Doing<'_, Option<PlanStatus>> {
        let held = self.held.take();
        Box::pin(async move {
            match held {
                Some(held) => held.end(keep).await.map_err(SteerError::from),
                None => Ok(None),
            }
        })
    }
}
