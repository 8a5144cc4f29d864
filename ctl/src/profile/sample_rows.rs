//! Each instruction of a trial as the row of a CSV that can be read as a profile.

use std::collections::BTreeMap;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use pfo_protocol::{
    Chunk, Doubt, DpRank, InstructionSample, JobName, Mhz, Microbatch, Rank, RecordedRank,
    RecordedTrial, SamplePage, Stage, TpRank, TrialRank,
};
use serde::Serialize;

use crate::error::Error;

/// What the columns mean.
pub(super) const COLUMNS: &str = "\
Columns:
  stage,instruction,frequency,time,energy
                     as in any profile (requested MHz, s, J); no frequency at default clocks. The
                     driver refreshes the counter too seldom for the energy of one instruction.
                     So energy is the time of the instruction times the power that best explains the
                     counter's readings over all instructions of the same rank, kind, chunk and clock
  job,rank,dp_rank,tp_rank,chunk,step,microbatch
                     which instruction it is
  begin_ns,end_ns    when it ran (CLOCK_MONOTONIC, ns)
  observed_mhz,observed_ns
                     the last SM clock that the driver reported while the instruction ran, or else
                     the first one afterwards, and when
  throttle_reasons   why the driver kept the clock down between the last reading before the
                     instruction and the first one after it, by NVML's names, joined with +
  throttled          share of the time (0 to 1) for which a power limit kept the clock down, over all
                     instructions of the same rank, kind, chunk and clock
  counter_energy     by how much the counter itself rose (J), assumed to rise evenly between two
                     refreshes
  counter_refreshes  refreshes within the instruction. The fewer there are, the more of counter_energy
                     is from before and after: on simulated GPUs, the error was up to 4 % with three
                     and up to 1 % with twenty
  left_out           why a profile leaves this row out: mismatched (not the plan's, or events were
                     lost), settling (began before its clock had settled), throttled (by heat, the
                     hardware or a power brake), other_clock (neither the requested clock nor next to
                     it, without a reason), no_energy (its power is not known); else empty. Rows
                     under a power limit stay in the profile";

/// One instruction, by its columns.
#[derive(Debug, Serialize)]
pub(super) struct SampleRow<'a> {
    stage: Stage,
    instruction: &'static str,
    frequency: Option<Mhz>,
    time: f64,
    energy: Option<f64>,
    job: &'a str,
    rank: Rank,
    dp_rank: DpRank,
    tp_rank: TpRank,
    chunk: Chunk,
    step: u64,
    microbatch: Microbatch,
    begin_ns: u64,
    end_ns: u64,
    observed_mhz: Option<Mhz>,
    observed_ns: Option<u64>,
    throttle_reasons: String,
    throttled: Option<f64>,
    counter_energy: Option<f64>,
    counter_refreshes: u32,
    left_out: Option<&'static str>,
}

/// The rows of one trial.
pub(super) fn rows<'a>(
    job: &'a JobName,
    recorded: &'a RecordedTrial,
    pages: &'a [SamplePage],
) -> impl Iterator<Item = SampleRow<'a>> {
    let ranks = recorded.trial.ranks.iter().zip(&recorded.ranks);
    ranks.flat_map(move |(rank, instructions)| {
        let of_rank = pages.iter().filter(|page| page.rank == rank.rank);
        let samples = of_rank.flat_map(|page| &page.samples);
        samples.map(move |sample| row(job, rank, instructions, sample))
    })
}

fn row<'a>(
    job: &'a JobName,
    rank: &TrialRank,
    instructions: &RecordedRank,
    sample: &InstructionSample,
) -> SampleRow<'a> {
    let InstructionSample { unit, began_ns, ended_ns, mhz, .. } = *sample;
    let time = ended_ns.saturating_sub(began_ns) as f64 / 1e9;
    let alike = instructions
        .rows
        .iter()
        .find(|row| (row.instruction, row.chunk, row.mhz) == (unit.instruction, unit.chunk, mhz));
    let power_w = alike.and_then(|row| Some(row.energy_mean_j? / row.time_mean_s));
    let energy = power_w
        .map(|power_w| power_w * time)
        .filter(|energy_j| sample.left_out.is_none() && energy_j.is_finite() && *energy_j > 0.0);
    SampleRow {
        stage: rank.stage,
        instruction: unit.instruction.name(),
        frequency: mhz,
        time,
        energy,
        job: job.as_str(),
        rank: rank.rank,
        dp_rank: rank.dp_rank,
        tp_rank: rank.tp_rank,
        chunk: unit.chunk,
        step: sample.step,
        microbatch: unit.microbatch,
        begin_ns: began_ns,
        end_ns: ended_ns,
        observed_mhz: sample.observed.map(|(mhz, _)| mhz),
        observed_ns: sample.observed.map(|(_, at_ns)| at_ns),
        throttle_reasons: named(sample.throttle_reasons),
        throttled: alike.and_then(|row| row.throttled),
        counter_energy: sample.counter_j,
        counter_refreshes: sample.counter_refreshes,
        left_out: match sample.left_out {
            Some(Doubt::Mismatched) => Some("mismatched"),
            Some(Doubt::Settling) => Some("settling"),
            Some(Doubt::Throttled) => Some("throttled"),
            Some(Doubt::OtherClock) => Some("other_clock"),
            None if energy.is_none() => Some("no_energy"),
            None => None,
        },
    }
}

/// NVML's names of throttle reasons.
pub(crate) fn named(reasons: u64) -> String {
    let reasons = ThrottleReasons::from_bits_retain(reasons);
    let names = reasons.iter_names().map(|(name, _)| name.to_lowercase());
    names.collect::<Vec<_>>().join("+")
}

/// The rows with their header.
pub(super) fn csv(rows: &[SampleRow]) -> Result<String, Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.iter().try_for_each(|row| writer.serialize(row)).map_err(std::io::Error::from)?;
    let bytes = writer.into_inner().map_err(csv::IntoInnerError::into_error)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The number of rows, and how many are left out for each reason.
pub(super) fn summary(rows: &[SampleRow]) -> String {
    let mut reasons = BTreeMap::<_, usize>::new();
    for why in rows.iter().filter_map(|row| row.left_out) {
        *reasons.entry(why).or_default() += 1;
    }
    let left_out: Vec<_> = reasons.iter().map(|(why, count)| format!("{count} {why}")).collect();
    let left_out = match &left_out[..] {
        [] => String::new(),
        left_out => format!("; left out: {}", left_out.join(", ")),
    };
    format!("{} instructions measured{left_out}\n", rows.len())
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Instruction, LeftOut, TrialResult, TrialRow, Unit};

    use super::*;

    /// A rank that took 100 W for forwards at 900 MHz, and an unknown power for loads.
    fn rank() -> (TrialRank, RecordedRank) {
        let row = |instruction, energy_mean_j| TrialRow {
            instruction,
            chunk: Chunk(0),
            mhz: Some(Mhz(900)),
            observed_mhz: None,
            count: 2,
            time_mean_s: 0.2,
            time_sd_s: 0.0,
            time_median_s: 0.2,
            energy_mean_j,
            energy_median_j: None,
            energy_sd_j: None,
            throttled: Some(0.25),
            left_out: LeftOut::default(),
        };
        let window = TrialRank {
            rank: Rank(3),
            stage: Stage(1),
            dp_rank: DpRank(1),
            tp_rank: TpRank(0),
            gpu_uuid: "GPU-1".parse().unwrap(),
            gpu_model: "A100".to_owned(),
            time_s: 1.0,
            energy_j: None,
            mismatched_steps: 0,
        };
        let recorded = RecordedRank {
            rank: Rank(3),
            readings: 100,
            stray_readings: 0,
            rows: vec![row(Instruction::Forward, Some(20.0)), row(Instruction::Load, None)],
            waits: Vec::new(),
        };
        (window, recorded)
    }

    fn sample(instruction: Instruction, left_out: Option<Doubt>) -> InstructionSample {
        InstructionSample {
            step: 7,
            unit: Unit::new(instruction, 2),
            began_ns: 1_000_000_000,
            ended_ns: 1_300_000_000,
            mhz: Some(Mhz(900)),
            observed: None,
            throttle_reasons: 0,
            counter_j: None,
            counter_refreshes: 0,
            left_out,
        }
    }

    fn written(samples: Vec<InstructionSample>) -> String {
        let pages = [SamplePage { rank: Rank(3), samples, dropped: 0 }];
        let (window, recorded) = rank();
        let trial =
            TrialResult { plan: None, first_step: 7, steps: Vec::new(), ranks: vec![window] };
        let recorded = RecordedTrial { trial, ranks: vec![recorded] };
        csv(&rows(&"j".parse().unwrap(), &recorded, &pages).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn every_column_is_explained_and_in_its_place() {
        let throttled = InstructionSample {
            observed: Some((Mhz(885), 1_200_000_000)),
            throttle_reasons: (ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_SLOWDOWN).bits(),
            counter_j: Some(31.5),
            counter_refreshes: 14,
            ..sample(Instruction::Forward, Some(Doubt::Throttled))
        };
        let csv = written(vec![sample(Instruction::Forward, None), throttled]);
        let lines: Vec<_> = csv.lines().collect();
        for column in lines[0].split(',') {
            assert!(COLUMNS.contains(column), "{column}");
        }
        let own = "j,3,1,0,0,7,2,1000000000,1300000000";
        assert_eq!(lines[1], format!("1,forward,900,0.3,30.0,{own},,,,0.25,,0,"));
        let slowed = "885,1200000000,sw_power_cap+hw_slowdown,0.25,31.5,14,throttled";
        assert_eq!(lines[2], format!("1,forward,900,0.3,,{own},{slowed}"));
    }

    #[test]
    fn an_instruction_of_unknown_energy_is_left_out_of_the_profile_that_the_planner_reads() {
        let csv =
            written(vec![sample(Instruction::Load, None), sample(Instruction::Forward, None)]);
        assert!(csv.contains(",no_energy\n"), "{csv}");
        let all = csv.replace("\n1,", "\n0,");
        let profile = pfo_planner::Profile::from_csv(all.as_bytes()).unwrap();
        assert_eq!(profile.rows().count(), 1);
    }

    #[test]
    fn a_summary_counts_what_is_left_out_by_reason() {
        let (window, recorded) = rank();
        let job = "j".parse().unwrap();
        let row = |left_out| row(&job, &window, &recorded, &sample(Instruction::Forward, left_out));
        let settling = || row(Some(Doubt::Settling));
        let text = summary(&[row(None), settling(), settling(), row(Some(Doubt::Mismatched))]);
        assert_eq!(text, "4 instructions measured; left out: 1 mismatched, 2 settling\n");
    }
}
