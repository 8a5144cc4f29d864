//! A target on the command line of the process that attacks it.

use std::error::Error;

use pfo_protocol::{JobSelector, Uid};

use super::{Target, WAYS, Way};

impl Target {
    /// What [`parse`](Self::parse) makes the same target of.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        let gpus: Vec<_> = self.gpus.iter().map(ToString::to_string).collect();
        let JobSelector { job, uid } = &self.victim;
        vec![
            path(&self.socket),
            self.agent.as_deref().map_or_else(String::new, path),
            path(&self.devices),
            gpus.join(","),
            job.to_string(),
            uid.map_or(0, |uid| uid.0).to_string(),
        ]
    }

    /// Reads the arguments of a process that attacks, and the ways that follow, or all.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(arguments: &[String]) -> Result<(Self, Vec<Way>), Box<dyn Error + Send + Sync>> {
        let [socket, agent, devices, gpus, job, uid, ways @ ..] = arguments else {
            return Err("give SOCKET AGENT DEVICES GPUS JOB UID [WAY]…".into());
        };
        let gpus: Result<_, _> = gpus.split(',').map(str::parse).collect();
        let target = Self {
            socket: socket.into(),
            agent: (!agent.is_empty()).then(|| agent.into()),
            devices: devices.into(),
            gpus: gpus?,
            victim: JobSelector { job: job.parse()?, uid: Some(Uid(uid.parse()?)) },
        };
        let is_named = |way: &&Way| ways.is_empty() || ways.iter().any(|name| name == way.name);
        Ok((target, WAYS.iter().filter(is_named).copied().collect()))
    }
}
