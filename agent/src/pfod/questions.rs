//! What the agent asks in its own name: it reads everything, of every user, and changes nothing but how much
//! power GPUs may draw for a budget.

use pfo_protocol::{ClockTable, GpuListing, JobSelector, JobView, Request, Response, Status};
use tokio::sync::Mutex;

use crate::job::JobKey;
use crate::pfod::connection::{Connection, Pfod, unexpected};
use crate::pfod::error::PfodError;

/// Asks over one connection, which is opened again when it has ended.
#[derive(Debug)]
pub(crate) struct Questions {
    pfod: Pfod,
    open: Mutex<Option<Connection>>,
}

impl Questions {
    pub(crate) fn to(pfod: Pfod) -> Self {
        Self { pfod, open: Mutex::new(None) }
    }

    /// Every job of the node.
    ///
    /// # Errors
    /// If `pfod` does not answer.
    pub(crate) async fn jobs(&self) -> Result<Vec<JobView>, PfodError> {
        match self.ask(Request::Jobs).await? {
            Response::Jobs(jobs) => Ok(jobs),
            other => Err(unexpected(&other)),
        }
    }

    /// One job; none if the node has none of that key.
    ///
    /// # Errors
    /// If `pfod` does not answer.
    pub(crate) async fn job(&self, key: &JobKey) -> Result<Option<JobView>, PfodError> {
        Ok(self.jobs().await?.into_iter().find(|job| JobKey::of(job) == *key))
    }

    /// The clock table that a job runs; none at default clocks and for plans without one.
    ///
    /// # Errors
    /// If there is no such job, or `pfod` does not answer.
    pub(crate) async fn plan(&self, job: JobSelector) -> Result<Option<ClockTable>, PfodError> {
        match self.ask(Request::PlanRead(job)).await? {
            Response::Plan(table) => Ok(table),
            other => Err(unexpected(&other)),
        }
    }

    /// The GPUs of the node.
    ///
    /// # Errors
    /// If `pfod` does not answer.
    pub(crate) async fn gpus(&self) -> Result<Vec<GpuListing>, PfodError> {
        match self.ask(Request::Gpus).await? {
            Response::Gpus(gpus) => Ok(gpus),
            other => Err(unexpected(&other)),
        }
    }

    /// Everything about the daemon, its GPUs and jobs.
    ///
    /// # Errors
    /// If `pfod` does not answer.
    pub(crate) async fn status(&self) -> Result<Status, PfodError> {
        match self.ask(Request::Status).await? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// The version of the node's driver.
    ///
    /// # Errors
    /// If `pfod` does not answer.
    pub(crate) async fn driver(&self) -> Result<Option<String>, PfodError> {
        Ok(self.status().await?.daemon.driver)
    }

    /// Asks anything that is answered at once.
    ///
    /// # Errors
    /// If `pfod` refuses or does not answer.
    pub(crate) async fn ask(&self, request: Request) -> Result<Response, PfodError> {
        let mut open = self.open.lock().await;
        if let Some(mut connection) = open.take() {
            match connection.ask(request.clone()).await {
                // `pfod` has ended a connection that was silent, or was restarted.
                Err(PfodError::Away(_)) => {}
                answered => {
                    *open = Some(connection);
                    return answered;
                }
            }
        }
        let mut connection = self.pfod.connect().await?;
        let answered = connection.ask(request).await;
        if !matches!(answered, Err(PfodError::Away(_))) {
            *open = Some(connection);
        }
        answered
    }
}
