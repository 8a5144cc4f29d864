//! What was measured for each part of a step, in a frontier file.

use std::collections::BTreeMap;
use std::io::{self, Write};

use pfo_vocabulary::{Chunk, Microbatch};

use crate::error::PlanError;
use crate::frontier::file::source::{Source, damaged};
use crate::frontier::file::{Room, read_rows, repeats, write_rows};
use crate::limits;
use crate::profile::Profile;
use crate::profile::parts::Part;

pub(super) fn write(out: &mut impl Write, profile: &Profile) -> io::Result<()> {
    let parts = profile.by_part();
    out.write_all(&(parts.len() as u16).to_le_bytes())?;
    for (part, own) in parts {
        out.write_all(&part.chunk.map_or(0, |chunk| chunk.0 + 1).to_le_bytes())?;
        out.write_all(&part.microbatch.map_or(0, |microbatch| microbatch.0 + 1).to_le_bytes())?;
        write_rows(out, own)?;
        repeats::write(out, own)?;
    }
    Ok(())
}

/// Those for which there is room.
pub(super) fn read(
    file: &mut Source<'_>,
    are_chunks: bool,
    mut room: Room,
) -> Result<BTreeMap<Part, Profile>, PlanError> {
    let mut parts = BTreeMap::new();
    let mut left = limits::PARTS;
    for _ in 0..u16::from_le_bytes(file.array("the number of parts")?) {
        let part = part(file, are_chunks)?;
        if !part.is_possible() || parts.contains_key(&part) {
            return Err(damaged(&format!("it has {part}, or twice")));
        }
        let rows = read_rows(file, room)?;
        room.rows -= rows.len();
        let repeated = repeats::read(file, room.repeats)?;
        room.repeats -= repeated.len();
        let own = repeats::noted(Profile::with_tables(rows), repeated)?;
        left = left
            .checked_sub(usize::from(own.num_stages()))
            .ok_or_else(|| damaged("it has too many parts that were measured apart"))?;
        parts.insert(part, own);
    }
    Ok(parts)
}

fn part(file: &mut Source<'_>, are_chunks: bool) -> Result<Part, PlanError> {
    let chunk = u16::from_le_bytes(file.array("a chunk")?);
    if are_chunks {
        return Ok(Part { chunk: Some(Chunk(chunk)), microbatch: None });
    }
    let microbatch = u32::from_le_bytes(file.array("a microbatch")?);
    Ok(Part {
        chunk: chunk.checked_sub(1).map(Chunk),
        microbatch: microbatch.checked_sub(1).map(Microbatch),
    })
}
