//! The payloads of rows, in a frontier file.

use std::io::{self, Write};

use pfo_vocabulary::{Instruction, Mhz, Stage};

use crate::error::PlanError;
use crate::frontier::file::source::{Source, damaged};
use crate::frontier::file::{Room, WITHOUT_PAYLOADS};
use crate::payload::layout::Layout;
use crate::payload::{Payload, Payloads};
use crate::profile::Profile;

/// Bytes of a payload for which a frontier must have room for one more row.
const BYTES_OF_ROW: usize = 64;

/// All of them; nothing if there are none.
pub(super) fn write(out: &mut impl Write, profile: &Profile) -> io::Result<()> {
    let payloads = profile.payloads();
    if payloads.is_empty() {
        return Ok(());
    }
    out.write_all(&(payloads.len() as u32).to_le_bytes())?;
    for ((stage, instruction, clock), payload) in payloads {
        out.write_all(&stage.0.to_le_bytes())?;
        super::write_text(out, instruction.name())?;
        out.write_all(&clock.0.to_le_bytes())?;
        out.write_all(&(payload.as_str().len() as u16).to_le_bytes())?;
        out.write_all(payload.as_str().as_bytes())?;
    }
    Ok(())
}

/// Those for which there is room; none of a version without.
pub(super) fn read(
    file: &mut Source<'_>,
    version: u16,
    mut room: Room,
) -> Result<Payloads, PlanError> {
    let mut payloads = Payloads::new();
    if version <= WITHOUT_PAYLOADS {
        return Ok(payloads);
    }
    for _ in 0..u32::from_le_bytes(file.array("the number of payloads")?) {
        let stage = Stage(u16::from_le_bytes(file.array("a payload's stage")?));
        let instruction: Instruction = file.text("a payload's instruction")?.parse()?;
        let clock = Mhz(u32::from_le_bytes(file.array("a payload's clock")?));
        let length = usize::from(u16::from_le_bytes(file.array("a payload's length")?));
        let takes = 1 + length / BYTES_OF_ROW;
        if length > Payload::MAX_BYTES || takes > room.repeats {
            return Err(damaged("its payloads are too long"));
        }
        room.repeats -= takes;
        let mut bytes = vec![0; length];
        file.fill(&mut bytes, "a payload")?;
        let text = String::from_utf8(bytes).map_err(|_| damaged("a payload is not text"))?;
        let payload = Payload::try_from(text).map_err(|error| damaged(&error.to_string()))?;
        payloads.insert((stage, instruction, clock), payload);
    }
    let all = payloads.iter().map(|(&(_, instruction, _), payload)| (instruction, payload));
    match Layout::of(&all) {
        Some(_) => Ok(payloads),
        None => Err(damaged("its payloads have no common form")),
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// What is read of one payload of a forward that claims this length, with room for so many rows.
    fn of(text: &[u8], length: u16, repeats: usize) -> Result<Payloads, PlanError> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let (clock, length) = (1200_u32.to_le_bytes(), length.to_le_bytes());
        for part in
            [&1_u32.to_le_bytes()[..], &[0, 0, 7], b"forward", &clock[..], &length[..], text]
        {
            gzip.write_all(part).unwrap();
        }
        let room = Room { repeats, ..Room::default() };
        read(&mut Source::new(&gzip.finish().unwrap()), WITHOUT_PAYLOADS + 1, room)
    }

    #[test]
    fn payloads_that_cannot_be_are_damage() {
        assert_eq!(of(b"a,b", 3, 1).unwrap().len(), 1);
        let long = [b'x'; 600];
        for (text, length, repeats, what) in [
            (&b"a,b"[..], 9, 1, "cannot read a payload"),
            (b"a,b", 3, 0, "too long"),
            (&long, 512, 8, "too long"),
            (&long, 600, 1000, "too long"),
            (b"a,b,c", 5, 1, "no common form"),
            (b"a,\n", 3, 1, "one line"),
            (b"a,\xff", 3, 1, "not text"),
        ] {
            let error = of(text, length, repeats).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
