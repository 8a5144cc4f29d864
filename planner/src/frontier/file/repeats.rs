//! How often rows were measured, in a frontier file.

use std::io::{self, Write};

use pfo_vocabulary::{Instruction, Mhz, Stage};

use crate::error::PlanError;
use crate::frontier::file::source::{Source, damaged};
use crate::profile::Profile;
use crate::profile::repeats::Repeats;

/// What stands for a deviation that is not known.
const UNKNOWN: f64 = -1.0;

/// Those of the rows that were measured more than once.
pub(super) fn write(out: &mut impl Write, profile: &Profile) -> io::Result<()> {
    let repeated: Vec<_> = profile.repeated().collect();
    out.write_all(&(repeated.len() as u32).to_le_bytes())?;
    for ((stage, instruction, clock), Repeats { count, time_sd_s, energy_sd_j }) in repeated {
        out.write_all(&stage.0.to_le_bytes())?;
        super::write_text(out, instruction.name())?;
        out.write_all(&clock.0.to_le_bytes())?;
        out.write_all(&count.to_le_bytes())?;
        for deviation in [time_sd_s, energy_sd_j] {
            out.write_all(&deviation.unwrap_or(UNKNOWN).to_le_bytes())?;
        }
    }
    Ok(())
}

/// Those of at most this many rows.
pub(super) fn read(file: &mut Source<'_>, most: usize) -> Result<Vec<Repeated>, PlanError> {
    let count = u32::from_le_bytes(file.array("the number of repeated rows")?) as usize;
    if count > most {
        return Err(damaged(&format!("{count} rows were measured more than once, of {most}")));
    }
    let mut repeated = Vec::new();
    for _ in 0..count {
        let stage = Stage(u16::from_le_bytes(file.array("a repeated row's stage")?));
        let instruction = file.text("a repeated row's instruction")?.parse()?;
        let clock = Mhz(u32::from_le_bytes(file.array("a repeated row's clock")?));
        let count = u32::from_le_bytes(file.array("a number of repeats")?);
        if count == 0 {
            return Err(damaged("a row was measured 0 times"));
        }
        let mut deviation = || -> Result<Option<f64>, PlanError> {
            let value = f64::from_le_bytes(file.array("a deviation")?);
            match value {
                UNKNOWN => Ok(None),
                0.0..f64::INFINITY => Ok(Some(value)),
                _ => Err(damaged(&format!("a deviation is {value}"))),
            }
        };
        let (time_sd_s, energy_sd_j) = (deviation()?, deviation()?);
        repeated.push(((stage, instruction, clock), Repeats { count, time_sd_s, energy_sd_j }));
    }
    Ok(repeated)
}

/// A row's place, and how often it was measured.
pub(super) type Repeated = ((Stage, Instruction, Mhz), Repeats);

/// A profile, those rows of which that are named were measured more than once.
///
/// # Errors
/// If one of these is not among the rows.
pub(super) fn noted(mut profile: Profile, repeated: Vec<Repeated>) -> Result<Profile, PlanError> {
    for (of, repeats) in repeated {
        if !profile.set_repeats(of, repeats) {
            let (stage, instruction, clock) = of;
            return Err(damaged(&format!("stage {stage} has no {instruction} at {clock}")));
        }
    }
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// What is read of a row that was measured so often, with this deviation of its time.
    fn of(count: u32, time_sd_s: f64) -> Result<Vec<Repeated>, PlanError> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let clock = 1200_u32.to_le_bytes();
        for part in [&1_u32.to_le_bytes()[..], &[0, 0, 7], b"forward", &clock, &count.to_le_bytes()]
        {
            gzip.write_all(part).unwrap();
        }
        gzip.write_all(&[time_sd_s, 1.0].map(f64::to_le_bytes).concat()).unwrap();
        read(&mut Source::new(&gzip.finish().unwrap()), 1)
    }

    #[test]
    fn repeats_that_cannot_be_are_damage() {
        assert_eq!(of(2, 0.1).unwrap()[0].1.time_sd_s, Some(0.1));
        assert_eq!(of(2, UNKNOWN).unwrap()[0].1.time_sd_s, None);
        for (count, time_sd_s, what) in
            [(0, 0.1, "measured 0 times"), (2, f64::NAN, "NaN"), (2, -0.5, "-0.5")]
        {
            let error = of(count, time_sd_s).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
