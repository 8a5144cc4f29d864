//! The frontier as a file: what is needed to show it and to export its plans.
//!
//! ```text
//! "pfo-frontier"  12 bytes
//! version         u16, 13; 12, which is written if there are none, has no payloads, 11 no latency by
//!                 clock, 10 no held up, no placement, no overlaps and no microbatches, 9 no
//!                 powers of stages, 8 no chunks, 7 no repeats, 6 no clock per and no site power, 5 no
//!                 wait power, 4 no set call either
//! gzip stream (its CRC finds damage) of
//!   gpu             u8 length, UTF-8; 0 if unknown
//!   schedule        u8 length, its name
//!   microbatches    u32
//!   P2P power       f64, W
//!   transfer time   f64, s; 0 if none
//!   switch latency  f64, s; 0 if none
//!   set call        f64, s; for how long a call blocks
//!   wait power      u16 points, 0 if waits have no clocks of their own, then each by rising clock:
//!                   MHz u32, f64 (W)
//!   clock per       u8 length, what has a clock of its own: instruction, kind, stage; empty if that
//!                   is not known or the plans are another planner's
//!   site power      f64, W for each GPU; 0 if it was not given
//!   repeats         u32 rows that were measured more than once, then each: stage u16, instruction (u8
//!                   length, name), MHz u32, count u32, standard deviation of time f64 (s) and of
//!                   energy f64 (J), -1 if unknown
//!   parts           u16 parts of a step that were measured apart, then each: its model chunk u16
//!                   and its microbatch u32, both plus 1 or 0 for all, then what was measured for
//!                   it: tables as below, and repeats as above
//!   powers          P2P and wait power of each stage, where stages differ
//!   held up         f64, s; for how long a change of clocks holds up transfers
//!   latencies       u8 points, 0 if all clocks take as long until they are in force, then each by rising
//!                   clock: MHz u32, f64 (s)
//!   placement       u8, of the model chunks: 0 loop, 1 V, 2 both ways
//!   overlaps        u32 instructions of two, then each: stage u16, then as in an order, and the
//!                   chunk u16 and microbatch u32 of its forward
//!   orders          stages u16, then for each the number of its instructions u32, then each:
//!                   instruction u8 (its place in the list of all), chunk u16, microbatch u32
//!   dependencies    u32 that do not follow from the rule, then each: the instruction that waits
//!                   (stage u16, then as in an order), the number of those that it waits for u32,
//!                   and those likewise
//!   tables          u16, then each: stage u16, instruction (u8 length, name), rows u16,
//!                   then each by rising clock: MHz u32, time f64 (s), energy f64 (J)
//!   payloads        u32 rows that have one, then each: stage u16, instruction (u8 length, name), MHz u32,
//!                   payload (u16 length, UTF-8)
//!   plans           u32, then all times f64 (s), all energies f64 (J), and for each plan one byte
//!                   per operation, stage by stage: its row's index minus that of the plan before
//! ```
//!
//! All numbers are little-endian. Neighbouring plans are alike, so nearly all bytes are 0 and a
//! frontier of 3,495 plans of 1,536 operations takes a few hundred kilobytes.

pub(crate) mod error;
mod order;
mod parts;
mod payloads;
mod powers;
mod repeats;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use pfo_vocabulary::{Instruction, Mhz, Stage, Watts};

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::frontier::clock_per::ClockPer;
use crate::frontier::{Frontier, Kept, Point};
use crate::limits;
use crate::pipeline::Pipeline;
use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::step::delays::{Delays, LatencyByClock};
use crate::waits::per_stage::PerStage;
use source::{Source, damaged, foreign};

const MAGIC: &[u8; 12] = b"pfo-frontier";
const VERSION: u16 = 13;

/// Versions before, which are read, too.
const WITHOUT_PAYLOADS: u16 = 12;
const WITHOUT_LATENCIES: u16 = 11;
const WITHOUT_OVERLAPS: u16 = 10;
const WITHOUT_STAGE_POWERS: u16 = 9;
const WITHOUT_CHUNKS: u16 = 8;
const WITHOUT_REPEATS: u16 = 7;
const WITHOUT_CLOCK_PER: u16 = 6;
const WITHOUT_WAIT_POWER: u16 = 5;
const WITHOUT_SET_CALL: u16 = 4;

/// The largest frontier that is read: a small file can claim to be huge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Instructions of a step. Each takes about 200 bytes.
    pub instructions: usize,
    /// Rows of the profile, and powers of waiting by clock. Each takes 24 bytes.
    pub rows: usize,
    /// Rows that were measured more than once, and 64 bytes each of payloads. Each takes about 110 bytes
    /// beside that.
    pub repeats: usize,
    /// Instructions of all plans together. Each takes a byte.
    pub planned: usize,
}

impl Default for Room {
    fn default() -> Self {
        let (rows, planned) = (4 << 20, 256 << 20);
        Self { instructions: limits::OPERATIONS, rows, repeats: rows, planned }
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
        let has_payloads = !self.pipeline.profile().payloads().is_empty();
        let version = if has_payloads { VERSION } else { WITHOUT_PAYLOADS };
        bytes.extend(version.to_le_bytes());
        self.write(gpu, GzEncoder::new(bytes, Compression::default()))
            .map_err(|error| damaged(&error.to_string()))
    }

    fn write(&self, gpu: &str, mut out: GzEncoder<Vec<u8>>) -> std::io::Result<Vec<u8>> {
        write_text(&mut out, gpu)?;
        write_text(&mut out, self.pipeline.schedule().name())?;
        out.write_all(&self.pipeline.num_microbatches().to_le_bytes())?;
        out.write_all(&self.p2p_power.mean().0.to_le_bytes())?;
        let delays = self.pipeline.network().delays;
        for seconds in [delays.transfer_time_s, delays.switch_latency_s, delays.set_call_s] {
            out.write_all(&seconds.to_le_bytes())?;
        }
        powers::write_common(&mut out, self.wait_power.as_ref())?;
        write_text(&mut out, self.clock_per.map_or("", ClockPer::name))?;
        out.write_all(&self.site_power.0.to_le_bytes())?;
        repeats::write(&mut out, self.pipeline.profile())?;
        parts::write(&mut out, self.pipeline.profile())?;
        powers::write(&mut out, &self.p2p_power, self.wait_power.as_ref())?;
        out.write_all(&delays.held_up_s.to_le_bytes())?;
        write_latencies(&mut out, delays.latency_by_clock.points())?;
        order::write(&mut out, self.pipeline.order())?;

        write_rows(&mut out, self.pipeline.profile())?;
        payloads::write(&mut out, self.pipeline.profile())?;

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
    pub fn from_bytes_within(bytes: &[u8], mut room: Room) -> Result<Self, PlanError> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            let start = String::from_utf8_lossy(&bytes[..bytes.len().min(16)]);
            return Err(foreign(format!("it begins with \"{}\"", excerpt(&start))));
        };
        let (version, stream) = version_of(rest)?;
        let mut file = Source::new(stream);
        let gpu = Some(file.text("the GPU's name")?).filter(|name| !name.is_empty());
        let schedule = file.text("the schedule")?.parse()?;
        let microbatches = u32::from_le_bytes(file.array("the number of microbatches")?);
        let p2p_power = powers::read_flat(&mut file)?;
        let delays = read_delays(&mut file, version)?;
        let wait_power = match version {
            WITHOUT_SET_CALL | WITHOUT_WAIT_POWER => None,
            _ => powers::read_by_clock(&mut file, &mut room)?,
        };
        let clock_per = match version {
            ..=WITHOUT_CLOCK_PER => None,
            _ => Some(file.text("what has a clock of its own")?).filter(|per| !per.is_empty()),
        };
        let clock_per = clock_per.map(|per| per.parse()).transpose()?;
        let site_power = match version {
            ..=WITHOUT_CLOCK_PER => 0.0,
            _ => f64::from_le_bytes(file.array("the site power")?),
        };
        let repeated = match version {
            ..=WITHOUT_REPEATS => Vec::new(),
            _ => repeats::read(&mut file, room.repeats)?,
        };
        room.repeats -= repeated.len();
        let parts = match version {
            ..=WITHOUT_CHUNKS => BTreeMap::new(),
            _ => parts::read(&mut file, version <= WITHOUT_OVERLAPS, room)?,
        };
        room.rows -= parts.values().map(Profile::num_rows).sum::<usize>();
        let (p2p_power, wait_power) = match version {
            ..=WITHOUT_STAGE_POWERS => (p2p_power.into(), wait_power.map(PerStage::from)),
            _ => powers::read(&mut file, p2p_power, wait_power, &mut room)?,
        };
        let delays = read_later_delays(&mut file, version, delays)?;
        let order = order::read(&mut file, version, (schedule, microbatches), room.instructions)?;
        let profile = Profile::from_measurements(read_rows(&mut file, room)?)?;
        let profile = repeats::noted(profile, repeated)?.with_parts(parts);
        let profile = profile.with_payloads(payloads::read(&mut file, version, room)?);
        let pipeline = Pipeline::of_order(&profile, schedule, order, delays)?;
        p2p_power.check(profile.num_stages())?;
        wait_power.iter().try_for_each(|power| power.check(profile.num_stages()))?;
        let plans = read_plans(&mut file, &pipeline, room)?;
        file.end()?;
        let frontier =
            Self::new(pipeline, p2p_power, gpu, plans)?.with_site_power(Watts(site_power));
        let frontier = frontier.map_err(|error| damaged(&error.to_string()))?;
        Ok(Self { wait_power, clock_per, ..frontier })
    }
}

/// The version, and what follows it.
fn version_of(rest: &[u8]) -> Result<(u16, &[u8]), PlanError> {
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
    Ok((version, stream))
}

fn read_delays(file: &mut Source<'_>, version: u16) -> Result<Delays, PlanError> {
    Ok(Delays {
        transfer_time_s: f64::from_le_bytes(file.array("the transfer time")?),
        switch_latency_s: f64::from_le_bytes(file.array("the switching latency")?),
        set_call_s: match version {
            WITHOUT_SET_CALL => 0.0,
            _ => f64::from_le_bytes(file.array("the time of a set call")?),
        },
        ..Delays::default()
    })
}

fn write_latencies(out: &mut impl Write, points: &[(Mhz, f64)]) -> std::io::Result<()> {
    out.write_all(&[points.len() as u8])?;
    for (clock, seconds) in points {
        out.write_all(&clock.0.to_le_bytes())?;
        out.write_all(&seconds.to_le_bytes())?;
    }
    Ok(())
}

fn read_latencies(file: &mut Source<'_>, version: u16) -> Result<LatencyByClock, PlanError> {
    let what = "the latency of clocks";
    let [points] = match version {
        ..=WITHOUT_LATENCIES => [0],
        _ => file.array(what)?,
    };
    let point = |_| {
        let clock = Mhz(u32::from_le_bytes(file.array(what)?));
        Ok((clock, f64::from_le_bytes(file.array(what)?)))
    };
    (0..points).map(point).collect()
}

/// The delays that later versions have added.
fn read_later_delays(
    file: &mut Source<'_>,
    version: u16,
    delays: Delays,
) -> Result<Delays, PlanError> {
    let held_up_s = match version {
        ..=WITHOUT_OVERLAPS => 0.0,
        _ => f64::from_le_bytes(file.array("the time for which changes hold up transfers")?),
    };
    Ok(Delays { held_up_s, latency_by_clock: read_latencies(file, version)?, ..delays })
}

fn write_rows(out: &mut impl Write, profile: &Profile) -> std::io::Result<()> {
    let rows: Vec<_> = profile.rows().collect();
    let tables: Vec<_> = rows.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).collect();
    out.write_all(&(tables.len() as u16).to_le_bytes())?;
    for table in tables {
        let (stage, instruction, _) = table[0];
        out.write_all(&stage.0.to_le_bytes())?;
        write_text(out, instruction.name())?;
        out.write_all(&(table.len() as u16).to_le_bytes())?;
        for (_, _, row) in table {
            out.write_all(&row.frequency.0.to_le_bytes())?;
            out.write_all(&row.time_s.to_le_bytes())?;
            out.write_all(&row.energy_j.to_le_bytes())?;
        }
    }
    Ok(())
}

fn read_rows(
    file: &mut Source<'_>,
    room: Room,
) -> Result<Vec<(Stage, Instruction, Measurement)>, PlanError> {
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
    Ok(rows)
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
        .map(|op| pipeline.profile().part_table(op.stage, op.instruction, op.part()).len())
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
