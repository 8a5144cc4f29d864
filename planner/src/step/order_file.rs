//! Orders from files, for schedules that have no name here.
//!
//! ```json
//! {"format": "pfo-order/1", "stages": [
//!   [{"instruction": "forward", "microbatch": 0}, {"instruction": "backward", "microbatch": 0}]
//! ]}
//! ```
//!
//! Stages are listed first to last, each with its instructions of a step, first to last. `"chunk"`
//! is the model chunk where a stage has several; a field `"placement"` beside `"stages"` says how
//! they lie: `"loop"`, `"v"` or `"two-way"`. A `forward_backward` that overlaps the forward of
//! another microbatch with its backward names it: `"forward": {"microbatch": 1, "chunk": 0}`.
//!
//! Instructions wait by the rule, a forward for the activation of the virtual stage before and a
//! backward for the gradient of the one after, unless a field `"dependencies"` says otherwise: see
//! `dependencies`. A field `"transfer_time_s"` is the time, in seconds, from the end of an
//! instruction until what it made has reached another stage.

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Stage, Unit};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::PlanError;
use crate::excerpt::{excerpt, shortened};
use crate::limits;
use crate::plan::Plan;
use crate::step::delays::Delays;
use crate::step::dependencies::{BadDependency, Dependency, check_dependencies};
use crate::step::order::{Misordered, Order, check_order};
use crate::step::overlap::{OverlappedForward, overlaps_on};
use crate::step::placement::Placement;

const FORMAT: &str = "pfo-order/1";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    #[serde(default)]
    placement: Placement,
    #[serde(default)]
    transfer_time_s: Option<f64>,
    stages: Vec<Vec<Entry>>,
    #[serde(default)]
    dependencies: Vec<Dependency>,
}

/// One instruction of a stage.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    instruction: Instruction,
    microbatch: Microbatch,
    #[serde(default, skip_serializing_if = "Chunk::is_first")]
    chunk: Chunk,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) forward: Option<OverlappedForward>,
}

impl Entry {
    pub(super) fn of(unit: Unit, forward: Option<OverlappedForward>) -> Self {
        let Unit { instruction, microbatch, chunk } = unit;
        Self { instruction, microbatch, chunk, forward }
    }

    fn unit(&self) -> Unit {
        let &Self { instruction, microbatch, chunk, .. } = self;
        Unit { instruction, chunk, microbatch }
    }
}

impl Order {
    /// Reads an order.
    ///
    /// # Errors
    /// If the bytes are not an order file, a stage does not run every microbatch once forward and
    /// once backward, or a dependency names an instruction that no stage runs.
    pub fn from_json(bytes: &[u8]) -> Result<Self, PlanError> {
        if bytes.len() > Plan::MAX_JSON_BYTES {
            return Err(too_large(bytes.len()));
        }
        let document: Document = serde_json::from_slice(bytes)
            .map_err(|error| refused("the file", shortened(&error.to_string())))?;
        if document.format != FORMAT {
            let found = excerpt(&document.format);
            return Err(refused("format", format!("\"{found}\", this version reads \"{FORMAT}\"")));
        }
        let mut order = checked(&document.stages, document.placement, document.transfer_time_s)?;
        order.dependencies = document.dependencies;
        check_dependencies(order.units(), &order.dependencies).map_err(
            |BadDependency { number, problem }| refused(&format!("dependency {number}"), problem),
        )?;
        Ok(order)
    }

    /// The order as a file, one instruction per line, which [`Order::from_json`] reads.
    pub fn to_json(&self) -> String {
        let entry = |stage: Stage, unit: Unit| Entry::of(unit, self.overlapped(stage, unit));
        let stages = (0..).map(Stage).zip(&self.stages).map(|(stage, units)| {
            let entries = units.iter().map(|&unit| format!("    {}", json!(entry(stage, unit))));
            format!("  [\n{}\n  ]", entries.collect::<Vec<_>>().join(",\n"))
        });
        let mut text = format!("{{\n  \"format\": \"{FORMAT}\",\n");
        text += &format!("  \"placement\": {},\n", json!(self.placement));
        if let Some(seconds) = self.transfer_time_s {
            text += &format!("  \"transfer_time_s\": {seconds},\n");
        }
        if !self.dependencies.is_empty() {
            let each =
                self.dependencies.iter().map(|dependency| format!("    {}", json!(dependency)));
            let each = each.collect::<Vec<_>>().join(",\n");
            text += &format!("  \"dependencies\": [\n{each}\n  ],\n");
        }
        let stages = stages.collect::<Vec<_>>().join(",\n");
        text + &format!("  \"stages\": [\n{stages}\n  ]\n}}\n")
    }
}

/// The order of stages that run these instructions, which wait by the rule.
///
/// # Errors
/// If there are too many or no stages or microbatches, the time is impossible, or a stage does not run
/// every microbatch once forward and once backward.
pub(super) fn checked(
    stages: &[Vec<Entry>],
    placement: Placement,
    transfer_time_s: Option<f64>,
) -> Result<Order, PlanError> {
    if !(1..=usize::from(limits::STAGES)).contains(&stages.len()) {
        let (count, most) = (stages.len(), limits::STAGES);
        return Err(refused("stages", format!("{count} are listed, must be 1 to {most}")));
    }
    let entries = stages.iter().flatten();
    let forwards = entries.clone().filter_map(|entry| entry.forward);
    let last = entries.map(|entry| entry.microbatch).chain(forwards.map(|of| of.microbatch));
    let num_microbatches = last
        .max()
        .filter(|last| last.0 < limits::MICROBATCHES)
        .map(|last| last.0 + 1)
        .ok_or_else(|| refused("the file", "it must have 1 to 65536 microbatches".into()))?;
    let mut order = Order::plain(Vec::new(), num_microbatches, placement);
    order.transfer_time_s = transfer_time_s;
    Delays { transfer_time_s: transfer_time_s.unwrap_or(0.0), ..Delays::default() }.check()?;
    for (stage, entries) in (0..).map(Stage).zip(stages) {
        let run = entries.iter().map(|entry| (entry.unit(), entry.forward));
        check_order(run.clone(), num_microbatches, placement).map_err(
            |Misordered { instruction, problem }| match instruction {
                Some(index) => refused(&format!("stage {stage}, instruction {index}"), problem),
                None => refused(&format!("stage {stage}"), problem),
            },
        )?;
        order.overlaps.extend(overlaps_on(stage, run));
        order.stages.push(entries.iter().map(Entry::unit).collect());
    }
    Ok(order)
}

pub(super) fn too_large(size: usize) -> PlanError {
    let most = Plan::MAX_JSON_BYTES;
    refused("the file", format!("it has {size} bytes, at most {most} are read"))
}

pub(super) fn refused(place: &str, problem: String) -> PlanError {
    PlanError::OrderFile { place: place.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
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
        assert_eq!(Order::from_json(order.to_json().as_bytes()).unwrap(), order);
        let plan =
            order.pipeline(&unequal(), Delays::default()).unwrap().plan(|_| crate::Mhz(1400));
        let first: Vec<String> =
            plan.stages[0].instructions.iter().map(|p| p.unit().to_string()).collect();
        assert_eq!(first[2], "backward of microbatch 1");
        assert_eq!(plan.schedule, Schedule::Custom);
        assert!(plan.to_json().unwrap().contains("\"schedule\": \"custom\""));
    }

    #[test]
    fn the_order_of_any_schedule_can_be_written_and_read() {
        let kinds = [Instruction::ForwardBackward, Instruction::Load];
        let rows = kinds.into_iter().flat_map(|kind| {
            let of_backward = unequal();
            let rows: Vec<_> = of_backward.rows().collect();
            rows.into_iter()
                .filter(|row| row.1 == Instruction::Backward)
                .map(move |row| (row.0, kind, row.2))
        });
        let profile = Profile::from_measurements(unequal().rows().chain(rows)).unwrap();
        for schedule in Schedule::ALL.into_iter().filter(|&schedule| schedule != Schedule::Custom) {
            let order = schedule.order(&profile, 8, &Settings::default()).unwrap();
            let read = Order::from_json(order.to_json().as_bytes()).unwrap();
            assert_eq!(read, order, "{schedule}");
            let has_pairs = matches!(schedule, Schedule::DualPipe | Schedule::DualPipeV);
            assert_eq!(!read.overlaps.is_empty(), has_pairs, "{schedule}");
        }
    }

    #[test]
    fn a_time_of_transfers_in_the_file_counts_unless_another_is_given() {
        let json = TWO_STAGES.replacen("\"stages\"", "\"transfer_time_s\": 0.5, \"stages\"", 1);
        let order = Order::from_json(json.as_bytes()).unwrap();
        let of = |transfer_time_s| {
            let delays = Delays { transfer_time_s, ..Delays::default() };
            order.pipeline(&unequal(), delays).unwrap().network().delays.transfer_time_s
        };
        assert_eq!((of(0.0), of(0.25)), (0.5, 0.25));
        let message = Order::from_json(json.replace("0.5,", "-1,").as_bytes()).unwrap_err();
        assert!(message.to_string().contains("-1 s"), "{message}");
    }

    #[test]
    fn what_is_no_order_is_refused_with_its_place() {
        let cases = [
            ("pfo-order/1", "pfo-order/9", "pfo-order/9"),
            ("\"stages\"", "\"stage\"", "stage"),
            ("\"microbatch\": 1", "\"microbatch\": 0", "stage 0, instruction 1"),
            ("\"backward\"", "\"load\"", "stage 0: microbatch 1"),
            ("\"microbatch\": 1", "\"microbatch\": 70000", "65536"),
            ("\"stages\"", "\"placement\": \"w\", \"stages\"", "two-way"),
            (
                "forward\", ",
                "forward\", \"forward\": {\"microbatch\": 1}, ",
                "only a forward_backward",
            ),
            (
                "backward\", ",
                "forward_backward\", \"forward\": {\"microbatch\": 1}, ",
                "its own forward",
            ),
            (
                "backward\", ",
                "forward_backward\", \"forward\": {\"microbatch\": 0}, ",
                "a second time",
            ),
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
