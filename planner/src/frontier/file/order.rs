//! The order of a step in a frontier file, written out, so that reading it does not require its
//! schedule.

use std::io::{self, Write};

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Stage, Unit};

use super::source::{Source, damaged};
use crate::error::PlanError;
use crate::limits;
use crate::step::dependencies::{Dependency, StageUnit, check_dependencies};
use crate::step::order::StageOrder;
use crate::step::order::{Order, check_order};

pub(super) fn write(out: &mut impl Write, order: &Order) -> io::Result<()> {
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

pub(super) fn read(
    file: &mut Source<'_>,
    num_microbatches: u32,
    most_instructions: usize,
) -> Result<Order, PlanError> {
    if !(1..=limits::MICROBATCHES).contains(&num_microbatches) {
        return Err(damaged(&format!("it is for {num_microbatches} microbatches")));
    }
    let num_stages = u16::from_le_bytes(file.array("the number of stages")?);
    let mut stages = Vec::new();
    let mut left = most_instructions;
    for stage in 0..num_stages.min(limits::STAGES) {
        let length = u32::from_le_bytes(file.array("an order's length")?) as usize;
        left = left
            .checked_sub(length)
            .ok_or_else(|| damaged(&format!("stage {stage} has {length} instructions")))?;
        let mut order = StageOrder::new();
        for _ in 0..length {
            order.push(unit(file)?);
        }
        check_order(order.iter().copied(), num_microbatches)
            .map_err(|wrong| damaged(&format!("stage {stage}: {}", wrong.problem)))?;
        stages.push(order);
    }
    let order =
        Order { stages, num_microbatches, dependencies: dependencies(file, most_instructions)? };
    check_dependencies(order.units(), &order.dependencies)
        .map_err(|bad| damaged(&format!("dependency {}: {}", bad.number, bad.problem)))?;
    Ok(order)
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
