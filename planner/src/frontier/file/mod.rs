//! The frontier as a file: what is needed to show it and to export its plans.
//!
//! ```text
//! "pfo-frontier"  12 bytes
//! version         u16, 5; 4 has no set call
//! gzip stream (its CRC finds damage) of
//!   gpu             u8 length, UTF-8; 0 if unknown
//!   schedule        u8 length, its name
//!   microbatches    u32
//!   P2P power       f64, W
//!   transfer time   f64, s; 0 if none
//!   switch latency  f64, s; 0 if none
//!   set call        f64, s; the part of it for which a call blocks
//!   orders          stages u16, then for each the number of its instructions u32, then each:
//!                   instruction u8 (its place in the list of all), chunk u16, microbatch u32
//!   dependencies    u32 that do not follow from the rule, then each: the instruction that waits
//!                   (stage u16, then as in an order), the number of those that it waits for u32,
//!                   and those likewise
//!   tables          u16, then each: stage u16, instruction (u8 length, name), rows u16,
//!                   then each by rising clock: MHz u32, time f64 (s), energy f64 (J)
//!   plans           u32, then all times f64 (s), all energies f64 (J), and for each plan one byte
//!                   per operation, stage by stage: its row's index minus that of the plan before
//! ```
//!
//! All numbers are little-endian. Neighbouring plans are alike, so nearly all bytes are 0 and a
//! frontier of 3,495 plans of 1,536 operations takes a few hundred kilobytes.

pub(crate) mod error;
mod order;
mod source;

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use pfo_vocabulary::{Instruction, Mhz, Stage, Watts};

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::frontier::{Frontier, Kept, Point};
use crate::limits;
use crate::pipeline::Pipeline;
use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::step::delays::Delays;
use source::{Source, damaged, foreign};

const MAGIC: &[u8; 12] = b"pfo-frontier";
const VERSION: u16 = 5;

/// The version before, which is read, too.
const WITHOUT_SET_CALL: u16 = 4;

/// The largest frontier that is read: a small file can claim to be huge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Instructions of a step. Each takes about 200 bytes.
    pub instructions: usize,
    /// Rows of the profile. Each takes 24 bytes.
    pub rows: usize,
    /// Instructions of all plans together. Each takes a byte.
    pub planned: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { instructions: limits::OPERATIONS, rows: 4 << 20, planned: 256 << 20 }
    }
}

impl Frontier {
    /// The frontier as the bytes of a file.
    ///
    /// # Errors
    /// If the GPU's name is too long, or the plans are too large to be read back.
    pub fn to_bytes(&self) -> Result<Vec<u8>, PlanError> {
        let gpu = self.gpu.as_deref().unwrap_or("");
        if gpu.len() > limits::GPU_NAME_BYTES {
            return Err(PlanError::BadArgument {
                name: "the GPU's name",
                value: format!("\"{}\"", excerpt(gpu)),
                expected: "at most 128 bytes long",
            });
        }
        let operations = self.pipeline.network().num_instructions();
        check_size(self.plans.len(), operations, Room::default()).map_err(|expected| {
            PlanError::BadArgument {
                name: "the number of plans",
                value: self.plans.len().to_string(),
                expected,
            }
        })?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        self.write(gpu, GzEncoder::new(bytes, Compression::default()))
            .map_err(|error| damaged(&error.to_string()))
    }

    fn write(&self, gpu: &str, mut out: GzEncoder<Vec<u8>>) -> std::io::Result<Vec<u8>> {
        write_text(&mut out, gpu)?;
        write_text(&mut out, self.pipeline.schedule().name())?;
        out.write_all(&self.pipeline.num_microbatches().to_le_bytes())?;
        out.write_all(&self.p2p_power.0.to_le_bytes())?;
        for (_, seconds) in self.pipeline.network().delays.named() {
            out.write_all(&seconds.to_le_bytes())?;
        }
        order::write(&mut out, self.pipeline.order())?;

        let rows: Vec<_> = self.pipeline.profile().rows().collect();
        let tables: Vec<_> = rows.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).collect();
        out.write_all(&(tables.len() as u16).to_le_bytes())?;
        for table in tables {
            let (stage, instruction, _) = table[0];
            out.write_all(&stage.0.to_le_bytes())?;
            write_text(&mut out, instruction.name())?;
            out.write_all(&(table.len() as u16).to_le_bytes())?;
            for (_, _, row) in table {
                out.write_all(&row.frequency.0.to_le_bytes())?;
                out.write_all(&row.time_s.to_le_bytes())?;
                out.write_all(&row.energy_j.to_le_bytes())?;
            }
        }

        out.write_all(&(self.plans.len() as u32).to_le_bytes())?;
        for plan in &self.plans {
            out.write_all(&plan.point.iteration_time_s.to_le_bytes())?;
        }
        for plan in &self.plans {
            out.write_all(&plan.point.iteration_energy_j.to_le_bytes())?;
        }
        let mut before: Box<[u8]> = vec![0; self.pipeline.network().num_instructions()].into();
        for plan in &self.plans {
            for (before, &row) in before.iter_mut().zip(&plan.rows) {
                *before = row.wrapping_sub(*before);
            }
            out.write_all(&before)?;
            before.copy_from_slice(&plan.rows);
        }
        out.finish()
    }

    /// Whether bytes begin like a frontier file of any version.
    pub fn is_likely(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Reads the bytes of a file that [`Frontier::to_bytes`] made.
    ///
    /// # Errors
    /// If they are not a frontier file of this version, or were truncated or changed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PlanError> {
        Self::from_bytes_within(bytes, Room::default())
    }

    /// Reads a frontier of limited size.
    ///
    /// # Errors
    /// Those of [`Frontier::from_bytes`], and if the frontier is larger than `room`.
    pub fn from_bytes_within(bytes: &[u8], room: Room) -> Result<Self, PlanError> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            let start = String::from_utf8_lossy(&bytes[..bytes.len().min(16)]);
            return Err(foreign(format!("it begins with \"{}\"", excerpt(&start))));
        };
        let Some((&version, stream)) = rest.split_first_chunk() else {
            return Err(damaged("it ends before its version"));
        };
        let version = u16::from_le_bytes(version);
        if !(WITHOUT_SET_CALL..=VERSION).contains(&version) {
            return Err(foreign(format!(
                "it has version {version}, this program reads versions {WITHOUT_SET_CALL} to \
                 {VERSION}"
            )));
        }
        let mut file = Source::new(stream);
        let gpu = Some(file.text("the GPU's name")?).filter(|name| !name.is_empty());
        let schedule = file.text("the schedule")?.parse()?;
        let microbatches = u32::from_le_bytes(file.array("the number of microbatches")?);
        let p2p_power = Watts(f64::from_le_bytes(file.array("the P2P-blocking power")?));
        if !(p2p_power.0.is_finite() && p2p_power.0 >= 0.0) {
            return Err(damaged(&format!("the P2P-blocking power is {p2p_power}")));
        }
        let delays = Delays {
            transfer_time_s: f64::from_le_bytes(file.array("the transfer time")?),
            switch_latency_s: f64::from_le_bytes(file.array("the switching latency")?),
            set_call_s: match version {
                WITHOUT_SET_CALL => 0.0,
                _ => f64::from_le_bytes(file.array("the time of a set call")?),
            },
        };
        let order = order::read(&mut file, microbatches, room.instructions)?;
        let profile = read_profile(&mut file, room)?;
        let pipeline = Pipeline::of_order(&profile, schedule, order, delays)?;
        let plans = read_plans(&mut file, &pipeline, room)?;
        file.end()?;
        Self::new(pipeline, p2p_power, gpu, plans)
    }
}

fn read_profile(file: &mut Source<'_>, room: Room) -> Result<Profile, PlanError> {
    let mut rows = Vec::new();
    for _ in 0..u16::from_le_bytes(file.array("the number of tables")?) {
        let stage = u16::from_le_bytes(file.array("a table's stage")?);
        if stage >= limits::STAGES {
            return Err(damaged(&format!("it has a stage {stage}")));
        }
        let instruction: Instruction = file.text("a table's instruction")?.parse()?;
        let count = usize::from(u16::from_le_bytes(file.array("a table's length")?));
        if rows.len() + count > room.rows {
            return Err(damaged(&format!("its profile has more than {} rows", room.rows)));
        }
        let mut last = Mhz(0);
        for _ in 0..count {
            let frequency = Mhz(u32::from_le_bytes(file.array("a frequency")?));
            if !frequency.is_plausible() || frequency <= last {
                return Err(damaged(&format!("{frequency} follows {last}")));
            }
            last = frequency;
            let time_s = file.quantity("a time")?;
            let energy_j = file.quantity("an energy")?;
            rows.push((Stage(stage), instruction, Measurement { frequency, time_s, energy_j }));
        }
    }
    Profile::from_measurements(rows)
}

fn read_plans(
    file: &mut Source<'_>,
    pipeline: &Pipeline,
    room: Room,
) -> Result<Vec<Kept>, PlanError> {
    let network = pipeline.network();
    let count = u32::from_le_bytes(file.array("the number of plans")?) as usize;
    check_size(count, network.num_instructions(), room)
        .map_err(|limit| damaged(&format!("it has {count} plans, not {limit}")))?;
    let mut times_s = Vec::with_capacity(count);
    for _ in 0..count {
        times_s.push(file.quantity("a plan's time")?);
    }
    if !times_s.is_sorted() {
        return Err(damaged("its plans are not in order"));
    }
    let rows_of: Vec<usize> = network
        .stages
        .iter()
        .flatten()
        .map(|&index| &network.operations[index as usize])
        .map(|op| pipeline.profile().table(op.stage, op.instruction).len())
        .collect();

    let mut plans = Vec::with_capacity(count);
    for iteration_time_s in times_s {
        // Negative for a profile whose instructions draw less than waiting does.
        let iteration_energy_j = f64::from_le_bytes(file.array("a plan's energy")?);
        let point = Point { iteration_time_s, iteration_energy_j };
        plans.push(Kept { point, rows: Box::default() });
    }
    let mut rows: Box<[u8]> = vec![0; network.num_instructions()].into();
    let mut change = rows.clone();
    for (number, plan) in plans.iter_mut().enumerate() {
        file.fill(&mut change, "a plan")?;
        let mut fits = true;
        for ((row, &change), &rows) in rows.iter_mut().zip(&change).zip(&rows_of) {
            *row = row.wrapping_add(change);
            fits &= usize::from(*row) < rows;
        }
        if !fits {
            return Err(damaged(&format!(
                "plan {number} names a frequency that its profile lacks"
            )));
        }
        plan.rows.clone_from(&rows);
    }
    Ok(plans)
}

fn check_size(plans: usize, operations: usize, room: Room) -> Result<(), &'static str> {
    if plans == 0 || plans > limits::PLANS {
        return Err("between 1 and 100000");
    }
    if plans.saturating_mul(operations) > room.planned {
        return Err("as few as there is room for");
    }
    Ok(())
}

fn write_text(out: &mut impl Write, text: &str) -> std::io::Result<()> {
    // GPU names are bounded, the others are ours.
    out.write_all(&[text.len() as u8])?;
    out.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::bufread::GzDecoder;
    use proptest::prelude::*;

    use super::*;
    use crate::frontier::optimize::{Options, Spread};
    use crate::schedule::name::Schedule;
    use crate::test_profiles::{any_profile, unequal};

    fn frontier_of(profile: &Profile) -> Frontier {
        let pipeline = Pipeline::new(profile, Schedule::OneForwardOneBackward, 4).unwrap();
        let options = Options { plans: 20, spread: Spread::Useful };
        let mut frontier = Frontier::optimize(&pipeline, Watts(80.5), options, &|_| {}).unwrap();
        frontier.gpu = Some("A100".to_owned());
        frontier
    }

    fn assert_same(read: &Frontier, written: &Frontier) {
        assert_eq!(read.plans, written.plans);
        assert_eq!(read.gpu, written.gpu);
        assert_eq!(read.p2p_power, written.p2p_power);
        assert_eq!(read.pipeline.profile(), written.pipeline.profile());
        assert_eq!(read.plan(0).unwrap(), written.plan(0).unwrap());
    }

    fn refused(bytes: &[u8]) -> String {
        Frontier::from_bytes(bytes).unwrap_err().to_string()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn what_is_written_is_read_back(profile in any_profile(3, 5)) {
            let frontier = frontier_of(&profile);
            assert_same(&Frontier::from_bytes(&frontier.to_bytes().unwrap()).unwrap(), &frontier);
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = frontier_of(&unequal()).to_bytes().unwrap();
        for end in 0..bytes.len() {
            let message = refused(&bytes[..end]);
            assert!(message.contains("damaged") || message.contains("not a frontier"), "{message}");
        }
    }

    #[test]
    fn a_changed_byte_is_refused_or_says_nothing() {
        // Gzip's time stamp and the bits that pad its last block can be anything.
        let frontier = frontier_of(&unequal());
        let bytes = frontier.to_bytes().unwrap();
        let mut harmless = 0;
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 0x10;
            if let Ok(read) = Frontier::from_bytes(&changed) {
                assert_same(&read, &frontier);
                harmless += 1;
            }
        }
        assert!(harmless < 10, "{harmless}");
    }

    #[test]
    fn more_bytes_than_there_should_be_are_refused() {
        let mut bytes = frontier_of(&unequal()).to_bytes().unwrap();
        bytes.push(0);
        assert!(refused(&bytes).contains("more after its last plan"));
    }

    #[test]
    fn another_file_and_another_version_are_called_that() {
        assert!(refused(b"stage,instruction,frequency,time,energy").contains("stage,instruct"));
        let mut bytes = frontier_of(&unequal()).to_bytes().unwrap();
        bytes[MAGIC.len()] = 9;
        let message = refused(&bytes);
        assert!(message.contains("version 9") && message.contains("versions 4 to 5"), "{message}");
    }

    #[test]
    fn a_file_of_the_version_before_is_read_as_one_without_a_set_call() {
        let frontier = frontier_of(&unequal());
        let bytes = frontier.to_bytes().unwrap();
        let mut content = Vec::new();
        let stream = &bytes[MAGIC.len() + 2..];
        GzDecoder::new(stream).read_to_end(&mut content).unwrap();
        // After both names, the number of microbatches, the power and the other delays.
        let place = 2 + frontier.pipeline().schedule().name().len() + 4 + 3 * 8;
        content.drain(place..place + 8);
        let mut before = [MAGIC.as_slice(), &WITHOUT_SET_CALL.to_le_bytes()].concat();
        let mut out = GzEncoder::new(&mut before, Compression::default());
        out.write_all(&content).unwrap();
        out.finish().unwrap();
        assert_same(&Frontier::from_bytes(&before).unwrap(), &frontier);
    }

    #[test]
    fn a_frontier_is_refused_where_there_is_no_room_for_one_part_of_it() {
        let frontier = frontier_of(&unequal());
        let bytes = frontier.to_bytes().unwrap();
        let instructions = frontier.plan(0).unwrap().num_instructions();
        let enough = Room {
            instructions,
            rows: frontier.pipeline.profile().rows().count(),
            planned: instructions * frontier.plans.len(),
        };
        assert!(Frontier::from_bytes_within(&bytes, enough).is_ok());
        let less = [
            (Room { instructions: instructions - 1, ..enough }, "instructions"),
            (Room { rows: enough.rows - 1, ..enough }, "rows"),
            (Room { planned: enough.planned - 1, ..enough }, "plans"),
        ];
        for (room, what) in less {
            let refusal = Frontier::from_bytes_within(&bytes, room).unwrap_err().to_string();
            assert!(refusal.contains(what), "{room:?}: {refusal}");
        }
    }

    #[test]
    fn a_file_that_claims_more_plans_than_there_can_be_is_refused_before_they_are_read() {
        let frontier = frontier_of(&unequal());
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        let mut many = frontier.clone();
        many.plans.truncate(1);
        let honest = many.to_bytes().unwrap();
        let mut content = Vec::new();
        GzDecoder::new(&honest[MAGIC.len() + 2..]).read_to_end(&mut content).unwrap();
        let count_at = content.len() - many.plans[0].rows.len() - 16 - 4;
        content[count_at..count_at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut stream = GzEncoder::new(bytes, Compression::default());
        stream.write_all(&content).unwrap();
        assert!(refused(&stream.finish().unwrap()).contains("4294967295 plans"));
    }
}
