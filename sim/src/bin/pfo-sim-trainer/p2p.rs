//! Two GPUs that only wait for each other, in steps without an instruction, until standard input
//! ends.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nvidia_ml::attachment::Attachment;
use nvidia_ml::driver::Driver;
use nvidia_ml::error::SimError;
use nvidia_ml::gpu_state::Activity;
use pfo::{DescriptionError, Rank, RankDescription, Session, Stage};

use crate::args::P2pArgs;
use crate::error::TrainerError;
use crate::rank::devices_of;

/// Long beside the energy counter's refresh.
const STEP: Duration = Duration::from_millis(200);

/// Waits; false if it was not given two leases.
pub(crate) fn wait(args: &P2pArgs) -> Result<bool, TrainerError> {
    if args.gpus.len() != 2 {
        return Err(TrainerError::GpuCount { named: args.gpus.len(), ranks: 2 });
    }
    let driver = Arc::new(Driver::open(&args.state)?);
    let mut attachments = Vec::new();
    for uuid in &args.gpus {
        let is_meant =
            |index: &usize| driver.gpu(*index).is_ok_and(|gpu| gpu.uuid().to_string() == *uuid);
        let index = (0..driver.gpus().len()).find(is_meant);
        let index = index.ok_or_else(|| TrainerError::NoGpu(uuid.clone()))?;
        attachments.push(Attachment::new(Arc::clone(&driver), index)?);
    }
    let sessions = (0..).map(Stage).zip(&args.gpus).map(|(stage, uuid)| session(args, stage, uuid));
    let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
    if let Some(problem) = sessions.iter().find_map(Session::problem) {
        eprintln!("pfo-sim-trainer: no lease: {problem}");
        return Ok(false);
    }
    let blocked = |attachment: &Attachment| -> Result<_, SimError> {
        attachment.set_activity(Activity::Blocked)
    };
    attachments.iter().try_for_each(|attachment| blocked(attachment).map(drop))?;
    let over = until_standard_input_ends();
    while !over.load(Ordering::Relaxed) {
        sessions.iter().for_each(Session::step_begin);
        thread::sleep(STEP);
        sessions.iter().for_each(Session::step_end);
    }
    Ok(true)
}

fn session(args: &P2pArgs, stage: Stage, uuid: &str) -> Result<Session, TrainerError> {
    let gpu = uuid.parse();
    let gpu = gpu.map_err(|error| DescriptionError::Gpu { source_of_name: "gpu", error })?;
    Ok(Session::open(RankDescription {
        job: Some(args.job.clone()),
        gpu: Some(gpu),
        devices: devices_of(&args.state),
        rank: Rank(stage.into()),
        pp_rank: stage,
        pp_degree: 2,
        ..RankDescription::default()
    })?)
}

fn until_standard_input_ends() -> Arc<AtomicBool> {
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    thread::spawn(move || {
        let mut input = io::stdin().lock();
        while matches!(input.read(&mut [0; 64]), Ok(1..)) {}
        told.store(true, Ordering::Relaxed);
    });
    over
}
