//! A connection that holds a job and has nothing to ask for now. `pfod` ends what a silent agent holds,
//! so this one shows that the agent lives.

use std::time::Duration;

use pfo_protocol::Request;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::pfod::{Connection, PfodError};

/// A sign of life comes this often: `pfod` ends the hold after a minute (`agent_silence_s`).
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// A connection at rest. The connection ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Resting {
    wake: oneshot::Sender<()>,
    task: JoinHandle<Result<Connection, PfodError>>,
}

impl Resting {
    /// Lets a connection rest that awaits no answer.
    pub(crate) fn begin(mut connection: Connection) -> Self {
        let (wake, mut woken) = oneshot::channel();
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = &mut woken => return Ok(connection),
                    () = sleep(SIGN_OF_LIFE) => connection.show_life().await?,
                }
            }
        });
        Self { wake, task }
    }

    /// The connection, to ask for something.
    ///
    /// # Errors
    /// If it broke meanwhile.
    pub(crate) async fn end(self) -> Result<Connection, PfodError> {
        drop(self.wake);
        self.task.await.unwrap_or_else(|error| Err(PfodError::Away(error.to_string())))
    }
}

impl Connection {
    /// Asks for something small, so that what the connection holds does not end.
    ///
    /// # Errors
    /// If `pfod` does not answer.
    pub(crate) async fn show_life(&mut self) -> Result<(), PfodError> {
        self.ask(Request::Gpus).await.map(drop)
    }
}
