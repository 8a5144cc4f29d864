//! The bench of this node: requests of a tune are served as if its user made them, and their answers are
//! kept.

use std::sync::Arc;
use std::time::Duration;

use pfo_experiment::{Bench, BenchError, Phase, Progress};
use pfo_protocol::{
    AgentRequest, AgentResponse, ClientMessage, DaemonMessage, JobSelector, JobView, Refusal,
    RefusalCode, Request, Response, TuneState,
};
use pfo_service::blocking;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::authority::Permit;
use crate::front::{Holds, Services};
use crate::tune::answers::{Answer, Answers, digest};
use crate::tune::tunes::Tune;

/// Plans are computed for one job after the other: one takes memory and every core.
static PLANNING: Semaphore = Semaphore::const_new(1);

/// How often to look whether a job that is swept is still there, and for how long it may be away: ranks
/// that restart are back by then.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_secs(60);

/// Where one tune happens.
pub(super) struct NodeBench {
    services: Arc<Services>,
    permit: Permit,
    holds: Holds,
    answers: Answers,
    /// Who watches; nobody of what is only looked at.
    tune: Option<Arc<Tune>>,
    /// The time of the last answer, over restarts of the agent.
    at: Duration,
    since: Instant,
    /// Whether answers of an earlier agent were used, and the job was not measured since.
    is_resumed: bool,
}

impl NodeBench {
    pub(super) fn new(
        services: Arc<Services>,
        permit: Permit,
        answers: Answers,
        tune: Option<Arc<Tune>>,
    ) -> Self {
        let (at, since) = (Duration::ZERO, Instant::now());
        let is_resumed = answers.are_left();
        Self { services, permit, holds: Holds::default(), answers, tune, at, since, is_resumed }
    }

    /// The answer that an earlier agent got.
    fn known(&mut self, digest: u64) -> Option<DaemonMessage> {
        let Answer { at, message, .. } = self.answers.next(digest)?;
        (self.at, self.since) = (at, Instant::now());
        if !self.answers.are_left()
            && let Some(tune) = &self.tune
        {
            tune.live();
        }
        Some(message)
    }

    fn keep(&mut self, digest: u64, message: DaemonMessage) {
        self.at = self.at.saturating_add(self.since.elapsed());
        self.since = Instant::now();
        self.answers.keep(&Answer { digest, at: self.at, message });
    }

    async fn ask_agent(
        &mut self,
        request: AgentRequest,
        within: Option<Duration>,
    ) -> Result<AgentResponse, BenchError> {
        let (services, permit) = (Arc::clone(&self.services), self.permit.clone());
        let swept = match &request {
            AgentRequest::SweepAttend(order) => Some(order.job.clone()),
            _ => None,
        };
        let served = services.serve_boxed(&permit, &mut self.holds, request);
        // A sweep waits for ranks that are away for much longer.
        if let Some(job) = swept {
            return tokio::select! {
                served = served => Ok(served?),
                refusal = ended(&services, job) => Err(refusal.into()),
            };
        }
        let served = match within {
            Some(within) => timeout(within, served).await.map_err(|_| BenchError::Late)?,
            None => served.await,
        };
        Ok(served?)
    }

    async fn ask_pfod(&mut self, request: Request) -> Result<Response, Refusal> {
        if request == Request::Status {
            let status = self.services.questions.status().await?;
            return Ok(Response::Status(Box::new(status)));
        }
        let mut connection = self.services.pfod.on_behalf(self.permit.asker()).await?;
        Ok(connection.ask(request).await?)
    }
}

impl Bench for NodeBench {
    async fn agent(
        &mut self,
        request: AgentRequest,
        within: Option<Duration>,
    ) -> Result<AgentResponse, BenchError> {
        let digest = digest(&ClientMessage::AgentRequest(request.clone()));
        match self.known(digest) {
            Some(DaemonMessage::AgentResponse(AgentResponse::Refused(refusal))) => {
                return Err(refusal.into());
            }
            Some(DaemonMessage::AgentResponse(response)) => return Ok(response),
            _ => {}
        }
        let answer = self.ask_agent(request, within).await;
        let kept = match &answer {
            Ok(response) => response.clone(),
            Err(BenchError::Refused(refusal)) => AgentResponse::Refused(refusal.clone()),
            Err(BenchError::Late) => return answer,
        };
        if matches!(kept, AgentResponse::Recorded(_)) {
            self.is_resumed = false;
        }
        self.keep(digest, DaemonMessage::AgentResponse(kept));
        answer
    }

    async fn pfod(&mut self, request: Request) -> Result<Response, BenchError> {
        let digest = digest(&ClientMessage::Request(request.clone()));
        match self.known(digest) {
            Some(DaemonMessage::Response(Response::Refused(refusal))) => {
                return Err(refusal.into());
            }
            Some(DaemonMessage::Response(response)) => return Ok(response),
            _ => {}
        }
        let answer = self.ask_pfod(request).await;
        let kept = match &answer {
            Ok(response) => response.clone(),
            Err(refusal) => Response::Refused(refusal.clone()),
        };
        self.keep(digest, DaemonMessage::Response(kept));
        Ok(answer?)
    }

    async fn compute<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BenchError> {
        // It is never closed.
        let _turn = PLANNING.acquire().await;
        let Some(key) = self.tune.as_ref().map(|tune| tune.key()) else {
            return Ok(blocking(work).await.map_err(Refusal::from)?);
        };
        let tunes = Arc::clone(&self.services.tunes);
        let planning = blocking(move || {
            tunes.files().plan(&key)?;
            let planned = work();
            tunes.files().planned(&key);
            Ok(planned)
        });
        let planned: Result<T, Refusal> = planning.await.map_err(Refusal::from)?;
        Ok(planned?)
    }

    fn now(&self) -> Duration {
        self.at
    }

    fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    async fn pause(&mut self, length: Duration) {
        if !self.answers.are_left() {
            sleep(length).await;
        }
    }

    fn show(&mut self, progress: Progress) {
        if let Some(tune) = &self.tune {
            tune.show(progress, !self.answers.are_left());
        }
    }

    fn remark(&mut self, line: String) {
        if let Some(tune) = &self.tune {
            tune.remark(line);
        }
    }
}

/// Returns when a job has had no rank on this node for a while.
async fn ended(services: &Services, job: JobSelector) -> Refusal {
    let mut gone_since = None;
    loop {
        sleep(LOOK_EVERY).await;
        let is_it =
            |other: &JobView| other.job == job.job && job.uid.is_none_or(|uid| uid == other.uid);
        let is_gone = match services.questions.jobs().await {
            Ok(jobs) => !jobs.iter().any(|other| is_it(other) && !other.ranks.is_empty()),
            // pfod is away, and says nothing of jobs.
            Err(_) => false,
        };
        let since = match gone_since {
            _ if !is_gone => None,
            since => Some(since.unwrap_or_else(Instant::now)),
        };
        if since.is_some_and(|since: Instant| since.elapsed() >= GRACE) {
            let message = format!("job {} has ended: it has no rank on this node", job.job);
            let remedy = "what was measured of its profile is kept for its next run";
            return Refusal::new(RefusalCode::UnknownJob, message, remedy);
        }
        gone_since = since;
    }
}

/// What a status calls a phase.
pub(super) fn state_of(phase: Phase) -> TuneState {
    match phase {
        Phase::Profile => TuneState::Profile,
        Phase::Calibration => TuneState::Calibration,
        Phase::DefaultClocks => TuneState::DefaultClocks,
        Phase::Planning => TuneState::Planning,
        Phase::Search => TuneState::Search,
        Phase::Proof => TuneState::Proof,
    }
}
