//! The tables and bytes of the README are those of the code.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use pfo_protocol as p;
use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, VariantAccess, Visitor,
    value::{Error, U32Deserializer},
};
use serde::forward_to_deserialize_any;

/// The names that a type is decoded from, in their order.
#[derive(Clone, Debug, PartialEq)]
enum Shape {
    Structure(Vec<String>),
    /// Each variant with the names of its fields; a field without a name is empty.
    Enumeration(Vec<(String, Vec<String>)>),
}

/// What one attempt to decode a type shows.
#[derive(Default)]
struct Seen {
    fields: RefCell<Vec<String>>,
    variants: RefCell<Vec<String>>,
}

/// Lets a type say what it is decoded from, and fails.
#[derive(Clone, Copy)]
struct Trace<'a> {
    seen: &'a Seen,
    variant: u32,
}

fn stop<T>() -> Result<T, Error> {
    Err(serde::de::Error::custom("seen"))
}

impl<'de> Deserializer<'de> for Trace<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        stop()
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.seen.fields.borrow_mut() = fields.iter().map(ToString::to_string).collect();
        stop()
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.seen.variants.borrow_mut() = variants.iter().map(ToString::to_string).collect();
        visitor.visit_enum(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

impl<'de> EnumAccess<'de> for Trace<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let number: U32Deserializer<Error> = self.variant.into_deserializer();
        Ok((seed.deserialize(number)?, self))
    }
}

impl<'de> VariantAccess<'de> for Trace<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, Error> {
        self.seen.fields.borrow_mut().push(String::new());
        stop()
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, _: V) -> Result<V::Value, Error> {
        self.seen.fields.borrow_mut().extend(vec![String::new(); length]);
        stop()
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        self.seen.fields.borrow_mut().extend(fields.iter().map(ToString::to_string));
        stop()
    }
}

fn shape<T: for<'de> Deserialize<'de>>() -> Shape {
    let look = |variant| {
        let seen = Seen::default();
        let _ = T::deserialize(Trace { seen: &seen, variant });
        seen
    };
    let variants = look(0).variants.into_inner();
    if variants.is_empty() {
        return Shape::Structure(look(0).fields.into_inner());
    }
    let with_fields =
        |(number, name): (u32, &String)| (plain(name), look(number).fields.into_inner());
    Shape::Enumeration((0..).zip(&variants).map(with_fields).collect())
}

/// Some names are written in JSON, too, and have another case there.
fn plain(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

fn shapes() -> BTreeMap<&'static str, Shape> {
    macro_rules! shapes {
        ($($name:ident)*) => { BTreeMap::from([$((stringify!($name), shape::<p::$name>())),*]) };
    }
    shapes! {
        AgentRequest AgentResponse AgentStatus BeginningRank BudgetChange BudgetDraft BudgetFileTrouble BudgetLevel BudgetOrder BudgetReason BudgetReport BudgetScope
        BudgetStatus BudgetSteering BudgetTerms BudgetedJob CalibratedClock Calibration ClockTable Closing ClosingReason ConfigStatus
        CounterCheck CounterReading CurvePoint DaemonStatus Doubt Drained DriftStatus DriftedInstruction DriftedRank DriverUse Event FirstPlan
        FirstPlanState FleetFinding FleetJob FleetLate FleetMember FleetNode FleetOutcome FleetStatus FleetStep FleetSwap FleetSwapped FleetWindow
        FrontierStatus GpuGrant GpuListing GpuName GpuStatus GuardStatus Hello Holder
        InstructionSample JobSelector JobStatus JobView LeaseStatus LeaseTarget LeaseTerms LeftOut Mark MeasuredBy MeterStatus MemoryLock Notice P2pPower
        P2pSource P2pTarget PlanFile PlanStatus PlannedUnit PolicyVerdict Predicted ProfileKey
        ProfileSelector RanUnit RankOrder RankPosition RankStatus RankView RankWindow RecordedRank RecordedTrial
        Refusal RefusalCode Reloaded Request ResetOutcome Response RevocationStatus SamplePage SavedEnergy Savings SavingsBy
        SavingsNode SavingsQuery SavingsReport SavingsRow SettleTime ShareMore SignedBudgets SlowRank Status StoredProfile SwapTarget Swapped SweepControl SweepEnd SweepOrder
        SweepSettings SweepState SweepStatus TapBatch TapRecord TappedRank Tariff ThrottledNs TrialLength
        TrialRank TrialResult TrialRow TrialRun TrialStep TuneEnd TuneOrder TuneReport TuneState TuneStatus Unit Unsupported User WaitPower WatchedJob Welcome Worth
        Window
    }
}

fn readme() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap()
}

/// Every table: the cells of its head, and those of its rows.
fn tables(text: &str) -> Vec<(Vec<String>, Vec<Vec<String>>)> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut tables = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with('|') {
            continue;
        }
        let rows: Vec<_> =
            std::iter::from_fn(|| lines.next_if(|line| line.starts_with('|'))).map(cells).collect();
        tables.push((cells(&line.replace('`', "")), rows[1..].to_vec()));
    }
    tables
}

fn unquoted(cell: &str) -> String {
    cell.replace('`', "")
}

/// The fields of a cell such as `` `job: JobSelector`, `wait: bool` ``: each name and type.
fn fields(cell: &str) -> Vec<(String, String)> {
    let field = |field: &str| match field.split_once(": ") {
        Some((name, of_type)) => (name.to_owned(), of_type.to_owned()),
        None => (String::new(), field.to_owned()),
    };
    cell.split('`').skip(1).step_by(2).map(field).collect()
}

fn names(fields: &[(String, String)]) -> Vec<String> {
    fields.iter().map(|(name, _)| name.clone()).collect()
}

/// The structures that have no table: a line of a list that may continue in the next ones.
fn listed_structures(text: &str) -> Vec<(String, Vec<(String, String)>)> {
    let joined = text.replace("\n  ", " ");
    let items = joined.lines().filter_map(|line| line.strip_prefix("- `")?.split_once("`: `"));
    items.map(|(name, rest)| (name.to_owned(), fields(&format!("`{rest}")))).collect()
}

/// What the README says of each type, and every type that a field there has.
fn documented() -> (BTreeMap<String, Shape>, Vec<String>) {
    let (mut shapes, mut types) = (BTreeMap::new(), Vec::new());
    for (head, rows) in tables(&readme()) {
        match head.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["number", name, what] => {
                let row = |(number, row): (usize, &Vec<String>)| {
                    assert_eq!(row[0], number.to_string(), "{name}");
                    let fields = if what == "fields" { fields(&row[2]) } else { Vec::new() };
                    types.extend(fields.iter().map(|(_, of_type)| of_type.clone()));
                    (plain(&unquoted(&row[1])), names(&fields))
                };
                let variants = rows.iter().enumerate().map(row).collect();
                shapes.insert(name.to_owned(), Shape::Enumeration(variants));
            }
            [field_of, "type", "meaning"] => {
                let name = field_of.strip_prefix("field of ").unwrap();
                types.extend(rows.iter().map(|row| unquoted(&row[1])));
                let fields = rows.into_iter().map(|row| unquoted(&row[0])).collect();
                shapes.insert(name.to_owned(), Shape::Structure(fields));
            }
            _ => (),
        }
    }
    for (name, fields) in listed_structures(&readme()) {
        types.extend(fields.iter().map(|(_, of_type)| of_type.clone()));
        shapes.insert(name, Shape::Structure(names(&fields)));
    }
    (shapes, types)
}

/// A table that gives the meaning of variants leaves their fields to its words.
fn without_fields(shape: &Shape) -> Shape {
    match shape {
        Shape::Enumeration(variants) => {
            let bare = |(name, _): &(String, _)| (name.clone(), Vec::new());
            Shape::Enumeration(variants.iter().map(bare).collect())
        }
        structure => structure.clone(),
    }
}

#[test]
fn every_field_and_variant_is_where_the_readme_says() {
    let (mut documented, _) = documented();
    documented.remove("Instruction");
    for (name, shape) in shapes() {
        let described = documented.remove(name).unwrap_or_else(|| panic!("{name} is missing"));
        let described_in_words = ["GpuName", "Mark"].contains(&name);
        let expected = if described_in_words { without_fields(&shape) } else { shape };
        assert_eq!(described, expected, "{name}");
    }
    assert_eq!(documented.into_keys().collect::<Vec<_>>(), [""; 0], "the code has no such type");
}

#[test]
fn every_type_that_the_readme_names_is_described_in_it() {
    let (documented, types) = documented();
    let tables = tables(&readme());
    let on_the_wire = tables.iter().filter(|(head, _)| head[0] == "type");
    let described: String =
        on_the_wire.flat_map(|(_, rows)| rows).map(|row| row[0].clone() + " ").collect();
    for named in types {
        for name in
            named.split(|c: char| !c.is_ascii_alphanumeric()).filter(|name| !name.is_empty())
        {
            let is_known = documented.contains_key(name)
                || described.split(|c: char| !c.is_ascii_alphanumeric()).any(|known| known == name)
                || name == "u8";
            assert!(is_known, "{name} is not described");
        }
    }
}

#[test]
fn instructions_have_the_numbers_that_the_readme_says() {
    let (documented, _) = documented();
    let names = p::Instruction::ALL.map(|kind| (plain(kind.name()), Vec::new()));
    assert_eq!(documented["Instruction"], Shape::Enumeration(names.to_vec()));
}

#[test]
fn kinds_and_their_largest_payloads_are_those_that_the_readme_says() {
    let tables = tables(&readme());
    let (_, rows) = tables.iter().find(|(head, _)| head[0] == "kind").unwrap();
    let described: Vec<_> =
        rows.iter().map(|row| (row[0].clone(), unquoted(&row[1]), row[4].clone())).collect();
    let kinds = p::Kind::ALL.map(|kind| {
        ((kind as u16).to_string(), format!("{kind:?}"), kind.max_payload().to_string())
    });
    assert_eq!(described, kinds);
    for (row, kind) in rows.iter().zip(p::Kind::ALL) {
        assert_eq!(row[2] == "to client", kind as u16 > 127, "{kind:?}");
    }
}

#[test]
fn the_sockets_are_those_that_the_readme_says() {
    let tables = tables(&readme());
    let (_, rows) = tables.iter().find(|(head, _)| head[0] == "path").unwrap();
    let paths: Vec<_> = rows.iter().map(|row| unquoted(&row[0])).collect();
    assert_eq!(
        paths,
        [
            p::TRAINER_SOCKET,
            p::ADMIN_SOCKET,
            p::AGENT_SOCKET,
            p::PFO_AGENT_SOCKET,
            p::PFO_AGENT_ADMIN_SOCKET
        ]
    );
}

#[test]
fn the_bytes_of_the_worked_session_are_the_recorded_ones() {
    let readme = readme();
    let block = readme.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("frames/session.json");
    let kit: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(kit).unwrap()).unwrap();
    for frame in block.split("# ").skip(1) {
        let (name, lines) = frame.split_once('\n').unwrap();
        let bytes: String = lines
            .lines()
            .flat_map(|line| line.split('|').next().unwrap().split_whitespace())
            .collect();
        let frames = kit["frames"].as_array().unwrap();
        let recorded = frames.iter().find(|frame| frame["name"] == name).unwrap();
        assert_eq!(recorded["bytes"], bytes, "{name}");
    }
}

#[test]
fn no_link_of_the_readme_leads_nowhere_outside_of_rustdoc() {
    let readme = readme();
    assert!(!readme.contains("[`"), "a link that only rustdoc resolves");
}
