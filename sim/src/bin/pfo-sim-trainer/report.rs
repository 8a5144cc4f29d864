//! What a training came to: by rank and by iteration, for people and for scripts.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use comfy_table::{Table, presets};
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::rank_report::{End, EventCounters, ProblemReport, Ran, RankEvent};
use crate::settings::RankSettings;

/// A step of a rank.
#[derive(Clone, Debug, Serialize)]
struct StepReport {
    step: u64,
    begin_ns: u64,
    end_ns: u64,
    time_s: f64,
    /// Of its GPU, from begin to end.
    energy_j: f64,
    /// Calls that locked its GPU's clock meanwhile.
    clock_changes: u64,
    /// Of each instruction, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    clocks: Vec<Ran>,
}

#[derive(Debug, Serialize)]
struct RankReport {
    rank: usize,
    gpu: usize,
    gpu_uuid: Option<String>,
    pid: Option<u32>,
    uid: Option<u32>,
    /// `completed`, `stopped`, `neighbour_gone`, `failed`, or `killed by` a signal.
    end: String,
    steps: Vec<StepReport>,
    /// Steps that were begun and not finished, unless the training was asked to stop.
    failed_steps: u64,
    /// Why the shim held no lease when training began.
    problem_at_setup: Option<ProblemReport>,
    /// Why it held none when training ended.
    problem: Option<ProblemReport>,
    events: EventCounters,
    #[serde(skip)]
    begun: Option<(u64, u64)>,
    #[serde(skip)]
    reported_end: Option<End>,
}

/// One step of the whole pipeline: the time of its first stage, which begins first and ends last,
/// and the energy of all.
#[derive(Debug, Serialize)]
struct Iteration {
    step: u64,
    time_s: f64,
    energy_j: f64,
}

/// A step that the first stage has just finished.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Progress {
    pub(crate) step: u64,
    pub(crate) time_s: f64,
}

/// The whole training.
#[derive(Debug, Serialize)]
pub(crate) struct TrainingReport {
    stages: usize,
    replicas: usize,
    microbatches: u32,
    with_pfo: bool,
    job: String,
    /// Whether it was asked to stop.
    stopped: bool,
    failed_steps: u64,
    dropped_events: u64,
    /// Means over all iterations but the first, which has to start from clocks of before.
    mean_iteration_time_s: Option<f64>,
    mean_iteration_energy_j: Option<f64>,
    iterations: Vec<Iteration>,
    ranks: Vec<RankReport>,
}

impl TrainingReport {
    pub(crate) fn new(settings: &[RankSettings]) -> Self {
        let rank = |settings: &RankSettings| RankReport {
            rank: settings.rank() as usize,
            gpu: settings.gpu,
            gpu_uuid: None,
            pid: None,
            uid: None,
            end: String::new(),
            steps: Vec::new(),
            failed_steps: 0,
            problem_at_setup: None,
            problem: None,
            events: EventCounters::default(),
            begun: None,
            reported_end: None,
        };
        let first = settings.first();
        Self {
            stages: first.map_or(0, |rank| rank.stages),
            replicas: first.map_or(0, |rank| rank.replicas),
            microbatches: first.map_or(0, |rank| rank.microbatches),
            with_pfo: first.is_some_and(|rank| rank.with_pfo),
            job: first.map_or_else(String::new, |rank| rank.job.clone()),
            stopped: false,
            failed_steps: 0,
            dropped_events: 0,
            mean_iteration_time_s: None,
            mean_iteration_energy_j: None,
            iterations: Vec::new(),
            ranks: settings.iter().map(rank).collect(),
        }
    }

    /// Takes in what a rank said.
    pub(crate) fn add(&mut self, rank: usize, event: RankEvent) -> Option<Progress> {
        let report = self.ranks.get_mut(rank)?;
        match event {
            RankEvent::Started { pid, uid, gpu_uuid, problem } => {
                report.pid = Some(pid);
                report.uid = Some(uid);
                report.gpu_uuid = Some(gpu_uuid);
                report.problem_at_setup = problem;
            }
            RankEvent::StepBegin { step, at_ns } => report.begun = Some((step, at_ns)),
            RankEvent::StepEnd { step, at_ns: end_ns, energy_j, clock_changes, clocks } => {
                let (_, begin_ns) = report.begun.take()?;
                let time_s = end_ns.saturating_sub(begin_ns) as f64 / 1e9;
                report.steps.push(StepReport {
                    step,
                    begin_ns,
                    end_ns,
                    time_s,
                    energy_j,
                    clock_changes,
                    clocks,
                });
                return (rank == 0).then_some(Progress { step, time_s });
            }
            RankEvent::Ended { end, problem, counters } => {
                report.reported_end = Some(end);
                report.problem = problem;
                report.events = counters;
            }
        }
        None
    }

    /// Takes in how a rank's process ended.
    pub(crate) fn end(&mut self, rank: usize, status: ExitStatus) {
        let Some(report) = self.ranks.get_mut(rank) else { return };
        report.end = match (report.reported_end, status.signal()) {
            (_, Some(signal)) => {
                let name = Signal::try_from(signal).map_or("an unknown signal", Signal::as_str);
                format!("killed by {name}")
            }
            (Some(End::Completed), None) => "completed".to_owned(),
            (Some(End::Stopped), None) => "stopped".to_owned(),
            (Some(End::NeighbourGone), None) => "neighbour_gone".to_owned(),
            (None, None) => "failed".to_owned(),
        };
        if report.begun.is_some() && report.reported_end != Some(End::Stopped) {
            report.failed_steps = 1;
        }
    }

    /// Sums up, when all is in.
    pub(crate) fn finish(&mut self, stopped: bool) {
        self.stopped = stopped;
        if stopped {
            // Ranks that saw their neighbour end before their own signal came were stopped as well.
            for rank in &mut self.ranks {
                if rank.reported_end == Some(End::NeighbourGone) {
                    rank.end = "stopped".to_owned();
                    rank.failed_steps = 0;
                }
            }
        }
        self.failed_steps = self.ranks.iter().map(|rank| rank.failed_steps).sum();
        self.dropped_events = self.ranks.iter().map(|rank| rank.events.dropped).sum();
        let complete = self.ranks.iter().map(|rank| rank.steps.len()).min().unwrap_or(0);
        self.iterations = (0..complete)
            .map(|i| Iteration {
                step: self.ranks[0].steps[i].step,
                time_s: self.ranks[0].steps[i].time_s,
                energy_j: self.ranks.iter().map(|rank| rank.steps[i].energy_j).sum(),
            })
            .collect();
        let mean = |value: fn(&Iteration) -> f64| {
            let from = usize::from(self.iterations.len() > 1);
            let values = self.iterations[from..].iter().map(value);
            let count = values.len();
            (count > 0).then(|| values.sum::<f64>() / count as f64)
        };
        let (time, energy) = (mean(|i| i.time_s), mean(|i| i.energy_j));
        self.mean_iteration_time_s = time;
        self.mean_iteration_energy_j = energy;
    }

    /// Whether every rank trained to its end, or until it was asked to stop.
    pub(crate) fn all_went_well(&self) -> bool {
        self.ranks.iter().all(|rank| matches!(rank.end.as_str(), "completed" | "stopped"))
    }

    pub(crate) fn to_json(&self) -> String {
        // Plain structs with string keys always serialise.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    pub(crate) fn to_text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["RANK", "GPU", "STEPS", "FAILED", "END", "SENT", "DROPPED", "PROBLEM"]);
        for rank in &self.ranks {
            let problem = rank.problem.as_ref().or(rank.problem_at_setup.as_ref());
            table.add_row([
                rank.rank.to_string(),
                rank.gpu.to_string(),
                rank.steps.len().to_string(),
                rank.failed_steps.to_string(),
                rank.end.clone(),
                rank.events.sent.to_string(),
                rank.events.dropped.to_string(),
                problem.map_or("-".to_owned(), |problem| problem.message.clone()),
            ]);
        }
        let mut text = table.trim_fmt();
        if let (Some(time), Some(energy)) =
            (self.mean_iteration_time_s, self.mean_iteration_energy_j)
        {
            let count = self.iterations.len();
            text.push_str(&format!("\n{count} iterations, mean {time:.4} s, {energy:.2} J"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(stage: usize) -> RankSettings {
        serde_json::from_value(serde_json::json!({
            "state": "/s", "stage": stage, "stages": 2, "replica": 0, "replicas": 1,
            "replica_fds": [], "gpu": stage, "gpu_name": "Uuid",
            "microbatches": 3, "steps": 2, "step_pause_ms": 0, "transfer_ms": 0.0,
            "time_scale": 1.0, "job": "j",
            "with_pfo": true, "clocks": false, "launcher": 1,
            "misbehaviour": {"die": [], "stop": [], "omit_end": [], "wrong_order": [], "flood": []},
            "tcp": [], "patience_s": 0,
        }))
        .unwrap()
    }

    fn step(
        report: &mut TrainingReport,
        rank: usize,
        step: u64,
        begin: u64,
        end: u64,
        energy: f64,
    ) {
        report.add(rank, RankEvent::StepBegin { step, at_ns: begin });
        let (energy_j, clock_changes, clocks) = (energy, 0, Vec::new());
        report.add(rank, RankEvent::StepEnd { step, at_ns: end, energy_j, clock_changes, clocks });
    }

    #[test]
    fn an_iteration_takes_the_first_stages_time_and_the_energy_of_all() {
        let mut report = TrainingReport::new(&[settings(0), settings(1)]);
        for (rank, offset) in [(0, 100), (1, 0)] {
            step(&mut report, rank, 0, offset, 2_000_000_000 + offset, 10.0);
            step(&mut report, rank, 1, 2_000_000_000 + offset, 3_000_000_000 + offset, 5.0);
            let end = End::Completed;
            report.add(
                rank,
                RankEvent::Ended { end, problem: None, counters: EventCounters::default() },
            );
            report.end(rank, ExitStatus::from_raw(0));
        }
        report.finish(false);
        assert!(report.all_went_well());
        assert_eq!(report.mean_iteration_time_s, Some(1.0));
        assert_eq!(report.mean_iteration_energy_j, Some(10.0));
        assert_eq!(report.iterations[0].time_s, 2.0);
    }

    #[test]
    fn a_killed_rank_fails_its_step_and_the_training_even_without_a_last_word() {
        let mut report = TrainingReport::new(&[settings(0), settings(1)]);
        step(&mut report, 1, 0, 0, 5, 1.0);
        report.add(1, RankEvent::StepBegin { step: 1, at_ns: 6 });
        report.end(1, ExitStatus::from_raw(9));
        report.finish(false);
        assert_eq!((report.ranks[1].end.as_str(), report.failed_steps), ("killed by SIGKILL", 1));
        assert!(!report.all_went_well());
    }
}
