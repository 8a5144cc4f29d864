//! Payloads as Kareus has them beside a plan: `scheds_pipeline_%05d.py`, of the same number as the
//! `freqs_pipeline_%05d.py` with the clocks.
//!
//! A Python list with one list for each stage. Where backwards run their forwards again, that has an entry
//! for each instruction in order, `('backward', 'value', …)`; else one for each microbatch, a pair of such
//! entries for its forward and its backward.

use std::collections::HashMap;

use pfo_vocabulary::{Instruction, Unit};

use crate::error::PlanError;
use crate::lowtime_file::python_literal::{Literal, Place, Value, parse_within};
use crate::payload::columns::is_value;
use crate::payload::layout::Layout;
use crate::payload::{Payload, PlannedPayload};
use crate::plan::{Plan, PlannedInstruction};
use crate::step::dependencies::StageUnit;

/// The payloads of all instructions of a plan, as a file of Kareus has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KareusPayloads {
    stages: Vec<Vec<Entry>>,
    /// Whether entries go by microbatch, forward before backward, instead of in the order in which they run.
    are_pairs: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    instruction: Instruction,
    payload: Payload,
    place: Place,
}

/// Stages, pairs, instructions.
const DEEPEST: u32 = 4;

impl KareusPayloads {
    /// The largest file that is read, in bytes.
    pub const MAX_BYTES: usize = 64 << 20;

    /// Reads such a file.
    ///
    /// # Errors
    /// The first problem, with its line and column.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PlanError> {
        if bytes.len() > Self::MAX_BYTES {
            return Err(PlanError::PlanTooLarge { size: bytes.len(), limit: Self::MAX_BYTES });
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|error| PlanError::PlanSyntax(format!("not UTF-8 text: {error}")))?;
        let file = parse_within(text, DEEPEST)?;
        let Value::Sequence(stages) = &file.value else {
            return Err(file.place.wrong("expected a list of stages"));
        };
        let mut read = Self { stages: Vec::with_capacity(stages.len()), are_pairs: false };
        let first = stages.iter().find_map(|stage| stage.items()?.first());
        read.are_pairs = first.is_some_and(|entry| entry.items().is_some_and(is_pair));
        for stage in stages {
            let Some(entries) = stage.items() else {
                return Err(stage.place.wrong("expected a stage's list of payloads"));
            };
            let mut of_stage = Vec::with_capacity(entries.len());
            for entry in entries {
                match entry.items().filter(|_| read.are_pairs) {
                    Some(pair) if is_pair(pair) => {
                        of_stage.push(read_entry(&pair[0], Some(Instruction::Forward))?);
                        of_stage.push(read_entry(&pair[1], Some(Instruction::Backward))?);
                    }
                    Some(_) => return Err(entry.place.wrong("expected a pair, as before it")),
                    None => of_stage.push(read_entry(entry, None)?),
                }
            }
            read.stages.push(of_stage);
        }
        Ok(read)
    }
}

impl<'a> Literal<'a> {
    fn items(&self) -> Option<&[Literal<'a>]> {
        match &self.value {
            Value::Sequence(items) => Some(items),
            _ => None,
        }
    }
}

/// Whether these are two entries rather than the values of one.
fn is_pair(items: &[Literal<'_>]) -> bool {
    items.len() == 2 && items.iter().all(|item| item.items().is_some())
}

fn read_entry(entry: &Literal<'_>, expected: Option<Instruction>) -> Result<Entry, PlanError> {
    let place = entry.place;
    let Some([name, values @ ..]) = entry.items() else {
        return Err(place.wrong("expected (name, value, …)"));
    };
    let instruction = match name.value {
        Value::Text("forward") => Instruction::Forward,
        Value::Text("backward") => Instruction::Backward,
        _ => return Err(name.place.wrong("expected 'forward' or 'backward'")),
    };
    if let Some(expected) = expected.filter(|&expected| expected != instruction) {
        return Err(name.place.wrong(format!("{instruction} where {expected} belongs")));
    }
    if !Layout::ALL.iter().any(|of| of.columns_of(instruction, values.len()).is_some()) {
        let found = values.len();
        return Err(place.wrong(format!("{instruction} has {found} values, as none of Kareus has")));
    }
    let mut texts = Vec::with_capacity(values.len());
    for value in values {
        match value.value {
            Value::Text(text) if is_value(text) => texts.push(text),
            _ => return Err(value.place.wrong("expected a string without quotes and commas")),
        }
    }
    let payload = Payload::try_from(texts.join(","));
    let payload = payload.map_err(|error| place.wrong(error.to_string()))?;
    Ok(Entry { instruction, payload, place })
}

/// Whether Kareus gives an instruction a payload.
fn has_payload(planned: &&PlannedInstruction) -> bool {
    matches!(planned.instruction, Instruction::Forward | Instruction::Backward)
}

impl Plan {
    /// The plan with the payloads of a file instead of those that it has.
    ///
    /// # Errors
    /// The first difference in the number of stages, of instructions of a stage, or an instruction.
    pub fn with_payloads(&self, file: &KareusPayloads) -> Result<Self, PlanError> {
        let (found, stages) = (file.stages.len(), self.stages.len());
        if found != stages {
            let problem = format!("{found} have payloads, but the plan has {stages}");
            return Err(PlanError::PlanContent { place: "stages".to_owned(), problem });
        }
        let mut payloads = Vec::new();
        for (stage, entries) in self.stages.iter().zip(&file.stages) {
            let planned: Vec<_> = stage.instructions.iter().filter(has_payload).collect();
            let wrong = |problem: String| PlanError::PlanContent {
                place: format!("stage {}", stage.stage),
                problem,
            };
            if planned.len() != entries.len() {
                let (found, runs) = (entries.len(), planned.len());
                return Err(wrong(format!("{found} payloads, but it runs {runs} instructions")));
            }
            for (number, planned) in planned.into_iter().enumerate() {
                let microbatch = planned.microbatch.0 as usize;
                let is_backward = planned.instruction == Instruction::Backward;
                let place = match file.are_pairs {
                    true => 2 * microbatch + usize::from(is_backward),
                    false => number,
                };
                let Some(entry) = entries.get(place) else {
                    return Err(wrong(format!("no payload for microbatch {microbatch}")));
                };
                if entry.instruction != planned.instruction {
                    let runs = planned.unit();
                    let problem = format!("{}, where the plan runs {runs}", entry.instruction);
                    return Err(entry.place.wrong(problem));
                }
                let of = StageUnit::new(stage.stage, planned.unit());
                payloads.push(PlannedPayload { of, payload: entry.payload.clone() });
            }
        }
        let plan = Self { payloads, ..self.clone() };
        plan.check()?;
        Ok(plan)
    }

    /// The payloads of the plan as Kareus has them beside the clocks, which [`Plan::to_lowtime`] writes.
    ///
    /// # Errors
    /// If a forward or a backward has no payload, or one of another form than Kareus has.
    pub fn to_kareus_payloads(&self) -> Result<String, PlanError> {
        let written = self.payloads.iter().map(|one| (one.of.instruction, &one.payload));
        let layout = Layout::of(&written).filter(|_| !self.payloads.is_empty());
        let wrong = |place: String, problem: &str| PlanError::PlanContent {
            place,
            problem: problem.to_owned(),
        };
        let layout = layout.ok_or_else(|| wrong("payloads".to_owned(), "they are not Kareus'"))?;
        let mut backwards = written.filter(|(kind, _)| *kind == Instruction::Backward);
        let first = backwards.next().map_or(0, |(_, payload)| payload.values().count());
        if backwards.any(|(_, payload)| payload.values().count() != first) {
            return Err(wrong("payloads".to_owned(), "only some backwards run a forward again"));
        }
        let payloads: HashMap<StageUnit, &Payload> =
            self.payloads.iter().map(|one| (one.of, &one.payload)).collect();
        let mut text = "[\n".to_owned();
        for stage in &self.stages {
            let entry = |unit: Unit| -> Result<String, PlanError> {
                let of = StageUnit::new(stage.stage, unit);
                let payload = payloads.get(&of).filter(|payload| payload.values().all(is_value));
                let payload = payload.ok_or_else(|| wrong(of.to_string(), "it has no payload"))?;
                let values = payload.values().map(|value| format!(", '{value}'"));
                Ok(format!("('{}'{})", unit.instruction, values.collect::<String>()))
            };
            let planned = || stage.instructions.iter().filter(has_payload);
            let entries: Vec<String> = if layout.recomputes(first) {
                planned().map(|planned| entry(planned.unit())).collect::<Result<_, _>>()?
            } else {
                let pair = |microbatch| -> Result<String, PlanError> {
                    let unit = |instruction| entry(Unit::new(instruction, microbatch));
                    let pair = [unit(Instruction::Forward)?, unit(Instruction::Backward)?];
                    Ok(format!("({})", pair.join(", ")))
                };
                (0..self.num_microbatches).map(pair).collect::<Result<_, _>>()?
            };
            text += &format!("[{}],\n", entries.join(", "));
        }
        Ok(text + "]\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::Frontier;
    use crate::frontier::deadline::Deadline;
    use crate::frontier::due::Due;
    use crate::frontier::optimize::Options;
    use crate::frontier::replan::{Condition, Conditions};
    use crate::lowtime_file::{Generation, LowtimePlan};
    use crate::pipeline::Pipeline;
    use crate::profile::Profile;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::assert_says;
    use crate::waits::per_stage::PerStage;
    use crate::waits::power::PowerByClock;
    use pfo_vocabulary::{Stage, Watts};

    /// A step of two stages and two microbatches whose backwards run their forwards again.
    const SCHEDS: &str = "[\n\
        [('forward', '2-8-27-1024', 'n_0-none-24-1024'), ('forward', '0-8-27-1024', ''), \
        ('backward', 'a', 'b', 'c', '-1--1-6-1024'), ('backward', 'a', 'b', 'c', 'd')],\n\
        [('forward', 'e', 'f'), ('backward', 'g', 'h', 'i', 'j'), ('forward', 'k', 'l'), \
        ('backward', 'm', 'n', 'o', 'p')],\n]\n";

    /// The same without that, by microbatch.
    const PAIRS: &str = "[\n\
        [(('forward', 'a', 'b'), ('backward', 'c', 'd')), (('forward', 'e', 'f'), ('backward', 'g', 'h'))],\n\
        [(('forward', 'i', 'j'), ('backward', 'k', 'l')), (('forward', 'm', 'n'), ('backward', 'o', 'p'))],\n]\n";

    /// The clocks of such a step.
    const FREQS: &str = "[\n\
        [('forward', 1410), ('forward', 1200), ('backward', 1200), ('backward', 1410)],\n\
        [('forward', 1200), ('backward', 1410), ('forward', 1410), ('backward', 1200)],\n]\n";

    const CLAIMS: &str =
        "# Iteration 7 cost change: 0.029\n# Iteration 7 total cost with P2P: 2068.6\n";

    fn profile() -> Profile {
        let mut csv =
            "stage,instruction,frequency,recompute_attention_configs,recompute_mlp_configs,\
                       attention_configs,mlp_configs,time,energy\n"
                .to_owned();
        for stage in [0, 1] {
            for (mhz, slower, power_w) in [(1410, 1.0, 400.0), (1200, 1.12, 320.0)] {
                for (kind, base_s) in [("forward", 0.05), ("backward", 0.1)] {
                    let (time_s, again) = (base_s * slower, kind == "backward");
                    let recompute = if again { format!("r{mhz},r{stage}") } else { ",".to_owned() };
                    let energy_j = power_w * time_s;
                    csv += &format!(
                        "{stage},{kind},{mhz},{recompute},{kind}-{mhz},{stage}-x,{time_s},{energy_j}\n"
                    );
                }
            }
        }
        Profile::from_csv(csv.as_bytes()).unwrap()
    }

    fn pipeline() -> Pipeline {
        Pipeline::new(&profile(), Schedule::OneForwardOneBackward, 2).unwrap()
    }

    fn clocks() -> Plan {
        let file = LowtimePlan::from_bytes(format!("{FREQS}{CLAIMS}").as_bytes()).unwrap();
        file.plan(&pipeline()).unwrap()
    }

    fn payloads(text: &str) -> Result<KareusPayloads, PlanError> {
        KareusPayloads::from_bytes(text.as_bytes())
    }

    #[test]
    fn a_pair_of_files_comes_back_byte_for_byte_through_the_plans_own_format() {
        for scheds in [SCHEDS, PAIRS] {
            let read = payloads(&format!("{scheds}{CLAIMS}")).unwrap();
            let plan = clocks().with_payloads(&read).unwrap();
            let json = plan.to_json().unwrap();
            let again = Plan::from_json(json.as_bytes()).unwrap();
            assert_eq!(again, plan);
            assert_eq!(again.to_kareus_payloads().unwrap(), scheds);
            assert!(again.to_lowtime(Generation::Named).starts_with(FREQS));
        }
        let plan = clocks().with_payloads(&payloads(SCHEDS).unwrap()).unwrap();
        assert_eq!(plan.payloads[0].payload.as_str(), "2-8-27-1024,n_0-none-24-1024");
    }

    #[test]
    fn a_plan_has_the_payload_of_the_row_of_each_of_its_clocks_also_through_a_frontiers_file() {
        let made =
            Frontier::optimize(&pipeline(), Watts(80.0), Options::default(), &|_| {}).unwrap();
        let frontier = Frontier::from_bytes(&made.to_bytes().unwrap()).unwrap();
        assert_eq!(frontier.pipeline().profile(), made.pipeline().profile());
        let due = Due::AtMost(1.06 * frontier.seconds(Deadline::Fastest));
        for plan in [frontier.plan(1).unwrap(), frontier.plan_for(due).unwrap(), clocks()] {
            let text = plan.to_kareus_payloads().unwrap();
            assert_eq!(plan.payloads.len(), plan.num_instructions());
            let (first, file) = (&plan.stages[0].instructions[0], payloads(&text).unwrap());
            let expected = format!("('forward', 'forward-{}', '0-x')", first.frequency_mhz.0);
            assert!(text.contains(&expected), "{text}");
            assert_eq!(plan.with_payloads(&file).unwrap(), plan);
        }
        let clocks: Vec<_> = frontier.plan(1).unwrap().payloads;
        assert!(clocks.iter().any(|one| one.payload.as_str().contains("1200")));
    }

    #[test]
    fn what_waits_have_and_what_is_slow_now_changes_no_payload() {
        let slow = (Stage(1), Instruction::Forward);
        let slow = Conditions::from([(slow, Condition::Slowed(1.2))]);
        assert_eq!(profile().under(&slow).unwrap().payloads(), profile().payloads());
        let power: PerStage<PowerByClock> = "210:40,1410:80".parse().unwrap();
        let plan = clocks().with_waits(&profile(), power).unwrap();
        assert_eq!(plan.payloads, clocks().payloads);
    }

    #[test]
    fn payloads_that_are_no_list_of_kareus_are_refused_with_their_place() {
        for (text, words) in [
            ("7", &["line 1, column 1", "list of stages"][..]),
            ("[7]", &["line 1, column 2", "stage's list"]),
            ("[[7]]", &["line 1, column 3"]),
            ("[[('forward', 1410)]]", &["line 1, column 3", "1 values"]),
            ("[[('forward', 'a', 7)]]", &["line 1, column 20", "string"]),
            ("[[('forward', 'a', 'b,c')]]", &["line 1, column 20", "commas"]),
            ("[[('load', 'a', 'b')]]", &["line 1, column 4", "'forward'"]),
            ("[[('backward', 'a', 'b', 'c')]]", &["line 1, column 3", "3 values"]),
            ("[[(('forward','a','b'),('forward','a','b'))]]", &["column 25", "backward belongs"]),
            ("[[(('forward','a','b'),('backward','a','b')), ('forward','a','b')]]", &["a pair"]),
            ("[[('forward','a','b'), (('forward','a','b'),('backward','a','b'))]]", &["column 25"]),
            ("[[((('forward','a','b'),),)]]", &["column 5", "nested more than four deep"]),
            ("[[('forward', open('x'), 'b')]]", &["column 15"]),
        ] {
            let message = payloads(text).unwrap_err().to_string();
            assert_says(&message, words);
        }
    }

    #[test]
    fn payloads_of_another_plan_are_refused_with_the_first_difference() {
        for (text, words) in [
            ("[[]]", &["1 have payloads", "2"][..]),
            ("[[], []]", &["stage 0", "0 payloads", "4 instructions"]),
            (
                &SCHEDS.replacen("('forward', '0-8-27-1024', '')", "('backward', 'a', 'b')", 1),
                &["line 2", "backward, where the plan runs forward of microbatch 1"],
            ),
        ] {
            let read = payloads(text).unwrap();
            let message = clocks().with_payloads(&read).unwrap_err().to_string();
            assert_says(&message, words);
        }
    }

    #[test]
    fn a_plan_without_payloads_or_with_those_of_others_has_no_file_for_kareus() {
        let refused = |change: &dyn Fn(&mut Plan)| {
            let mut plan = clocks();
            change(&mut plan);
            plan.to_kareus_payloads().unwrap_err().to_string()
        };
        let of = |text: &str| Payload::try_from(text.to_owned()).unwrap();
        assert!(refused(&|plan| plan.payloads.clear()).contains("not Kareus'"));
        let message = refused(&|plan| drop(plan.payloads.remove(0)));
        assert!(message.contains("forward of microbatch 0 on stage 0"), "{message}");
        assert!(refused(&|plan| plan.payloads[0].payload = of("{}")).contains("not Kareus'"));
        assert!(refused(&|plan| plan.payloads[0].payload = of("it's,x")).contains("no payload"));
        assert!(refused(&|plan| plan.payloads[2].payload = of("a,b")).contains("only some"));
    }

    #[test]
    fn a_plan_file_may_have_any_payload_of_one_line_once_for_each_instruction() {
        let mut plan = clocks();
        plan.payloads[0].payload = Payload::try_from("{\"any\": 'thing'}, ü".to_owned()).unwrap();
        assert_eq!(Plan::from_json(plan.to_json().unwrap().as_bytes()).unwrap(), plan);
        for text in ["", "two\nlines", &"x".repeat(513)] {
            assert!(Payload::try_from(text.to_owned()).is_err());
        }
        plan.payloads.push(plan.payloads[0].clone());
        let message = plan.to_json().unwrap_err().to_string();
        assert!(message.contains("payload 8") && message.contains("twice"), "{message}");
    }
}
