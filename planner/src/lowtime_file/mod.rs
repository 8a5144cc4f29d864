//! Plan files of lowtime, Perseus and Zeus: `freqs_pipeline_%05d.py`.
//!
//! A Python list with one list for each stage, which has an entry for each of its instructions in
//! order: MHz (Perseus' artifact) or `(name, MHz)` (lowtime, Zeus). Comments after it state what
//! the planner claims; they are skipped. Small numbers in file names are slow plans.

pub(crate) mod python_literal;

use pfo_vocabulary::{Instruction, Mhz, Stage};

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::lowtime_file::python_literal::{Literal, Place, Value, parse};
use crate::pipeline::Pipeline;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::schedule::name::Schedule;

/// The generations of such files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Lists of MHz: Perseus' artifact.
    Clocks,
    /// Lists of `(name, MHz)`: lowtime and Zeus.
    Named,
}

/// The contents of such a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowtimePlan {
    stages: Vec<Vec<Entry>>,
}

/// The clock of one instruction, and its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    instruction: Option<Instruction>,
    frequency: Mhz,
    line: u32,
    column: u32,
}

impl Plan {
    /// Reads a plan in any format. A Python file does not say for which schedule it is; how many
    /// microbatches a step has follows from its length.
    ///
    /// # Errors
    /// Those of [`Plan::from_json`], or of [`LowtimePlan::from_bytes`] and [`LowtimePlan::plan`].
    pub fn from_bytes(
        bytes: &[u8],
        profile: &Profile,
        schedule: Schedule,
    ) -> Result<Self, PlanError> {
        if !LowtimePlan::is_likely(bytes) {
            return Self::from_json(bytes);
        }
        let file = LowtimePlan::from_bytes(bytes)?;
        file.plan(&Pipeline::new(profile, schedule, file.num_microbatches(schedule)?)?)
    }
}

impl LowtimePlan {
    /// The largest file that is read, in bytes; enough for about a million instructions.
    pub const MAX_BYTES: usize = 64 << 20;

    /// Whether bytes look like such a file rather than a plan of another format: they begin with a
    /// list.
    pub fn is_likely(bytes: &[u8]) -> bool {
        let mut lines = bytes.split(|&b| b == b'\n').map(<[u8]>::trim_ascii);
        lines
            .find(|line| !line.is_empty() && !line.starts_with(b"#"))
            .is_some_and(|line| line.starts_with(b"[") || line.starts_with(b"("))
    }

    /// Reads such a file of either generation.
    ///
    /// # Errors
    /// The first problem, with its line and column.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PlanError> {
        if bytes.len() > Self::MAX_BYTES {
            return Err(PlanError::PlanTooLarge { size: bytes.len(), limit: Self::MAX_BYTES });
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|error| PlanError::PlanSyntax(format!("not UTF-8 text: {error}")))?;
        let file = parse(text)?;
        let Value::Sequence(stages) = file.value else {
            return Err(file.place.wrong("expected a list of stages"));
        };
        let stages = stages.iter().map(read_stage).collect::<Result<_, _>>()?;
        Ok(Self { stages })
    }

    /// The number of microbatches of a step in which the stages run a schedule.
    ///
    /// # Errors
    /// If the length of the first stage's list fits no number of microbatches.
    pub fn num_microbatches(&self, schedule: Schedule) -> Result<u32, PlanError> {
        let num_stages = self.num_stages()?;
        let length = |microbatches| schedule.first_stage_length(num_stages, microbatches);
        let found = self.stages[0].len();
        // The first microbatches may take more instructions than later ones.
        let fewest = (found / length(1).max(1)) as u32;
        (fewest.max(1)..=found as u32)
            .take_while(|&microbatches| length(microbatches) <= found)
            .find(|&microbatches| length(microbatches) == found)
            .ok_or_else(|| {
                content(
                    Stage(0),
                    format!("{found} entries fit no number of microbatches of schedule {schedule}"),
                )
            })
    }

    /// The plan of a pipeline whose stages run at these clocks.
    ///
    /// # Errors
    /// The first difference in the number of stages, the number of instructions of a stage, or an
    /// instruction; or a clock that was not measured.
    pub fn plan(&self, pipeline: &Pipeline) -> Result<Plan, PlanError> {
        let profile = pipeline.profile();
        let num_stages = self.num_stages()?;
        if num_stages != profile.num_stages() {
            let (plan, profile) = (num_stages, profile.num_stages());
            return Err(PlanError::StagesDiffer { plan, profile });
        }
        let mut plan = pipeline.plan(|_| Mhz(0));
        for (stage, entries) in plan.stages.iter_mut().zip(&self.stages) {
            let (expected, found) = (stage.instructions.len(), entries.len());
            if expected != found {
                return Err(content(
                    stage.stage,
                    format!(
                        "{found} entries, but schedule {} with {} microbatches runs {expected} \
                         instructions",
                        pipeline.schedule(),
                        pipeline.num_microbatches(),
                    ),
                ));
            }
            for (planned, entry) in stage.instructions.iter_mut().zip(entries) {
                let (instruction, frequency) = (planned.instruction, entry.frequency);
                let wrong = |problem| PlanError::PythonPlan {
                    line: entry.line,
                    column: entry.column,
                    problem,
                };
                if let Some(name) = entry.instruction.filter(|&name| name != instruction) {
                    return Err(wrong(format!(
                        "{name}, where schedule {} runs {instruction} of microbatch {} on stage {}",
                        pipeline.schedule(),
                        planned.microbatch,
                        stage.stage
                    )));
                }
                let found = profile.part_at(stage.stage, instruction, planned.part(), frequency);
                if found.is_none() {
                    let stage = stage.stage;
                    return Err(PlanError::UnmeasuredFrequency { stage, instruction, frequency });
                }
                planned.frequency_mhz = frequency;
            }
        }
        plan.payloads = profile.payloads_of(&plan.stages);
        Ok(plan)
    }

    fn num_stages(&self) -> Result<u16, PlanError> {
        let found = self.stages.len();
        u16::try_from(found).ok().filter(|stages| (1..=Plan::MAX_STAGES).contains(stages)).ok_or(
            PlanError::PlanContent {
                place: "stages".to_owned(),
                problem: format!("{found} is not between 1 and {}", Plan::MAX_STAGES),
            },
        )
    }
}

impl Plan {
    /// The plan in the format of lowtime, Perseus and Zeus, with its prediction in comments.
    pub fn to_lowtime(&self, generation: Generation) -> String {
        let mut text = String::from("[\n");
        for stage in &self.stages {
            let entries = stage.instructions.iter().map(|planned| {
                let mhz = planned.frequency_mhz.0;
                match generation {
                    Generation::Clocks => mhz.to_string(),
                    Generation::Named => format!("('{}', {mhz})", written(planned.instruction)),
                }
            });
            text += &format!("[{}],\n", entries.collect::<Vec<_>>().join(", "));
        }
        text += "]\n";
        text += &format!(
            "# schedule {}, {} stages, {} microbatches\n",
            self.schedule, self.num_stages, self.num_microbatches
        );
        if let Some(predicted) = self.predicted {
            text += &format!("# predicted iteration time: {} s\n", predicted.iteration_time_s);
            // Without the clocks of its waits, which have no place here, the plan takes more.
            if self.waits.is_empty() {
                let energy_j = predicted.iteration_energy_j;
                text += &format!("# predicted iteration energy: {energy_j} J\n");
            }
        }
        text
    }
}

/// What a file of Zeus says where it sets no clock.
const LEAVE: Mhz = Mhz(0);

/// Names in lowtime's files that differ from ours: the class in lower case.
const CLASS_NAMES: [(&str, Instruction); 1] = [("forwardbackward", Instruction::ForwardBackward)];

fn written(instruction: Instruction) -> &'static str {
    let class = CLASS_NAMES.iter().find(|(_, named)| *named == instruction);
    class.map_or(instruction.name(), |(name, _)| name)
}

fn read_stage(stage: &Literal) -> Result<Vec<Entry>, PlanError> {
    let Value::Sequence(entries) = &stage.value else {
        return Err(stage.place.wrong("expected a stage's list of clocks"));
    };
    let mut entries: Vec<Entry> = entries.iter().map(read_entry).collect::<Result<_, _>>()?;
    leave_clocks(&mut entries, stage.place)?;
    Ok(entries)
}

/// Zeus' 0 leaves the clock as it is: that of the instruction before, of the step before at the beginning.
fn leave_clocks(entries: &mut [Entry], stage: Place) -> Result<(), PlanError> {
    let set = |entry: &&Entry| entry.frequency != LEAVE;
    let Some(mut clock) = entries.iter().rev().find(set).map(|entry| entry.frequency) else {
        return match entries.is_empty() {
            true => Ok(()),
            false => Err(stage.wrong("every clock of the stage is 0, which sets none")),
        };
    };
    for entry in entries {
        match entry.frequency {
            LEAVE => entry.frequency = clock,
            set => clock = set,
        }
    }
    Ok(())
}

fn read_entry(entry: &Literal) -> Result<Entry, PlanError> {
    let (instruction, clock) = match &entry.value {
        Value::Number(_) => (None, entry),
        Value::Sequence(pair) => match &pair[..] {
            [name, clock] => (Some(read_name(name)?), clock),
            _ => {
                let found = pair.len();
                return Err(entry.place.wrong(format!("{found} values, expected (name, MHz)")));
            }
        },
        Value::Text(_) => return Err(entry.place.wrong("expected MHz or (name, MHz)")),
    };
    let Value::Number(mhz) = clock.value else {
        return Err(clock.place.wrong("expected a clock in MHz"));
    };
    if Mhz(mhz) != LEAVE && !Mhz(mhz).is_plausible() {
        return Err(clock.place.wrong(format!("{mhz} is not between 1 MHz and {}", Mhz::MAX)));
    }
    let (line, column) = (entry.place.line, entry.place.column);
    Ok(Entry { instruction, frequency: Mhz(mhz), line, column })
}

fn read_name(name: &Literal) -> Result<Instruction, PlanError> {
    let Value::Text(text) = name.value else {
        return Err(name.place.wrong("expected an instruction's name"));
    };
    let class = CLASS_NAMES.iter().find(|(class, _)| *class == text);
    class.map_or_else(
        || {
            text.parse()
                .map_err(|_| name.place.wrong(format!("'{}' is not an instruction", excerpt(text))))
        },
        |&(_, instruction)| Ok(instruction),
    )
}

fn content(stage: Stage, problem: String) -> PlanError {
    PlanError::PlanContent { place: format!("stage {stage}"), problem }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::Prediction;
    use crate::test_profiles::{any_profile, assert_says, unequal};

    const CLOCKS: &str = include_str!("../../tests/golden/freqs_pipeline_clocks.py");
    const NAMED: &str = include_str!("../../tests/golden/freqs_pipeline_named.py");

    fn pipeline(profile: &Profile, microbatches: u32) -> Pipeline {
        Pipeline::new(profile, Schedule::OneForwardOneBackward, microbatches).unwrap()
    }

    fn small() -> Plan {
        let mut plan = pipeline(&unequal(), 2).plan(|_| Mhz(1400));
        for (first, stage) in plan.stages.iter_mut().enumerate() {
            for (place, planned) in (first..).zip(&mut stage.instructions) {
                planned.frequency_mhz = Mhz([1380, 1390, 1400][place % 3]);
            }
        }
        plan.predicted = Some(Prediction { iteration_time_s: 0.5, iteration_energy_j: 100.25 });
        plan
    }

    fn refused(text: &str) -> String {
        LowtimePlan::from_bytes(text.as_bytes())
            .and_then(|plan| plan.plan(&pipeline(&unequal(), 2)))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn plans_are_written_as_the_golden_files_have_them() {
        assert_eq!(small().to_lowtime(Generation::Clocks), CLOCKS);
        assert_eq!(small().to_lowtime(Generation::Named), NAMED);
    }

    #[test]
    fn files_as_lowtime_and_perseus_write_them_are_read() {
        let perseus = "[\n[1380, 1390, 1400, 1380],\n[1390, 1400, 1380, 1390],\n]\n\
                       # Iteration 7: cost change -1.25 \n# Iteration 7: total time 3.2 \n";
        let lowtime = "[\n[('forward', 1380), ('forward', 1390), ('backward', 1400), ('backward', 1380)],\n\
                       [('forward', 1390), ('backward', 1400), ('forward', 1380), ('backward', 1390)],\n]\n\
                       # Iteration 7 cost change: -1.25\n";
        let read = |text: &str| {
            LowtimePlan::from_bytes(text.as_bytes())
                .unwrap()
                .plan(&pipeline(&unequal(), 2))
                .unwrap()
        };
        let plan = read(perseus);
        assert_eq!(plan, read(lowtime));
        assert_eq!(plan.stages[1].instructions[1].frequency_mhz, Mhz(1400));
        assert_eq!(plan.stages[1].instructions[1].instruction, Instruction::Backward);
    }

    #[test]
    fn the_number_of_microbatches_follows_from_a_stages_length() {
        let schedule = Schedule::OneForwardOneBackward;
        let read = |text: &str| LowtimePlan::from_bytes(text.as_bytes()).unwrap();
        assert_eq!(read(CLOCKS).num_microbatches(schedule).unwrap(), 2);
        let message = read("[[1400]]").num_microbatches(schedule).unwrap_err().to_string();
        assert!(message.contains("1 entries") && message.contains("1f1b"), "{message}");
        assert!(read("[]").num_microbatches(schedule).is_err());
        assert!(read("[[]]").num_microbatches(schedule).is_err());
        assert!(read(CLOCKS).num_microbatches(Schedule::Custom).is_err());
    }

    #[test]
    fn whatever_the_schedule_its_microbatches_are_counted() {
        for schedule in Schedule::ALL.into_iter().filter(|&s| s != Schedule::Custom) {
            for (num_stages, microbatches) in [(1, 1), (2, 3), (4, 2), (4, 8), (8, 12), (8, 96)] {
                let first = vec!["1400"; schedule.first_stage_length(num_stages, microbatches)];
                let stages = vec![format!("[{}]", first.join(",")); usize::from(num_stages)];
                let file = format!("[{}]", stages.join(","));
                let plan = LowtimePlan::from_bytes(file.as_bytes()).unwrap();
                let counted = plan.num_microbatches(schedule).unwrap();
                assert_eq!(counted, microbatches, "{schedule}, {num_stages} stages");
            }
        }
    }

    #[test]
    fn a_file_that_does_not_fit_the_pipeline_is_refused_with_the_first_difference() {
        for (text, words) in [
            ("[[1400]]", &["1 stages", "2"][..]),
            ("[[1400], [1400]]", &["stage 0", "1 entries", "4 instructions"]),
            (&CLOCKS.replace("1380", "1234"), &["stage 0, forward at 1234 MHz"]),
            (
                &NAMED.replacen("('backward'", "('forward'", 1),
                &["line 2, column 40", "forward, where", "backward of microbatch 0 on stage 0"],
            ),
        ] {
            let message = refused(text);
            assert_says(&message, words);
        }
    }

    #[test]
    fn what_is_no_list_of_stages_is_refused_with_its_place() {
        for (text, words) in [
            ("1410", &["line 1, column 1", "list of stages"][..]),
            ("[1410]", &["line 1, column 2", "stage's list"]),
            ("[['forward']]", &["line 1, column 3", "(name, MHz)"]),
            ("[[('forward', 1, 2)]]", &["line 1, column 3", "3 values"]),
            ("[[('sideways', 1410)]]", &["line 1, column 4", "'sideways'"]),
            ("[[(1410, 'forward')]]", &["line 1, column 4", "name"]),
            ("[[('forward', 'x')]]", &["line 1, column 15", "MHz"]),
            ("[[0, 0]]", &["line 1, column 2", "every clock of the stage is 0"]),
        ] {
            let message = refused(text);
            assert_says(&message, words);
        }
    }

    #[test]
    fn a_clock_that_zeus_leaves_is_that_of_the_instruction_before() {
        let clocks = |text: &str| -> Vec<u32> {
            let read = LowtimePlan::from_bytes(text.as_bytes()).unwrap();
            read.stages[0].iter().map(|entry| entry.frequency.0).collect()
        };
        assert_eq!(clocks("[[('forward', 0), ('backward', 1400), ('forward', 0)]]"), [1400; 3]);
        assert_eq!(clocks("[[1380, 0, 0, 1390, 0]]"), [1380, 1380, 1380, 1390, 1390]);
    }

    #[test]
    fn json_plans_are_told_from_python_ones() {
        assert!(LowtimePlan::is_likely(CLOCKS.as_bytes()));
        assert!(LowtimePlan::is_likely(b"# made by hand\n\n [[1]]"));
        assert!(!LowtimePlan::is_likely(small().to_json().unwrap().as_bytes()));
        assert!(!LowtimePlan::is_likely(b""));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(profile in any_profile(4, 3), microbatches in 1_u32..5) {
            let pipeline = pipeline(&profile, microbatches);
            let plan = pipeline.plan(|_| Mhz(1400));
            for generation in [Generation::Clocks, Generation::Named] {
                let text = plan.to_lowtime(generation);
                let read = LowtimePlan::from_bytes(text.as_bytes()).unwrap();
                prop_assert_eq!(read.num_microbatches(plan.schedule).unwrap(), microbatches);
                prop_assert_eq!(&read.plan(&pipeline).unwrap(), &plan);
            }
        }
    }
}
