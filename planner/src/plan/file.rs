//! The JSON format in which plans are exchanged.
//!
//! A plan may come from an untrusted user, so reading is strict: unknown fields are refused, sizes
//! are bounded, every number is checked, and no input makes it panic.

use pfo_vocabulary::Watts;
use serde::{Deserialize, Serialize};

use crate::error::PlanError;
use crate::excerpt::{excerpt, shortened};
use crate::payload::PlannedPayload;
use crate::plan::{Plan, Prediction, StagePlan};
use crate::schedule::name::Schedule;
use crate::step::delays::{Delays, LatencyByClock};
use crate::step::dependencies::Dependency;
use crate::step::placement::Placement;
use crate::waits::PlannedWait;
use crate::waits::per_stage::PerStage;
use crate::waits::power::PowerByClock;

const FORMAT: &str = "pfo-plan/1";

/// The fields of a plan file, before their consistency is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    #[serde(default)]
    gpu: Option<String>,
    schedule: Schedule,
    num_stages: u16,
    num_microbatches: u32,
    #[serde(default)]
    p2p_blocking_power_w: Option<Watts>,
    #[serde(default)]
    p2p_blocking_power_by_stage_w: Option<Vec<Watts>>,
    #[serde(default)]
    p2p_blocking_power_by_mhz: Option<PowerByClock>,
    #[serde(default)]
    p2p_blocking_power_by_stage_by_mhz: Option<Vec<PowerByClock>>,
    #[serde(default)]
    transfer_time_s: f64,
    #[serde(default)]
    switch_latency_s: f64,
    #[serde(default)]
    switch_latency_by_mhz_s: LatencyByClock,
    #[serde(default)]
    set_call_s: f64,
    #[serde(default)]
    held_up_s: f64,
    #[serde(default)]
    predicted: Option<Prediction>,
    #[serde(default)]
    placement: Option<Placement>,
    #[serde(default)]
    dependencies: Vec<Dependency>,
    #[serde(default)]
    waits: Vec<PlannedWait>,
    #[serde(default)]
    payloads: Vec<PlannedPayload>,
    stages: Vec<StagePlan>,
}

/// The field that decides how the others are read.
#[derive(Deserialize)]
struct Header {
    format: String,
}

impl Plan {
    /// The largest plan file that is read, in bytes; enough for about a million instructions.
    pub const MAX_JSON_BYTES: usize = 64 << 20;

    /// Reads a plan from a `pfo-plan/1` document.
    ///
    /// # Errors
    /// The first problem and its place, if the document is too large, cannot be parsed, or is not
    /// consistent.
    pub fn from_json(bytes: &[u8]) -> Result<Self, PlanError> {
        if bytes.len() > Self::MAX_JSON_BYTES {
            return Err(PlanError::PlanTooLarge { size: bytes.len(), limit: Self::MAX_JSON_BYTES });
        }
        let document: Document = serde_json::from_slice(bytes).map_err(|error| {
            // The fields of another version fail first, but its version is the better message.
            match serde_json::from_slice::<Header>(bytes) {
                Ok(header) if header.format != FORMAT => foreign_format(&header.format),
                _ => PlanError::PlanSyntax(shortened(&error.to_string())),
            }
        })?;
        if document.format != FORMAT {
            return Err(foreign_format(&document.format));
        }
        let plan = Self {
            gpu: document.gpu,
            schedule: document.schedule,
            num_stages: document.num_stages,
            num_microbatches: document.num_microbatches,
            p2p_blocking_power_w: of_stages(
                document.p2p_blocking_power_by_stage_w,
                document.p2p_blocking_power_w,
            )?,
            p2p_blocking_power_by_mhz: of_stages(
                document.p2p_blocking_power_by_stage_by_mhz,
                document.p2p_blocking_power_by_mhz,
            )?,
            delays: Delays {
                transfer_time_s: document.transfer_time_s,
                switch_latency_s: document.switch_latency_s,
                latency_by_clock: document.switch_latency_by_mhz_s,
                set_call_s: document.set_call_s,
                held_up_s: document.held_up_s,
            },
            predicted: document.predicted,
            placement: document.placement.unwrap_or_else(|| document.schedule.placement()),
            dependencies: document.dependencies,
            waits: document.waits,
            payloads: document.payloads,
            stages: document.stages,
        };
        plan.check()?;
        Ok(plan)
    }

    /// The plan as a `pfo-plan/1` document, one instruction per line.
    ///
    /// # Errors
    /// If [`Plan::from_json`] would refuse the plan.
    pub fn to_json(&self) -> Result<String, PlanError> {
        self.check()?;
        let mut optional = String::new();
        let p2p_power = self.p2p_blocking_power_w.as_ref();
        if let Some(each) = p2p_power.and_then(PerStage::differing) {
            optional += &format!("\"p2p_blocking_power_by_stage_w\": {},\n  ", json(each)?);
        }
        let by_mhz = self.p2p_blocking_power_by_mhz.as_ref();
        if let Some(power) = by_mhz.and_then(PerStage::common) {
            optional += &format!("\"p2p_blocking_power_by_mhz\": {},\n  ", json(power)?);
        }
        if let Some(each) = by_mhz.and_then(PerStage::differing) {
            optional += &format!("\"p2p_blocking_power_by_stage_by_mhz\": {},\n  ", json(each)?);
        }
        for (name, seconds) in self.delays.named() {
            if seconds > 0.0 {
                optional += &format!("\"{name}\": {},\n  ", json(&seconds)?);
            }
        }
        if !self.delays.latency_by_clock.points().is_empty() {
            let latency = json(&self.delays.latency_by_clock)?;
            optional += &format!("\"switch_latency_by_mhz_s\": {latency},\n  ");
        }
        if self.placement != self.schedule.placement() {
            optional += &format!("\"placement\": {},\n  ", json(&self.placement)?);
        }
        let dependencies = list("dependencies", &self.dependencies)?;
        let waits = list("waits", &self.waits)?;
        let payloads = list("payloads", &self.payloads)?;
        let mut text = format!(
            "{{\n  \"format\": {},\n  \"gpu\": {},\n  \"schedule\": {},\n  \"num_stages\": {},\n  \
             \"num_microbatches\": {},\n  \"p2p_blocking_power_w\": {},\n  {optional}\"predicted\": {},\n  \
             {dependencies}{waits}{payloads}\"stages\": [",
            json(FORMAT)?,
            json(&self.gpu)?,
            json(&self.schedule)?,
            self.num_stages,
            self.num_microbatches,
            json(&p2p_power.map(PerStage::mean))?,
            json(&self.predicted)?,
        );
        for (index, stage) in self.stages.iter().enumerate() {
            text += if index > 0 { "," } else { "" };
            text += &format!("\n    {{\"stage\": {}, \"instructions\": [", stage.stage);
            for (index, planned) in stage.instructions.iter().enumerate() {
                text += if index > 0 { ",\n      " } else { "\n      " };
                text += &json(planned)?;
            }
            text += "\n    ]}";
        }
        text += "\n  ]\n}\n";
        Ok(text)
    }
}

fn foreign_format(found: &str) -> PlanError {
    PlanError::PlanFormat { found: excerpt(found), expected: FORMAT }
}

/// What each stage has if they differ, or else all have.
fn of_stages<T>(each: Option<Vec<T>>, common: Option<T>) -> Result<Option<PerStage<T>>, PlanError> {
    match each {
        Some(each) => PerStage::new(each).map(Some),
        None => Ok(common.map(PerStage::from)),
    }
}

/// A field of one item per line, left out if there is none.
fn list(name: &str, items: &[impl Serialize]) -> Result<String, PlanError> {
    let mut text = String::new();
    for (index, item) in items.iter().enumerate() {
        text += &if index > 0 { ",\n    ".to_owned() } else { format!("\"{name}\": [\n    ") };
        text += &json(item)?;
    }
    text += if text.is_empty() { "" } else { "\n  ],\n  " };
    Ok(text)
}

fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, PlanError> {
    serde_json::to_string(value).map_err(|error| PlanError::PlanSyntax(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlannedInstruction;
    use crate::step::dependencies::StageUnit;
    use pfo_vocabulary::{Chunk, Instruction, Mhz, Microbatch, Stage, Unit};

    const GOLDEN: &str = include_str!("../../tests/golden/plan.json");

    fn small() -> Plan {
        let planned = |instruction, microbatch, mhz| PlannedInstruction {
            forward: None,
            instruction,
            microbatch: Microbatch(microbatch),
            chunk: Chunk(0),
            frequency_mhz: Mhz(mhz),
        };
        let stage = |stage, low| StagePlan {
            stage: Stage(stage),
            instructions: vec![
                planned(Instruction::Forward, 0, low),
                planned(Instruction::Backward, 0, 1410),
            ],
        };
        Plan {
            placement: Placement::Loop,
            gpu: Some("A100 \"SXM\"".to_owned()),
            schedule: Schedule::OneForwardOneBackward,
            num_stages: 2,
            num_microbatches: 1,
            p2p_blocking_power_w: Some(Watts(83.64).into()),
            p2p_blocking_power_by_mhz: None,
            delays: Delays::default(),
            predicted: Some(Prediction { iteration_time_s: 0.25, iteration_energy_j: 100.5 }),
            dependencies: Vec::new(),
            waits: Vec::new(),
            payloads: Vec::new(),
            stages: vec![stage(0, 1395), stage(1, 855)],
        }
    }

    fn with_waits() -> Plan {
        let wait = |stage, instruction| PlannedWait {
            before: StageUnit::new(Stage(stage), Unit::new(instruction, 0)),
            frequency_mhz: Mhz(210),
        };
        let points = [(Mhz(210), Watts(48.0)), (Mhz(1410), Watts(83.64))];
        Plan {
            p2p_blocking_power_by_mhz: Some(PowerByClock::new(points).unwrap().into()),
            waits: vec![wait(0, Instruction::Backward), wait(1, Instruction::Forward)],
            ..small()
        }
    }

    fn refused(json: &str) -> String {
        Plan::from_json(json.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_plan_is_written_as_the_golden_file_has_it() {
        assert_eq!(small().to_json().unwrap(), GOLDEN);
    }

    #[test]
    fn the_golden_file_is_read_as_the_plan_that_wrote_it() {
        assert_eq!(Plan::from_json(GOLDEN.as_bytes()).unwrap(), small());
    }

    #[test]
    fn a_plan_with_clocks_for_waits_is_written_and_read_as_the_golden_file_has_it() {
        let golden = include_str!("../../tests/golden/plan_with_waits.json");
        assert_eq!(with_waits().to_json().unwrap(), golden);
        assert_eq!(Plan::from_json(golden.as_bytes()).unwrap(), with_waits());
    }

    #[test]
    fn a_wait_that_cannot_be_is_refused_with_its_number() {
        let changed = |change: fn(&mut Plan)| {
            let mut plan = with_waits();
            change(&mut plan);
            plan.to_json().unwrap_err().to_string()
        };
        let message = changed(|plan| plan.waits[1] = plan.waits[0]);
        assert!(
            message.contains("wait 1: before backward of microbatch 0 on stage 0"),
            "{message}"
        );
        let message = changed(|plan| plan.waits[1].before.stage = Stage(7));
        assert!(message.contains("wait 1") && message.contains("stage 7"), "{message}");
        let message = changed(|plan| plan.waits[0].frequency_mhz = Mhz(0));
        assert!(message.contains("wait 0: at 0 MHz"), "{message}");
        let json = with_waits().to_json().unwrap();
        let message = refused(&json.replace("[[210,", "[[1410,"));
        assert!(message.contains("1410 MHz twice") && message.contains("line"), "{message}");
    }

    #[test]
    fn what_a_plan_need_not_know_may_be_left_out() {
        let json = r#"{"format": "pfo-plan/1", "schedule": "1f1b", "num_stages": 1, "num_microbatches": 1,
            "stages": [{"stage": 0, "instructions": [
              {"instruction": "forward", "microbatch": 0, "frequency_mhz": 1410},
              {"instruction": "backward", "microbatch": 0, "frequency_mhz": 1410}]}]}"#;
        let plan = Plan::from_json(json.as_bytes()).unwrap();
        assert_eq!((plan.gpu, plan.p2p_blocking_power_w, plan.predicted), (None, None, None));
    }

    #[test]
    fn every_truncation_of_a_plan_is_refused_and_names_the_line() {
        for end in 0..GOLDEN.trim_end().len() {
            let message = refused(&GOLDEN[..end]);
            assert!(message.contains("line"), "{end}: {message}");
        }
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let message = refused(&GOLDEN.replace("\"gpu\"", "\"gpus\""));
        assert!(message.contains("gpus") && message.contains("line 3"), "{message}");
        let message = refused(&GOLDEN.replacen("\"microbatch\"", "\"mb\"", 1));
        assert!(message.contains("`mb`"), "{message}");
    }

    #[test]
    fn an_unknown_instruction_is_refused_by_name_and_line() {
        let message = refused(&GOLDEN.replacen("\"forward\"", "\"foreward\"", 1));
        assert!(message.contains("foreward") && message.contains("line 11"), "{message}");
    }

    #[test]
    fn another_version_is_refused_as_such_even_if_its_fields_differ() {
        let message = refused(r#"{"format": "pfo-plan/2", "phases": [1, 2]}"#);
        assert!(message.contains("pfo-plan/2") && message.contains("pfo-plan/1"), "{message}");
        let message = refused(&GOLDEN.replace("pfo-plan/1", "pfo-plan/9"));
        assert!(message.contains("pfo-plan/9"), "{message}");
    }

    #[test]
    fn a_huge_unknown_name_does_not_make_a_huge_message() {
        let name = "x".repeat(1 << 20);
        assert!(refused(&GOLDEN.replace("\"gpu\"", &format!("\"{name}\""))).len() < 1000);
        assert!(refused(&GOLDEN.replace("1f1b", &name)).len() < 1000);
    }

    #[test]
    fn a_chunk_and_a_transfer_time_are_written_only_where_there_are_any() {
        let mut plan = small();
        plan.delays.transfer_time_s = 0.002;
        for stage in &mut plan.stages {
            let again = stage.instructions.clone();
            stage
                .instructions
                .extend(again.iter().map(|p| PlannedInstruction { chunk: Chunk(1), ..*p }));
        }
        let json = plan.to_json().unwrap();
        assert_eq!(json.matches("\"chunk\": 1").count() + json.matches("\"chunk\":1").count(), 4);
        assert!(!json.contains("\"chunk\":0") && json.contains("\"transfer_time_s\": 0.002"));
        assert_eq!(Plan::from_json(json.as_bytes()).unwrap(), plan);
        let message = refused(&json.replace("0.002", "-1.0"));
        assert!(message.contains("transfer_time_s: -1"), "{message}");
    }

    #[test]
    fn what_instructions_wait_for_is_written_only_if_it_does_not_follow_from_the_rule() {
        let on = |stage, instruction| StageUnit::new(Stage(stage), Unit::new(instruction, 0));
        let mut plan = small();
        plan.dependencies = vec![
            Dependency { of: on(1, Instruction::Forward), after: Vec::new() },
            Dependency {
                of: on(0, Instruction::Backward),
                after: vec![on(1, Instruction::Backward), on(1, Instruction::Forward)],
            },
        ];
        let json = plan.to_json().unwrap();
        assert!(!GOLDEN.contains("dependencies") && json.contains("\n  \"dependencies\": [\n"));
        assert_eq!(Plan::from_json(json.as_bytes()).unwrap(), plan);
        let message = refused(&json.replacen(
            "forward\",\"microbatch\":0},\"after\"",
            "load\",\"microbatch\":0},\"after\"",
            1,
        ));
        assert!(message.contains("dependency 0: no stage runs load"), "{message}");
    }

    #[test]
    fn a_negative_frequency_is_refused_with_its_line() {
        let message = refused(&GOLDEN.replace("1395", "-1395"));
        assert!(message.contains("-1395") && message.contains("line"), "{message}");
    }
}
