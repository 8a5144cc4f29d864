//! The order of a step in a frontier file, written out, so that reading it does not require its
//! schedule.

use std::io::{self, Write};

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Stage, Unit};

use super::WITHOUT_OVERLAPS;
use super::source::{Source, damaged};
use crate::error::PlanError;
use crate::limits;
use crate::schedule::name::Schedule;
use crate::step::dependencies::{Dependency, StageUnit, check_dependencies};
use crate::step::order::{Order, StageOrder, check_order};
use crate::step::overlap::{OverlappedForward, Overlaps};
use crate::step::placement::Placement;

pub(super) fn write(out: &mut impl Write, order: &Order) -> io::Result<()> {
    out.write_all(&[order.placement as u8])?;
    out.write_all(&(order.overlaps.len() as u32).to_le_bytes())?;
    let overlapped = order.units().filter_map(|unit| Some((unit, order.overlaps.get(&unit)?)));
    for (unit, forward) in overlapped {
        write_stage_unit(out, &unit)?;
        out.write_all(&forward.chunk.0.to_le_bytes())?;
        out.write_all(&forward.microbatch.0.to_le_bytes())?;
    }
    out.write_all(&(order.stages.len() as u16).to_le_bytes())?;
    for stage in &order.stages {
        out.write_all(&(stage.len() as u32).to_le_bytes())?;
        for unit in stage {
            write_unit(out, unit)?;
        }
    }
    out.write_all(&(order.dependencies.len() as u32).to_le_bytes())?;
    for Dependency { of, after } in &order.dependencies {
        write_stage_unit(out, of)?;
        out.write_all(&(after.len() as u32).to_le_bytes())?;
        for unit in after {
            write_stage_unit(out, unit)?;
        }
    }
    Ok(())
}

fn write_unit(out: &mut impl Write, unit: &Unit) -> io::Result<()> {
    out.write_all(&[unit.instruction as u8])?;
    out.write_all(&unit.chunk.0.to_le_bytes())?;
    out.write_all(&unit.microbatch.0.to_le_bytes())
}

fn write_stage_unit(out: &mut impl Write, unit: &StageUnit) -> io::Result<()> {
    out.write_all(&unit.stage.0.to_le_bytes())?;
    write_unit(out, &unit.unit())
}

/// An order of at most this many instructions.
pub(super) fn read(
    file: &mut Source<'_>,
    version: u16,
    (schedule, num_microbatches): (Schedule, u32),
    most_instructions: usize,
) -> Result<Order, PlanError> {
    if !(1..=limits::MICROBATCHES).contains(&num_microbatches) {
        return Err(damaged(&format!("it is for {num_microbatches} microbatches")));
    }
    let (placement, overlaps) = match version {
        ..=WITHOUT_OVERLAPS => (schedule.placement(), Overlaps::new()),
        _ => (placement(file)?, overlaps(file, most_instructions)?),
    };
    let num_stages = u16::from_le_bytes(file.array("the number of stages")?);
    let mut order = Order { overlaps, ..Order::plain(Vec::new(), num_microbatches, placement) };
    let mut left = most_instructions;
    for stage in (0..num_stages.min(limits::STAGES)).map(Stage) {
        let length = u32::from_le_bytes(file.array("an order's length")?) as usize;
        left = left
            .checked_sub(length)
            .ok_or_else(|| damaged(&format!("stage {stage} has {length} instructions")))?;
        let mut units = StageOrder::new();
        for _ in 0..length {
            units.push(unit(file)?);
        }
        let run = units.iter().map(|&unit| (unit, order.overlapped(stage, unit)));
        check_order(run, num_microbatches, placement)
            .map_err(|wrong| damaged(&format!("stage {stage}: {}", wrong.problem)))?;
        order.stages.push(units);
    }
    let run = order.units().filter(|unit| order.overlaps.contains_key(unit)).count();
    if run < order.overlaps.len() {
        return Err(damaged("it has an instruction of two that no stage runs"));
    }
    order.dependencies = dependencies(file, most_instructions)?;
    check_dependencies(order.units(), &order.dependencies)
        .map_err(|bad| damaged(&format!("dependency {}: {}", bad.number, bad.problem)))?;
    Ok(order)
}

fn placement(file: &mut Source<'_>) -> Result<Placement, PlanError> {
    let [number] = file.array("the placement")?;
    let known = Placement::ALL.get(usize::from(number)).copied();
    known.ok_or_else(|| damaged(&format!("it has a placement {number}")))
}

fn overlaps(file: &mut Source<'_>, most: usize) -> Result<Overlaps, PlanError> {
    let count = u32::from_le_bytes(file.array("the number of instructions of two")?) as usize;
    if count > most {
        return Err(damaged(&format!("it has {count} instructions of two")));
    }
    let mut overlaps = Overlaps::new();
    for _ in 0..count {
        let unit = stage_unit(file)?;
        let chunk = Chunk(u16::from_le_bytes(file.array("a forward's chunk")?));
        let microbatch = Microbatch(u32::from_le_bytes(file.array("a forward's microbatch")?));
        if overlaps.insert(unit, OverlappedForward { microbatch, chunk }).is_some() {
            return Err(damaged(&format!("it has the forward of {unit} twice")));
        }
    }
    Ok(overlaps)
}

fn dependencies(file: &mut Source<'_>, most: usize) -> Result<Vec<Dependency>, PlanError> {
    let mut left = limits::DEPENDENCIES.min(most.saturating_mul(4));
    let mut dependencies = Vec::new();
    for number in 0..u32::from_le_bytes(file.array("the number of dependencies")?) {
        let of = stage_unit(file)?;
        let length = u32::from_le_bytes(file.array("a dependency's length")?) as usize;
        left = left
            .checked_sub(1 + length)
            .ok_or_else(|| damaged(&format!("dependency {number} names {length}")))?;
        let mut after = Vec::new();
        for _ in 0..length {
            after.push(stage_unit(file)?);
        }
        dependencies.push(Dependency { of, after });
    }
    Ok(dependencies)
}

fn stage_unit(file: &mut Source<'_>) -> Result<StageUnit, PlanError> {
    let stage = Stage(u16::from_le_bytes(file.array("an instruction's stage")?));
    Ok(StageUnit::new(stage, unit(file)?))
}

fn unit(file: &mut Source<'_>) -> Result<Unit, PlanError> {
    let [instruction] = file.array("an instruction")?;
    let chunk = Chunk(u16::from_le_bytes(file.array("a chunk")?));
    let microbatch = Microbatch(u32::from_le_bytes(file.array("a microbatch")?));
    let instruction = *Instruction::ALL
        .get(usize::from(instruction))
        .ok_or_else(|| damaged(&format!("it has an instruction {instruction}")))?;
    Ok(Unit { instruction, microbatch, chunk })
}
