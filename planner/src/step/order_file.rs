//! Orders from files, for schedules that have no name here.
//!
//! ```json
//! {"format": "pfo-order/1", "stages": [
//!   [{"instruction": "forward", "microbatch": 0}, {"instruction": "backward", "microbatch": 0}]
//! ]}
//! ```
//!
//! Stages are listed first to last, each with its instructions of a step, first to last. `"chunk"`
//! is the model chunk where a stage has several. Instructions wait by the rule, a forward for the
//! activation of the virtual stage before and a backward for the gradient of the one after, unless
//! a field `"dependencies"` beside `"stages"` says otherwise: see `dependencies`.

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Unit};
use serde::Deserialize;

use crate::error::PlanError;
use crate::excerpt::{excerpt, shortened};
use crate::limits;
use crate::step::dependencies::{BadDependency, Dependency, check_dependencies};
use crate::step::order::{Misordered, Order, StageOrder, check_order};

const FORMAT: &str = "pfo-order/1";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    stages: Vec<Vec<Entry>>,
    #[serde(default)]
    dependencies: Vec<Dependency>,
}

/// One instruction of a stage.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    instruction: Instruction,
    microbatch: Microbatch,
    #[serde(default)]
    chunk: Chunk,
}

impl From<Entry> for Unit {
    fn from(entry: Entry) -> Self {
        let Entry { instruction, microbatch, chunk } = entry;
        Self { instruction, chunk, microbatch }
    }
}

impl Order {
    /// Reads an order.
    ///
    /// # Errors
    /// If the bytes are not an order file, a stage does not run every microbatch once forward and
    /// once backward, or a dependency names an instruction that no stage runs.
    pub fn from_json(bytes: &[u8]) -> Result<Self, PlanError> {
        let document: Document = serde_json::from_slice(bytes)
            .map_err(|error| refused("the file", shortened(&error.to_string())))?;
        if document.format != FORMAT {
            let found = excerpt(&document.format);
            return Err(refused("format", format!("\"{found}\", this version reads \"{FORMAT}\"")));
        }
        let units = |stage: Vec<Entry>| stage.into_iter().map(Unit::from).collect();
        let stages: Vec<StageOrder> = document.stages.into_iter().map(units).collect();
        let last = stages.iter().flatten().map(|unit| unit.microbatch.0).max();
        let num_microbatches = last
            .filter(|&last| last < limits::MICROBATCHES)
            .map(|last| last + 1)
            .ok_or_else(|| refused("the file", "it must have 1 to 65536 microbatches".into()))?;
        for (stage, order) in stages.iter().enumerate() {
            check_order(order.iter().copied(), num_microbatches).map_err(
                |Misordered { instruction, problem }| match instruction {
                    Some(index) => refused(&format!("stage {stage}, instruction {index}"), problem),
                    None => refused(&format!("stage {stage}"), problem),
                },
            )?;
        }
        let order = Self { stages, num_microbatches, dependencies: document.dependencies };
        check_dependencies(order.units(), &order.dependencies).map_err(
            |BadDependency { number, problem }| refused(&format!("dependency {number}"), problem),
        )?;
        Ok(order)
    }
}

fn refused(place: &str, problem: String) -> PlanError {
    PlanError::OrderFile { place: place.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::name::Schedule;
    use crate::schedule::settings::Settings;
    use crate::step::delays::Delays;
    use crate::test_profiles::unequal;

    const TWO_STAGES: &str = r#"{"format": "pfo-order/1", "stages": [
        [{"instruction": "forward", "microbatch": 0}, {"instruction": "forward", "microbatch": 1},
         {"instruction": "backward", "microbatch": 1}, {"instruction": "backward", "microbatch": 0}],
        [{"instruction": "forward", "microbatch": 0}, {"instruction": "forward", "microbatch": 1},
         {"instruction": "backward", "microbatch": 1}, {"instruction": "backward", "microbatch": 0}]
    ]}"#;

    fn refused_with(from: &str, to: &str) -> String {
        let json = TWO_STAGES.replacen(from, to, 1);
        Order::from_json(json.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn an_order_is_run_as_the_file_has_it() {
        let order = Order::from_json(TWO_STAGES.as_bytes()).unwrap();
        assert_eq!(order.num_microbatches(), 2);
        let plan =
            order.pipeline(&unequal(), Delays::default()).unwrap().plan(|_| crate::Mhz(1400));
        let first: Vec<String> =
            plan.stages[0].instructions.iter().map(|p| p.unit().to_string()).collect();
        assert_eq!(first[2], "backward of microbatch 1");
        assert_eq!(plan.schedule, Schedule::Custom);
        assert!(plan.to_json().unwrap().contains("\"schedule\": \"custom\""));
    }

    #[test]
    fn the_order_of_any_schedule_can_be_read_and_makes_the_same_pipeline() {
        for schedule in [Schedule::GPipe, Schedule::OneForwardOneBackward, Schedule::Interleaved] {
            let stages = schedule.orders(&unequal(), 4, &Settings::default()).unwrap();
            let json = serde_json::json!({"format": FORMAT, "stages": stages}).to_string();
            let order = Order::from_json(json.as_bytes()).unwrap();
            assert_eq!(order.stages, stages, "{schedule}");
        }
    }

    #[test]
    fn what_is_no_order_is_refused_with_its_place() {
        let cases = [
            ("pfo-order/1", "pfo-order/9", "pfo-order/9"),
            ("\"stages\"", "\"stage\"", "stage"),
            ("\"microbatch\": 1", "\"microbatch\": 0", "stage 0, instruction 1"),
            ("\"backward\"", "\"load\"", "stage 0: microbatch 1"),
            ("\"microbatch\": 1", "\"microbatch\": 70000", "65536"),
        ];
        for (from, to, expected) in cases {
            let message = refused_with(from, to);
            assert!(message.contains(expected), "{expected}: {message}");
        }
    }

    /// `TWO_STAGES` with this said about its dependencies.
    fn with(dependencies: &str) -> Result<Order, PlanError> {
        let with = format!("\"dependencies\": {dependencies}, \"stages\"");
        Order::from_json(TWO_STAGES.replacen("\"stages\"", &with, 1).as_bytes())
    }

    fn on(stage: u16, instruction: &str, microbatch: u32) -> String {
        format!(
            r#"{{"stage": {stage}, "instruction": "{instruction}", "microbatch": {microbatch}}}"#
        )
    }

    #[test]
    fn a_dependency_is_refused_with_its_number_and_what_to_do_about_it() {
        let of = on(1, "forward", 1);
        let said = |after: &str| format!(r#"{{"of": {of}, "after": [{after}]}}"#);
        let known = on(0, "forward", 1);
        for (dependencies, expected) in [
            (said(&on(0, "forward", 2)), ["dependency 0", "forward of microbatch 2 on stage 0"]),
            (said(&on(2, "forward", 1)), ["no stage runs forward", "stage 2"]),
            (said(&of), ["cannot wait for itself", "remove it"]),
            (said(&format!("{known}, {known}")), ["microbatch 1 on stage 0 twice", "once"]),
            (format!("{}, {}", said(&known), said("")), ["dependency 1", "already has a list"]),
            (r#"{"of": 3, "after": []}"#.to_owned(), ["invalid type", "line"]),
            (said(&known).replace("after", "before"), ["unknown field", "before"]),
        ] {
            let message = with(&format!("[{dependencies}]")).unwrap_err().to_string();
            for words in expected {
                assert!(message.contains(words), "no {words:?} in {message}");
            }
        }
    }

    #[test]
    fn dependencies_that_lead_back_to_their_beginning_are_refused_by_name() {
        let first = on(0, "forward", 0);
        let dependencies = format!(r#"[{{"of": {first}, "after": [{}]}}]"#, on(1, "forward", 0));
        let order = with(&dependencies).unwrap();
        let message = order.pipeline(&unequal(), Delays::default()).unwrap_err().to_string();
        assert!(message.contains("deadlock") && message.contains("in turn"), "{message}");
        assert!(message.contains("forward of microbatch 0 on stage 1"), "{message}");
    }

    #[test]
    fn an_order_that_deadlocks_is_refused() {
        let backward = r#"{"instruction": "backward", "microbatch": 1}, "#;
        let forward = r#"{"instruction": "forward", "microbatch": 1},"#;
        let json = TWO_STAGES.replacen(forward, "", 1).replacen(
            backward,
            &format!("{backward}{forward}"),
            1,
        );
        let order = Order::from_json(json.as_bytes()).unwrap();
        let message = order.pipeline(&unequal(), Delays::default()).unwrap_err().to_string();
        assert!(message.contains("deadlock"), "{message}");
    }
}
