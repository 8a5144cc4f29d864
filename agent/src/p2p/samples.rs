//! What the trials of a job have shown of its waits.

use std::collections::BTreeMap;

use pfo_protocol::{GpuUuid, Mhz, P2pPower, P2pSource, RecordedTrial, TrialRank, Uid};

use crate::p2p::store::is_plausible;

/// One power and how far to trust it.
#[derive(Clone, Copy, Debug)]
struct Sample {
    power_w: f64,
    error_w: f64,
    count: u64,
}

/// What is the same for all samples that belong together: the GPU, the clock, and where they come
/// from.
type Key = (GpuUuid, Option<Mhz>, P2pSource);

/// The samples of every GPU at every clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(BTreeMap<Key, GpuSamples>);

/// Samples, and the model of their GPU.
#[derive(Clone, Debug, Default)]
struct GpuSamples {
    model: String,
    samples: Vec<Sample>,
}

impl Samples {
    /// Adds a trial. `clock` is the one that it ran at throughout; none at default clocks or those
    /// of a plan.
    pub(crate) fn add(&mut self, clock: Option<Mhz>, trial: &RecordedTrial) {
        for (rank, recorded) in trial.trial.ranks.iter().zip(&trial.ranks) {
            if recorded.rows.is_empty() {
                self.add_whole_steps(clock, rank);
            }
            for wait in recorded.waits.iter().filter(|wait| wait.is_known()) {
                let (power_w, error_w, count) = (wait.power_w, wait.power_error_w, wait.count);
                self.put(wait.mhz, P2pSource::Waits, rank, Sample { power_w, error_w, count });
            }
        }
    }

    /// A rank that ran no instruction did nothing but wait.
    fn add_whole_steps(&mut self, clock: Option<Mhz>, rank: &TrialRank) {
        let power_w = rank.energy_j.map(|energy_j| energy_j / rank.time_s);
        if let Some(power_w) = power_w
            && rank.mismatched_steps == 0
        {
            let sample = Sample { power_w, error_w: 0.0, count: 1 };
            self.put(clock, P2pSource::Receive, rank, sample);
        }
    }

    /// Adds a sample, unless no GPU draws that: the times are those of a rank, and may be anything.
    fn put(&mut self, clock: Option<Mhz>, source: P2pSource, rank: &TrialRank, sample: Sample) {
        if !is_plausible(sample.power_w) {
            return;
        }
        let key = (rank.gpu_uuid.clone(), clock, source);
        let samples = self.0.entry(key).or_default();
        samples.model.clone_from(&rank.gpu_model);
        samples.samples.push(sample);
    }

    /// The power of every GPU at every clock.
    pub(crate) fn powers(&self, by_uid: Uid, now_unix_s: u64) -> Vec<P2pPower> {
        let power = |((gpu, mhz, source), GpuSamples { model, samples }): (&Key, &GpuSamples)| {
            let Sample { power_w, error_w, count } = mean(samples)?;
            Some(P2pPower {
                model: model.clone(),
                gpu_uuid: Some(gpu.clone()),
                mhz: *mhz,
                power_w,
                error_w,
                count,
                source: *source,
                by_uid,
                since_unix_s: now_unix_s,
            })
        };
        self.0.iter().filter_map(power).collect()
    }
}

/// The mean by counts. Its error is that of the scatter of several samples, or of the only one
/// itself.
fn mean(samples: &[Sample]) -> Option<Sample> {
    let weight = |sample: &Sample| sample.count as f64;
    let all: f64 = samples.iter().map(weight).sum();
    if all <= 0.0 {
        return None;
    }
    let power_w = samples.iter().map(|s| weight(s) * s.power_w).sum::<f64>() / all;
    let squares: f64 = samples.iter().map(|s| weight(s) * (s.power_w - power_w).powi(2)).sum();
    let others = samples.len().saturating_sub(1);
    let error_w = match samples {
        [only] => only.error_w,
        _ => (squares / all / others as f64).sqrt(),
    };
    Some(Sample { power_w, error_w, count: samples.iter().map(|sample| sample.count).sum() })
}

#[cfg(test)]
pub(crate) mod tests {
    use pfo_protocol::{DpRank, Rank, RecordedRank, Stage, TpRank, TrialResult, WaitPower};

    use super::*;

    /// A trial of one rank that used so much in steps of 2 s.
    pub(crate) fn trial(energy_j: f64, waits: Vec<WaitPower>) -> RecordedTrial {
        let rank = TrialRank {
            rank: Rank(0),
            stage: Stage(0),
            dp_rank: DpRank(0),
            tp_rank: TpRank(0),
            gpu_uuid: "GPU-a".parse().unwrap(),
            gpu_model: "A40".into(),
            time_s: 2.0,
            energy_j: Some(energy_j),
            mismatched_steps: 0,
        };
        let recorded =
            RecordedRank { rank: Rank(0), readings: 0, stray_readings: 0, rows: Vec::new(), waits };
        let trial = TrialResult { plan: None, first_step: 0, steps: Vec::new(), ranks: vec![rank] };
        RecordedTrial { trial, ranks: vec![recorded] }
    }

    #[test]
    fn whole_steps_without_instructions_are_waits_and_scatter() {
        let mut samples = Samples::default();
        for energy_j in [160.0, 162.0, 164.0] {
            samples.add(Some(Mhz(1410)), &trial(energy_j, Vec::new()));
        }
        samples.add(Some(Mhz(900)), &trial(100.0, Vec::new()));
        let powers = samples.powers(Uid(7), 99);
        let short: Vec<_> = powers.iter().map(|p| (p.mhz, p.power_w, p.count, p.source)).collect();
        let receive = P2pSource::Receive;
        assert_eq!(
            short,
            [(Some(Mhz(900)), 50.0, 1, receive), (Some(Mhz(1410)), 81.0, 3, receive)]
        );
        // A standard deviation of 1 W, over the root of 3.
        assert!((powers[1].error_w - 1.0 / 3f64.sqrt()).abs() < 1e-9, "{powers:?}");
        assert_eq!((powers[0].by_uid, powers[0].since_unix_s), (Uid(7), 99));
    }

    #[test]
    fn waits_of_a_job_count_by_their_number_and_only_if_they_say_something() {
        let wait = |count, power_w, power_error_w| WaitPower {
            mhz: None,
            count,
            time_s: 1.0,
            power_w,
            power_error_w,
        };
        let mut samples = Samples::default();
        samples.add(None, &trial(0.0, vec![wait(30, 80.0, 1.0), wait(5, 300.0, 90.0)]));
        samples.add(None, &trial(0.0, vec![wait(10, 84.0, 1.0)]));
        let powers = samples.powers(Uid(7), 99);
        assert_eq!((powers.len(), powers[0].power_w, powers[0].count), (1, 81.0, 40));
        assert_eq!(powers[0].source, P2pSource::Waits);
    }

    #[test]
    fn a_power_that_no_gpu_draws_is_left_out_lest_the_next_agent_reject_all() {
        let wait =
            |power_w| WaitPower { mhz: None, count: 1, time_s: 1.0, power_w, power_error_w: 0.0 };
        let mut samples = Samples::default();
        for impossible in [f64::INFINITY, f64::NAN, 1e300, 1e6] {
            samples.add(None, &trial(0.0, vec![wait(impossible)]));
            samples.add(None, &trial(impossible, Vec::new()));
        }
        assert!(samples.powers(Uid(7), 99).is_empty());
        samples.add(None, &trial(0.0, vec![wait(80.0)]));
        assert_eq!(samples.powers(Uid(7), 99)[0].power_w, 80.0);
    }

    #[test]
    fn a_trial_without_an_energy_counter_shows_nothing() {
        let mut samples = Samples::default();
        let mut blind = trial(0.0, Vec::new());
        blind.trial.ranks[0].energy_j = None;
        samples.add(None, &blind);
        assert!(samples.powers(Uid(7), 99).is_empty());
    }
}
