//! The P2P-blocking power: from the waits of a trial or, where these are too short to be measured, from
//! what its steps draw beside their instructions.

use pfo_planner::{PerStage, Pipeline, PlanError, Policy, Prediction, Stage, Watts};
use pfo_protocol::{RecordedTrial, TrialRank};

/// A rank of each stage; of the first rank's stage where none of these ranks runs the stage.
pub(crate) fn of_stages(ranks: &[TrialRank], num_stages: u16) -> Vec<&TrialRank> {
    let of = |stage| ranks.iter().find(|rank| rank.stage == stage).or(ranks.first());
    (0..num_stages).filter_map(|stage| of(Stage(stage))).collect()
}

/// The mean power of the waits of each stage's GPU model, each second of waiting counting the same,
/// or of all models where that one's GPUs did not wait; none if no rank waited long enough to be
/// measured.
pub(crate) fn of_waits(
    recorded: &RecordedTrial,
    of_stages: &[&TrialRank],
) -> Option<PerStage<Watts>> {
    let all = mean(recorded, None)?;
    let of_model = |rank: &&TrialRank| mean(recorded, Some(&rank.gpu_model)).unwrap_or(all);
    let each = PerStage::new(of_stages.iter().map(of_model).collect());
    Some(each.unwrap_or_else(|_| all.into()))
}

/// The mean power of the waits of all ranks, or of those on a GPU model.
fn mean(recorded: &RecordedTrial, model: Option<&str>) -> Option<Watts> {
    let is_of = |rank: &TrialRank| model.is_none_or(|model| rank.gpu_model == model);
    let trial = &recorded.trial.ranks;
    let is_meant = |rank| model.is_none() || trial.iter().any(|of| of.rank == rank && is_of(of));
    let ranks = || recorded.ranks.iter().filter(|recorded| is_meant(recorded.rank));
    let waits = || ranks().flat_map(|rank| &rank.waits).filter(|wait| wait.is_known());
    let waited_s: f64 = waits().map(|wait| wait.time_s).sum();
    let waited_j: f64 = waits().map(|wait| wait.power_w * wait.time_s).sum();
    (waited_s > 0.0).then(|| Watts(waited_j / waited_s))
}

/// The power at which steps at default clocks draw what one pipeline was measured to draw. None if that
/// is not between nothing and what its instructions draw: then the profile is of other work.
pub(crate) fn of_steps(
    pipeline: &Pipeline,
    time_s: f64,
    energy_j: f64,
) -> Result<Option<Watts>, PlanError> {
    let predicted = |watts| -> Result<Option<Prediction>, PlanError> {
        let outcome = Policy::AllMax.outcome(pipeline, Watts(watts), &|_| {})?;
        Ok(outcome.plans.first().and_then(|plan| plan.predicted))
    };
    let Some((one, two)) = predicted(1.0)?.zip(predicted(2.0)?) else { return Ok(None) };
    // A watt more of waiting is a joule for each second of it.
    let waited_s = two.iteration_energy_j - one.iteration_energy_j;
    let working_j = one.iteration_energy_j - waited_s;
    let stages = f64::from(pipeline.profile().num_stages());
    let working_s = stages * one.iteration_time_s - waited_s;
    let power_w = (energy_j - working_j) / (stages * time_s - working_s);
    Ok((0.0..working_j / working_s).contains(&power_w).then_some(Watts(power_w)))
}

#[cfg(test)]
mod tests {
    use pfo_planner::{Profile, Schedule};
    use pfo_protocol::{DpRank, Rank, RecordedRank, TpRank, TrialResult, WaitPower};

    use super::*;

    fn trial(waits: &[(f64, f64, f64)]) -> RecordedTrial {
        let rank =
            |(rank, &(time_s, power_w, power_error_w)): (u32, &(f64, f64, f64))| RecordedRank {
                rank: Rank(rank),
                readings: 0,
                stray_readings: 0,
                rows: Vec::new(),
                waits: vec![WaitPower { mhz: None, count: 9, time_s, power_w, power_error_w }],
            };
        let trial = TrialResult { plan: None, first_step: 0, steps: Vec::new(), ranks: Vec::new() };
        RecordedTrial { trial, ranks: (0..).zip(waits).map(rank).collect() }
    }

    fn of_all(recorded: &RecordedTrial) -> Option<Watts> {
        of_waits(recorded, &[])?.common().copied()
    }

    #[test]
    fn where_models_differ_each_stage_has_the_power_of_its_own() {
        let mut recorded = trial(&[(3.0, 80.0, 1.0), (1.0, 100.0, 1.0), (2.0, 60.0, 1.0)]);
        let rank = |(rank, model): (u32, &str)| TrialRank {
            rank: Rank(rank),
            stage: Stage(rank as u16),
            dp_rank: DpRank(0),
            tp_rank: TpRank(0),
            gpu_uuid: "GPU-a".parse().unwrap(),
            gpu_model: model.to_owned(),
            time_s: 1.0,
            energy_j: None,
            mismatched_steps: 0,
        };
        recorded.trial.ranks = (0..).zip(["A100", "A100", "A40", "H100"]).map(rank).collect();
        let ranks = recorded.trial.ranks.clone();
        let of_stages = of_stages(&ranks, 5);
        let power = of_waits(&recorded, &of_stages).unwrap();
        // The H100 did not wait, and nothing is known of the last stage.
        let expected = [85.0, 85.0, 60.0, 76.666_666, 85.0];
        for (stage, expected_w) in (0..).zip(expected) {
            assert!((power.of(Stage(stage)).0 - expected_w).abs() < 1e-3, "{power}");
        }
    }

    #[test]
    fn each_second_of_waiting_counts_the_same() {
        assert_eq!(of_all(&trial(&[(3.0, 80.0, 1.0), (1.0, 100.0, 1.0)])), Some(Watts(85.0)));
    }

    #[test]
    fn what_steps_draw_beside_their_instructions_is_the_power_of_their_waits() {
        let rows = "stage,instruction,frequency,time,energy\n\
                    0,forward,900,1,300\n0,backward,900,2,600\n\
                    1,forward,900,1,300\n1,backward,900,2,600\n";
        let profile = Profile::from_csv(rows.as_bytes()).unwrap();
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 2).unwrap();
        // Both work for 6 s of a step of 9 s; what the job does beside that takes another second.
        let power = |energy_j| of_steps(&pipeline, 10.0, energy_j).unwrap();
        assert_eq!(power(3600.0 + 8.0 * 80.0), Some(Watts(80.0)));
        assert_eq!(power(3500.0), None);
        assert_eq!(power(3600.0 + 8.0 * 301.0), None);
    }

    #[test]
    fn waits_that_are_too_short_are_left_out() {
        assert_eq!(of_all(&trial(&[(3.0, 80.0, 1.0), (1e-3, 400.0, 90.0)])), Some(Watts(80.0)));
        assert_eq!(of_all(&trial(&[(1e-3, 400.0, 90.0)])), None);
    }
}
