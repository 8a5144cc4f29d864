//! One condition: a node, a training, `pfoctl tune`, and what became of the job.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use pfo_tests::{Identity, MachineSetup, Node, Ran, STAGES, Setup, Training};
use serde_json::Value;

use super::condition::Condition;
use super::neighbour::Neighbour;
use super::optimum::{BestSavings, Tables};
use super::truth::{Rate, Spent, Truth, Turns};
use super::{JOB, MAX_SLOWDOWN, MICROBATCHES};
use crate::Result;
use crate::extent::Extent;
use crate::report::Cell;

/// What a driver is set to wait for a clock, unless somebody knows better: as in the shipped file.
const SETTLE_MS: u64 = 15;
/// As in the shipped file.
pub(super) const CHANGES_PER_SECOND: u32 = 50;

/// No tuning takes longer.
const PATIENCE: Duration = Duration::from_secs(900);

/// How long to look at what others do with the driver.
const BESIDE: Duration = Duration::from_secs(2);

/// What became of a job.
pub(super) struct Row {
    tuned: Tuned,
    best: Option<BestSavings>,
    kept: Option<(Truth, Turns)>,
    /// What others do with the driver.
    beside: Rate,
    took: Duration,
    /// What was tried, and why nothing was kept.
    pub(super) remark: String,
}

/// What tune says.
struct Tuned {
    exit: i32,
    saving: f64,
    slowdown: f64,
}

impl Row {
    pub(super) fn measure(condition: &Condition, extent: Extent) -> Result<Self> {
        let began = Instant::now();
        let tables = Tables::of(condition)?;
        let best = condition.has_optimum.then(|| tables.best_savings(MAX_SLOWDOWN)).transpose()?;
        let Condition { gpus, made, limit_w, .. } = *condition;
        let machine = MachineSetup { gpus, made, settle_ms: SETTLE_MS, ..MachineSetup::default() };
        let changes_per_second = CHANGES_PER_SECOND;
        let node = Node::start_with(&Setup { machine, changes_per_second, ..Setup::default() });
        if let Some(watts) = limit_w {
            (0..STAGES as usize).for_each(|gpu| node.machine.limit_power(gpu, watts));
        }
        let neighbour = condition.neighbour.then(|| Neighbour::start(&node.machine)).transpose()?;
        let before = Spent::until_now(&node);
        let beside = neighbour.as_ref().map(|_| {
            std::thread::sleep(BESIDE);
            Spent::until_now(&node).since(before)
        });
        let user = Identity::trainer();
        let (microbatches, scale) = (MICROBATCHES.to_string(), condition.time_scale.to_string());
        let options =
            ["--clocks", "--progress", "--time-scale", &scale, "--microbatches", &microbatches];
        let training = Training::start(&node, JOB, &user, &options);
        training.until_leased(&node);
        training.until_step(&node, 1);
        let plan = open_directory(&node)?.join("plan.json");
        let ran = tune(&node, &user, condition.stride_mhz, &plan.display().to_string(), extent)?;
        let steps = extent.of((2.0 / condition.time_scale) as u64, 4).clamp(4, 50);
        let turns = match plan.exists() {
            true => Some(Turns::take(&node, &training, steps)?),
            false => None,
        };
        let remark = Tuned::in_words(&ran, turns.is_none());
        let report = training.stop();
        let kept = turns.map(|turns| -> Result<_> {
            let plan: Value = serde_json::from_slice(&std::fs::read(&plan)?)?;
            Ok((turns.truth(&report, &plan, &tables)?, turns))
        });
        Ok(Self {
            tuned: Tuned::of(&ran),
            best,
            kept: kept.transpose()?,
            beside: beside.unwrap_or_default(),
            took: began.elapsed(),
            remark,
        })
    }

    pub(super) fn cells(&self, condition: &Condition) -> Vec<Cell> {
        let percent = |share: f64| Cell::Figure(100.0 * share, 2);
        let none = || Cell::text("-");
        let mut cells = vec![Cell::text(condition.what)];
        match &self.kept {
            Some((Truth { saving, slowdown, .. }, _)) => {
                let shares = [saving.share, saving.error, slowdown.share, slowdown.error];
                cells.extend(shares.map(percent));
            }
            None => cells.extend([0.0; 4].map(percent)),
        }
        let Tuned { exit, saving, slowdown } = self.tuned;
        cells.extend([Cell::text(exit.to_string()), percent(saving), percent(slowdown)]);
        let saved = self.kept.as_ref().map_or(0.0, |(truth, _)| truth.saving.share);
        cells.push(self.best.map_or_else(none, |best| percent(best.at_once)));
        cells.push(self.best.map_or_else(none, |best| percent(best.with_late_clocks)));
        cells.push(self.best.map_or_else(none, |best| percent(best.with_late_clocks - saved)));
        match &self.kept {
            Some((truth, turns)) => {
                let calls = [&turns.at_plan, &self.beside].map(Rate::calls_per_second);
                let [own, others] = [&turns.at_plan, &self.beside].map(Rate::driver_shares);
                cells.push(percent(truth.off_plan));
                cells.push(Cell::Figure(calls[0] - calls[1], 1));
                cells.extend(own.iter().zip(others).map(|(own, others)| percent(own - others)));
                cells.push(Cell::Figure(100.0 * turns.at_default_clocks.delayed_share(), 3));
                cells.push(Cell::Figure(100.0 * turns.at_plan.delayed_share(), 3));
            }
            None => cells.extend((0..6).map(|_| none())),
        }
        cells.push(Cell::Figure(self.took.as_secs_f64(), 0));
        cells
    }
}

impl Tuned {
    /// The plans that were tried and, if none was kept, what tune complained about.
    fn in_words(ran: &Ran, with_errors: bool) -> String {
        let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        let tried = report["tried"].as_array().map_or(&[][..], Vec::as_slice);
        let percent = |share: &Value| 100.0 * share["estimate"].as_f64().unwrap_or(f64::NAN);
        let plan = |tried: &Value| {
            let [name, verdict] = ["plan", "verdict"].map(|key| tried[key].as_str().unwrap_or("?"));
            let (saving, slower) = (percent(&tried["saving"]), percent(&tried["slowdown"]));
            let rounds = &tried["rounds"];
            format!("{name} {verdict}, saving {saving:.2} %, slower {slower:.2} %, {rounds} rounds")
        };
        let errors = ran.stderr.lines().rev().take(if with_errors { 2 } else { 0 });
        tried.iter().map(plan).chain(errors.map(str::to_owned)).collect::<Vec<_>>().join("; ")
    }

    fn of(ran: &Ran) -> Self {
        let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        let tried = report["tried"].as_array().map_or(&[][..], Vec::as_slice);
        let is_kept = |tried: &&Value| tried["verdict"] == "kept";
        let tried = tried.iter().find(is_kept).or(tried.last()).cloned().unwrap_or_default();
        let estimate = |what: &str| tried[what]["estimate"].as_f64().unwrap_or(f64::NAN);
        Self {
            exit: ran.code.unwrap_or(-1),
            saving: estimate("saving"),
            slowdown: estimate("slowdown"),
        }
    }
}

fn tune(node: &Node, user: &Identity, stride_mhz: u32, plan: &str, extent: Extent) -> Result<Ran> {
    let slowdown = format!("{}%", 100.0 * MAX_SLOWDOWN);
    let tune = ["tune", JOB, "--max-slowdown", &slowdown, "--json", "--no-guard", "-o", plan];
    let stride = format!("sweep_stride={}", extent.of(stride_mhz, 300));
    let sweep = ["--set", extent.of("sweep_steps=3", "sweep_steps=2"), "--set", &stride];
    let proof = ["--set", "rounds=2", "--steps", extent.of("5", "3")];
    let child = node.begin_pfoctl(user, &[&tune[..], &sweep, &proof].concat());
    wait(child)
}

/// Where the user can write.
fn open_directory(node: &Node) -> Result<PathBuf> {
    let directory = node.directory().join("tuned");
    std::fs::create_dir(&directory)?;
    std::fs::set_permissions(&directory, Permissions::from_mode(0o777))?;
    Ok(directory)
}

/// Waits for its end, and not for ever.
fn wait(mut child: Child) -> Result<Ran> {
    let began = Instant::now();
    while child.try_wait()?.is_none() {
        if began.elapsed() > PATIENCE {
            child.kill()?;
            let output = child.wait_with_output()?;
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("tune does not end: {errors}").into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(child.wait_with_output()?.into())
}
