//! What serves the requests of a connection. Each service gets the permit of the request that it
//! serves.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use pfo_planner::{PlanError, Profile, Straggler};
use pfo_protocol::{
    AgentRequest, AgentResponse, JobSelector, JobView, P2pTarget, ProfileSelector, Refusal,
    RefusalCode, SavingsQuery, SwapTarget, SweepControl, SweepOrder, TrialLength, TrialRun,
    check_label,
};
use pfo_service::{Door, Peer, People, Whose, blocking, catch_in};

use crate::authority::{Permit, needs};
use crate::budget::Budgets;
use crate::calibration::{Calibrations, Measuring, Told, memory};
use crate::first_plan::FirstPlans;
use crate::fleet::Fleet;
use crate::front::holds::Holds;
use crate::front::status::status;
use crate::guard::Guards;
use crate::job::JobKey;
use crate::ledger::Ledger;
use crate::p2p::{self, P2pStore};
use crate::pfod::{Pfod, Questions, lets_in};
use crate::profile::{self, ProfileStore};
use crate::record::own_order;
use crate::refusal::{in_no_fleet, internal};
use crate::steer::{Steering, SwapRequest, Swapped, Turn, WholeJob, check_all_here};
use crate::straggler::Stragglers;
use crate::sweep::{self, Ordered, Sweeps};
use crate::tune::Tunes;
use crate::watch::{StageTimes, Watcher};
use crate::{fleet, journal, settings, tune};

/// What requests are served with.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) started: Instant,
    pub(crate) settings: Arc<settings::InForce>,
    pub(crate) people: Arc<People>,
    pub(crate) pfod: Pfod,
    pub(crate) questions: Arc<Questions>,
    pub(crate) profiles: Arc<ProfileStore>,
    pub(crate) p2p: Arc<P2pStore>,
    pub(crate) sweeps: Arc<Sweeps>,
    pub(crate) guards: Arc<Guards>,
    pub(crate) budgets: Arc<Budgets>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) stragglers: Arc<Stragglers>,
    pub(crate) calibrations: Arc<Calibrations>,
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) first_plans: Arc<FirstPlans>,
    pub(crate) tunes: Arc<Tunes>,
    pub(crate) fleet: Option<Arc<Fleet>>,
    pub(crate) steering: Arc<Steering>,
    /// How many requests were refused.
    pub(crate) refusals: AtomicU64,
}

/// Decides a request and serves it. A panic is refused, and the connection goes on.
pub(super) async fn serve(
    services: &Arc<Services>,
    peer: &Peer,
    door: Door,
    holds: &mut Holds,
    request: AgentRequest,
) -> AgentResponse {
    let serving = async {
        let authority = &services.settings.now().authority;
        let let_in = authority.is_stranger(peer) && lets_in(&services.pfod, peer.uid).await?;
        let permit = authority.decide(peer, door, needs(&request), let_in)?;
        services.serve(&permit, holds, request).await
    };
    let served = catch_in(&Whose::of(peer.uid, peer.pid), serving).await;
    served.unwrap_or_else(|panicked| Err(panicked.into())).unwrap_or_else(|refusal| {
        services.refusals.fetch_add(1, Relaxed);
        tracing::warn!(
            name: journal::REFUSED,
            uid = peer.uid.0, owner_uid = peer.person.0, pid = peer.pid.0,
            "refused a request of {}, process {}: {}", peer.user(), peer.pid, refusal.message
        );
        AgentResponse::Refused(refusal)
    })
}

pub(crate) type Served = Result<AgentResponse, Refusal>;

impl Services {
    /// Serves a request that was decided.
    ///
    /// # Errors
    /// The refusal of the request.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        permit: &Permit,
        holds: &mut Holds,
        request: AgentRequest,
    ) -> Served {
        match request {
            AgentRequest::Status => Ok(AgentResponse::Status(status(self, permit).await)),
            AgentRequest::Record { job, run, length, samples } => {
                self.record(permit, holds, &job, (run, length, samples)).await
            }
            AgentRequest::RecordingEnd { job, keep } => {
                Ok(AgentResponse::RecordingEnded(holds.end(permit, &job, keep).await?))
            }
            AgentRequest::Samples(job) => next_samples(permit, holds, &job),
            AgentRequest::FrontierLoad { job, label, frontier } => {
                self.load_frontier(permit, &job, label, frontier).await
            }
            AgentRequest::FrontierRead(job) => self.read_frontier(permit, &job).await,
            AgentRequest::Straggler { job, slowdown, wait } => {
                self.straggler(permit, &job, slowdown, wait).await
            }
            AgentRequest::StragglerAuto { job, on } => self.set_auto(permit, &job, on).await,
            AgentRequest::Guard { job, max_slowdown: most } => self.guard(permit, &job, most).await,
            AgentRequest::SweepStart(order) => self.start_sweep(permit, order).await,
            AgentRequest::SweepAttend(order) => self.attend_sweep(permit, order).await,
            AgentRequest::SweepControl { job, control } => {
                self.control_sweep(permit, job, control).await
            }
            AgentRequest::SweepRead(job) => sweep::read(&self.sweeps, permit, &job),
            AgentRequest::Sweeps => Ok(sweep::list(&self.sweeps, permit)),
            AgentRequest::Profiles => self.list_profiles(permit).await,
            AgentRequest::ProfileRead(which) => self.read_profile(permit, which).await,
            AgentRequest::Calibrations => Ok(self.list_calibrations(permit)),
            AgentRequest::Calibrate { job, profile } => self.calibrate(permit, &job, profile).await,
            AgentRequest::CalibrateMemory(job) => self.calibrate_memory(permit, &job).await,
            AgentRequest::P2pPowers => Ok(AgentResponse::P2pPowers(self.p2p.list(permit.uid()))),
            AgentRequest::P2pKeep(job) => self.keep_p2p(permit, holds, &job).await,
            AgentRequest::P2pSet { target, power_w } => self.set_p2p(permit, target, power_w).await,
            AgentRequest::FleetSwap { job, target, at_step, max_slowdown, wait } => {
                // Boxed: a request takes as much memory as the largest.
                Box::pin(self.swap(permit, &job, (target, at_step, max_slowdown, wait))).await
            }
            AgentRequest::FleetStatus => self.fleet_status().await,
            AgentRequest::Savings(query) => self.savings(permit, query).await,
            AgentRequest::Budget
            | AgentRequest::BudgetSet(_)
            | AgentRequest::BudgetClear(_)
            | AgentRequest::BudgetTerms(_)
            | AgentRequest::BudgetDraft(_)
            | AgentRequest::BudgetSigned(_)
            | AgentRequest::BudgetPartition { .. } => Box::pin(self.budget(permit, request)).await,
            AgentRequest::OrderRead(job) => self.read_order(permit, &job).await,
            AgentRequest::FirstPlanLoad { .. }
            | AgentRequest::FirstPlanDrop(_)
            | AgentRequest::FirstPlans
            | AgentRequest::JobBegins { .. }
            | AgentRequest::JobBegan(_) => self.first_plan(permit, request).await,
            AgentRequest::FleetCheck => self.check_fleet().await,
            AgentRequest::TuneStart(_)
            | AgentRequest::TuneWatch { .. }
            | AgentRequest::TuneStop(_)
            | AgentRequest::TuneRead(_)
            | AgentRequest::Tunes => self.tune(permit, request).await,
        }
    }

    async fn control_sweep(
        &self,
        permit: &Permit,
        job: JobSelector,
        control: SweepControl,
    ) -> Served {
        let now = match control {
            SweepControl::Resume => self.swept(permit, &job).await.ok(),
            SweepControl::Pause | SweepControl::Stop | SweepControl::Finish => None,
        };
        let (sweeps, permit) = (Arc::clone(&self.sweeps), permit.clone());
        away(move || sweep::control(&sweeps, &permit, (&job, now), control)).await
    }

    async fn keep_p2p(&self, permit: &Permit, holds: &mut Holds, job: &JobSelector) -> Served {
        let (key, waits) = holds.waits(permit, job)?;
        let (store, permit) = (Arc::clone(&self.p2p), permit.clone());
        away(move || p2p::keep(&store, &permit, &key.name, &waits)).await
    }

    async fn tune(self: &Arc<Self>, permit: &Permit, request: AgentRequest) -> Served {
        match request {
            AgentRequest::TuneStart(order) => Box::pin(tune::start(self, permit, order)).await,
            AgentRequest::TuneWatch { job, seen } => tune::watch(self, permit, &job, seen).await,
            AgentRequest::TuneStop(job) => tune::stop(self, permit, &job).await,
            AgentRequest::TuneRead(job) => tune::read(self, permit, &job),
            AgentRequest::Tunes => Ok(tune::list(self, permit)),
            other => Err(Refusal::new(
                RefusalCode::Malformed,
                format!("{other:?} is no request about a tune"),
                "this is a defect of pfo-agent: report it",
            )),
        }
    }

    /// The same for a tune, which is begun by a request and makes requests.
    pub(crate) fn serve_boxed<'a>(
        self: &'a Arc<Self>,
        permit: &'a Permit,
        holds: &'a mut Holds,
        request: AgentRequest,
    ) -> Pin<Box<dyn Future<Output = Served> + Send + 'a>> {
        Box::pin(self.serve(permit, holds, request))
    }

    async fn fleet_status(&self) -> Served {
        Box::pin(self.fleet()?.status()).await.map(AgentResponse::Fleet)
    }

    async fn check_fleet(&self) -> Served {
        Ok(AgentResponse::FleetChecked(Box::pin(fleet::check(self.fleet()?)).await))
    }

    async fn read_order(&self, permit: &Permit, job: &JobSelector) -> Served {
        let job = self.find_job(permit, job).await?;
        let remedy = "name the schedule with --schedule, or give a file with --order";
        check_all_here(&job, remedy)?;
        Ok(AgentResponse::Order(own_order(&self.pfod, &job).await?))
    }

    async fn list_profiles(&self, permit: &Permit) -> Served {
        let (profiles, permit) = (Arc::clone(&self.profiles), permit.clone());
        away(move || Ok(profile::list(&profiles, &permit))).await
    }

    async fn read_profile(&self, permit: &Permit, which: ProfileSelector) -> Served {
        let (profiles, permit) = (Arc::clone(&self.profiles), permit.clone());
        away(move || profile::read(&profiles, &permit, &which)).await
    }

    async fn savings(&self, permit: &Permit, query: SavingsQuery) -> Served {
        let (ledger, only_of) = (Arc::clone(&self.ledger), permit.only_of());
        if query.fleet_month.is_some() {
            let told = self.fleet()?.all_saved(&ledger).await?;
            let merged = move || ledger.savings_of_fleet(&told, &query, only_of);
            return away(move || Ok(AgentResponse::Savings(Box::new(merged()?)))).await;
        }
        away(move || Ok(AgentResponse::Savings(Box::new(ledger.savings(&query, only_of))))).await
    }

    async fn set_p2p(&self, permit: &Permit, target: P2pTarget, power_w: Option<f64>) -> Served {
        let gpus = self.questions.gpus().await.map_err(Refusal::from);
        let (store, permit) = (Arc::clone(&self.p2p), permit.clone());
        away(move || p2p::set(&store, &permit, gpus, target, power_w)).await
    }

    fn fleet(&self) -> Result<&Fleet, Refusal> {
        self.fleet.as_deref().ok_or_else(in_no_fleet)
    }

    async fn swap(
        &self,
        permit: &Permit,
        job: &JobSelector,
        (target, at_step, max_slowdown, wait): (SwapTarget, Option<u64>, Option<f64>, bool),
    ) -> Served {
        if let SwapTarget::Table { label, .. } = &target {
            check_label(label)?;
        }
        let request = SwapRequest { by: permit.asker(), target, at_step, max_slowdown, wait };
        let view = self.find_job(permit, job).await?;
        let job = self.steering.of(&view);
        let swapped = job.swap(request).await?;
        report_swap(permit, job.key(), &swapped, "on request");
        Ok(swapped.into())
    }

    /// A job that is to be swept, on all of its nodes.
    async fn swept(&self, permit: &Permit, job: &JobSelector) -> Result<WholeJob, Refusal> {
        let view = self.find_job(permit, job).await?;
        let job = self.steering.of(&view);
        let whole = job.look().await?;
        Box::pin(sweep::fetch_measured(&self.sweeps, &*job)).await;
        Ok(whole)
    }

    pub(crate) async fn find_job(
        &self,
        permit: &Permit,
        job: &JobSelector,
    ) -> Result<JobView, Refusal> {
        permit.select(job, self.questions.jobs().await?)
    }

    async fn record(
        &self,
        permit: &Permit,
        holds: &mut Holds,
        job: &JobSelector,
        (run, length, samples): (TrialRun, TrialLength, bool),
    ) -> Served {
        let job = self.find_job(permit, job).await?;
        let turn = Turn { setting: run, length, samples };
        let recorded = holds.record(&*self.steering.of(&job), permit, turn).await?;
        Ok(AgentResponse::Recorded(Box::new(recorded)))
    }

    async fn load_frontier(
        &self,
        permit: &Permit,
        job: &JobSelector,
        label: String,
        frontier: Vec<u8>,
    ) -> Served {
        check_label(&label)?;
        let job = self.find_job(permit, job).await?;
        let loaded = self.stragglers.load(&job, (label, frontier), true).await?;
        Box::pin(self.stragglers.share_now(&self.steering, &job)).await;
        let (user, key) = (permit.user(), JobKey::of(&job));
        tracing::info!(
            uid = user.uid.0, owner_uid = user.person.0, pid = permit.pid().0, job = %key.name,
            "{user} loaded frontier {} for {key}", loaded.label
        );
        Ok(AgentResponse::Frontier(loaded))
    }

    async fn read_frontier(&self, permit: &Permit, job: &JobSelector) -> Served {
        let view = self.find_job(permit, job).await?;
        let job = self.steering.of(&view);
        let (label, frontier) = Box::pin(self.stragglers.file_of(&*job, &view)).await?;
        Ok(AgentResponse::FrontierFile { label, frontier })
    }

    async fn straggler(
        &self,
        permit: &Permit,
        job: &JobSelector,
        slowdown: Option<f64>,
        wait: bool,
    ) -> Served {
        let view = self.find_job(permit, job).await?;
        self.refuse_in_budget(&view)?;
        let malformed = |error: PlanError| {
            Refusal::new(RefusalCode::Malformed, error.to_string(), "give a factor")
        };
        let straggler = slowdown.map(Straggler::new).transpose().map_err(malformed)?;
        let (job, request) = (self.steering.of(&view), (permit.asker(), wait));
        // A request takes as much memory as the largest.
        let (swapped, why) = match straggler {
            Some(straggler) => {
                let answered = self.stragglers.answer(&*job, &view, straggler, request);
                let factor = straggler.factor();
                let why = format!("for a straggler of {factor} times the fastest iteration");
                (Box::pin(answered).await?, why)
            }
            None => {
                let ended = Box::pin(self.stragglers.end(&*job, request)).await?;
                (ended, "back, because the straggler is over".into())
            }
        };
        report_swap(permit, job.key(), &swapped, &why);
        Ok(swapped.into())
    }

    async fn set_auto(&self, permit: &Permit, job: &JobSelector, on: bool) -> Served {
        let view = self.find_job(permit, job).await?;
        let job = self.steering.of(&view);
        let set = self.stragglers.set_auto(&*job, &view, (permit.asker(), on));
        Box::pin(set).await.map(AgentResponse::Frontier)
    }

    async fn guard(&self, permit: &Permit, job: &JobSelector, max_slowdown: Option<f64>) -> Served {
        let view = self.find_job(permit, job).await?;
        let guarded = Box::pin(self.guards.set(permit.asker(), &view, max_slowdown)).await?;
        if let Some(max_slowdown) = max_slowdown {
            let (user, key) = (permit.user(), JobKey::of(&view));
            tracing::info!(
                uid = permit.uid().0, pid = permit.pid().0, job = %key.name,
                "{user} allowed the plans of {key} a slowdown of {:.1} %", 100.0 * max_slowdown
            );
        }
        Ok(AgentResponse::Guarded(guarded))
    }

    async fn calibrate(&self, permit: &Permit, job: &JobSelector, profile: Vec<u8>) -> Served {
        let job = self.find_job(permit, job).await?;
        self.steering
            .check_alone(&job, "calibrate the GPUs of its models with a job of one node")?;
        let stages = job.pp_degree as usize;
        let times = away(move || stage_times(&profile, stages)).await?;
        let (calibrations, asker) = (&self.calibrations, permit.asker());
        let (pfod, questions) = (&self.pfod, &*self.questions);
        Measuring { pfod, questions, calibrations, asker, job: &job, times: &times }.run().await?;
        let jobs = [job];
        Told::default().tell(calibrations, questions, &jobs).await?;
        let [job] = jobs;
        self.calibrated(permit, &job).await
    }

    fn list_calibrations(&self, permit: &Permit) -> AgentResponse {
        AgentResponse::Calibrations(self.calibrations.list(permit.only_of()))
    }

    async fn calibrate_memory(&self, permit: &Permit, job: &JobSelector) -> Served {
        let job = self.find_job(permit, job).await?;
        self.steering
            .check_alone(&job, "calibrate the GPUs of its models with a job of one node")?;
        let status = self.questions.status().await?;
        if memory::is_locked(&status, &job) {
            let measured = memory::measure(&self.pfod, permit.asker(), &job).await?;
            self.calibrations.set_driver(status.daemon.driver);
            for rank in &job.ranks {
                if let Some(of) = self.calibrations.of_asker(permit.asker(), &job, rank) {
                    self.calibrations.set_memory_lock(&of, measured);
                }
            }
        }
        self.calibrated(permit, &job).await
    }

    /// Keeps what is known now, and answers with that of a job's GPUs.
    async fn calibrated(&self, permit: &Permit, job: &JobView) -> Served {
        let kept = Arc::clone(&self.calibrations);
        away(move || kept.keep().map_err(|error| internal(&error))).await?;
        let mut measured = self.calibrations.list(permit.only_of());
        measured.retain(|one| job.ranks.iter().any(|rank| rank.gpu_model == one.gpu_model));
        Ok(AgentResponse::Calibrations(measured))
    }

    async fn start_sweep(&self, permit: &Permit, order: SweepOrder) -> Served {
        let job = self.swept(permit, &order.job).await?;
        let (sweeps, permit) = (Arc::clone(&self.sweeps), permit.clone());
        away(move || sweep::start(&sweeps, &permit, &job, order)).await
    }

    async fn attend_sweep(&self, permit: &Permit, order: SweepOrder) -> Served {
        let job = self.swept(permit, &order.job).await;
        let (sweeps, permit) = (Arc::clone(&self.sweeps), permit.clone());
        let attended = away(move || sweep::attend(&sweeps, &permit, job, order)).await?;
        Ok(match attended {
            Ordered::Stored(profile) => AgentResponse::Reused(profile),
            Ordered::Begun(attended) => AgentResponse::Sweep(Box::new(attended.rest().await)),
        })
    }
}

fn report_swap(permit: &Permit, key: &JobKey, swapped: &Swapped, why: &str) {
    let (user, step) = (permit.user(), swapped.step());
    tracing::info!(
        name: journal::SWAPPED,
        uid = user.uid.0, owner_uid = user.person.0, pid = permit.pid().0, job = %key.name,
        "{user} swaps {key} to {} at step {step} {why}", swapped.label()
    );
}

/// Does what may take its time, or writes files, on another thread than that of the runtime.
pub(crate) async fn away<T: Send + 'static>(
    what: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    blocking(what).await?
}

/// The times of instructions in a profile, which must have this many stages.
fn stage_times(profile: &[u8], stages: usize) -> Result<Vec<StageTimes>, Refusal> {
    let malformed = |wrong: String| {
        let remedy = "give the profile of this job, as `pfoctl profile export` writes it";
        Refusal::new(RefusalCode::Malformed, wrong, remedy)
    };
    let profile = Profile::from_csv(profile).map_err(|error| malformed(error.to_string()))?;
    let times = StageTimes::of(&profile);
    if times.len() != stages {
        let known = times.len();
        return Err(malformed(format!(
            "the profile is of {known} stages, and the job has {stages}"
        )));
    }
    Ok(times)
}

fn next_samples(permit: &Permit, holds: &mut Holds, job: &JobSelector) -> Served {
    Ok(AgentResponse::Samples(holds.samples(permit, job)?.next_page()))
}
