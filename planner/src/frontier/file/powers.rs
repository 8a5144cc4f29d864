//! What waiting draws: of all stages, or of each.

use std::io::Write;

use pfo_vocabulary::{Mhz, Watts};

use crate::error::PlanError;
use crate::frontier::file::Room;
use crate::frontier::file::source::{Source, damaged};
use crate::waits::per_stage::PerStage;
use crate::waits::power::PowerByClock;

type Waiting = (PerStage<Watts>, Option<PerStage<PowerByClock>>);

/// The power by clock that all stages have.
pub(super) fn write_common(
    out: &mut impl Write,
    by_clock: Option<&PerStage<PowerByClock>>,
) -> std::io::Result<()> {
    let points = by_clock.and_then(PerStage::common).map_or(&[][..], PowerByClock::points);
    write_points(out, points)
}

/// The powers of each stage; none where all have the same.
pub(super) fn write(
    out: &mut impl Write,
    flat: &PerStage<Watts>,
    by_clock: Option<&PerStage<PowerByClock>>,
) -> std::io::Result<()> {
    let flat = flat.differing().unwrap_or_default();
    out.write_all(&(flat.len() as u16).to_le_bytes())?;
    for power in flat {
        out.write_all(&power.0.to_le_bytes())?;
    }
    let by_clock = by_clock.and_then(PerStage::differing).unwrap_or_default();
    out.write_all(&(by_clock.len() as u16).to_le_bytes())?;
    by_clock.iter().try_for_each(|power| write_points(out, power.points()))
}

fn write_points(out: &mut impl Write, points: &[(Mhz, Watts)]) -> std::io::Result<()> {
    out.write_all(&(points.len() as u16).to_le_bytes())?;
    for (clock, power) in points {
        out.write_all(&clock.0.to_le_bytes())?;
        out.write_all(&power.0.to_le_bytes())?;
    }
    Ok(())
}

/// Reads what [`write`] wrote; where that is nothing, all stages have the given powers. What is read
/// by clock takes of the room.
pub(super) fn read(
    file: &mut Source<'_>,
    flat: Watts,
    by_clock: Option<PowerByClock>,
    room: &mut Room,
) -> Result<Waiting, PlanError> {
    let mut of_stages = Vec::new();
    for _ in 0..u16::from_le_bytes(file.array("the number of P2P-blocking powers")?) {
        of_stages.push(read_flat(file)?);
    }
    let mut by_clock_of_stages = Vec::new();
    for _ in 0..u16::from_le_bytes(file.array("the number of powers by clock")?) {
        let power = read_by_clock(file, room)?;
        by_clock_of_stages.push(power.ok_or_else(|| damaged("a stage has no power by clock"))?);
    }
    // There are none where all stages have the same.
    let flat = PerStage::new(of_stages).unwrap_or_else(|_| flat.into());
    let by_clock = PerStage::new(by_clock_of_stages).ok().or(by_clock.map(PerStage::from));
    Ok((flat, by_clock))
}

pub(super) fn read_flat(file: &mut Source<'_>) -> Result<Watts, PlanError> {
    let power = Watts(f64::from_le_bytes(file.array("the P2P-blocking power")?));
    match power.0.is_finite() && power.0 >= 0.0 {
        true => Ok(power),
        false => Err(damaged(&format!("the P2P-blocking power is {power}"))),
    }
}

pub(super) fn read_by_clock(
    file: &mut Source<'_>,
    room: &mut Room,
) -> Result<Option<PowerByClock>, PlanError> {
    let count = u16::from_le_bytes(file.array("the number of powers of waiting")?);
    let Some(left) = room.rows.checked_sub(count.into()) else {
        return Err(damaged(&format!("{count} powers of waiting, of at most {}", room.rows)));
    };
    room.rows = left;
    let mut points = Vec::new();
    for _ in 0..count {
        let clock = Mhz(u32::from_le_bytes(file.array("a clock of waiting")?));
        points.push((clock, Watts(f64::from_le_bytes(file.array("a power of waiting")?))));
    }
    let power = || PowerByClock::new(points.iter().copied());
    let power = (!points.is_empty()).then(power).transpose();
    power.map_err(|error| damaged(&error.to_string()))
}
