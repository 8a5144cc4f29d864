//! What was measured for each model chunk, in a frontier file.

use std::collections::BTreeMap;
use std::io::{self, Write};

use pfo_vocabulary::Chunk;

use crate::error::PlanError;
use crate::frontier::file::source::{Source, damaged};
use crate::frontier::file::{Room, read_rows, repeats, write_rows};
use crate::profile::Profile;

pub(super) fn write(out: &mut impl Write, profile: &Profile) -> io::Result<()> {
    let chunks = profile.by_chunk();
    out.write_all(&(chunks.len() as u16).to_le_bytes())?;
    for (chunk, own) in chunks {
        out.write_all(&chunk.0.to_le_bytes())?;
        write_rows(out, own)?;
        repeats::write(out, own)?;
    }
    Ok(())
}

/// Those for which there is room.
pub(super) fn read(
    file: &mut Source<'_>,
    mut room: Room,
) -> Result<BTreeMap<Chunk, Profile>, PlanError> {
    let mut chunks = BTreeMap::new();
    for _ in 0..u16::from_le_bytes(file.array("the number of chunks")?) {
        let chunk = Chunk(u16::from_le_bytes(file.array("a chunk")?));
        if chunk.0 >= Chunk::MAX_CHUNKS || chunks.contains_key(&chunk) {
            return Err(damaged(&format!("it has a chunk {chunk}, or twice")));
        }
        let rows = read_rows(file, room)?;
        room.rows -= rows.len();
        let repeated = repeats::read(file, room.repeats)?;
        room.repeats -= repeated.len();
        chunks.insert(chunk, repeats::noted(Profile::with_tables(rows), repeated)?);
    }
    Ok(chunks)
}
