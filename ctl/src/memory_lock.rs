//! What a lock of the memory clock does to the steps of a job, in words.

use pfo_protocol::{MemoryLock, ShareMore};

/// The sentence under a calibration.
pub(crate) fn sentence(lock: &MemoryLock) -> String {
    let energy = lock.energy.map_or("an unknown energy".to_owned(), |more| {
        format!("{} energy", in_percent(more, "more", "less"))
    });
    let verdict = match harms(lock) {
        Some(true) => ": the lock harms",
        Some(false) => ": the lock helps",
        None => "",
    };
    let time = in_percent(lock.time, "longer", "shorter");
    format!("With the memory clock locked, steps take {time} and {energy}{verdict}.\n")
}

/// Whether steps take longer with the lock or, where they take as long, more energy; none if neither is sure.
pub(crate) fn harms(lock: &MemoryLock) -> Option<bool> {
    let of_time = Some(lock.time).filter(ShareMore::is_sure);
    let sure = of_time.or(lock.energy.filter(ShareMore::is_sure))?;
    Some(sure.share > 0.0)
}

fn in_percent(more: ShareMore, above: &str, below: &str) -> String {
    let ShareMore { share, error } = more;
    let word = if share < 0.0 { below } else { above };
    format!("{:.2} % (± {:.2}) {word}", 100.0 * share.abs(), 200.0 * error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(time: f64, energy: Option<f64>) -> MemoryLock {
        let more = |share| ShareMore { share, error: 0.001 };
        MemoryLock { time: more(time), energy: energy.map(more) }
    }

    #[test]
    fn time_decides_and_energy_where_time_does_not() {
        assert_eq!(harms(&lock(0.1, Some(-0.1))), Some(true));
        assert_eq!(harms(&lock(-0.01, Some(0.1))), Some(false));
        assert_eq!(harms(&lock(0.001, Some(0.03))), Some(true));
        assert_eq!(harms(&lock(0.001, Some(0.001))), None);
        assert_eq!(harms(&lock(0.001, None)), None);
    }

    #[test]
    fn the_sentence_has_both_with_twice_their_standard_errors() {
        assert_eq!(
            sentence(&lock(0.16, Some(-0.02))),
            "With the memory clock locked, steps take 16.00 % (± 0.20) longer and 2.00 % (± 0.20) less \
             energy: the lock harms.\n"
        );
        assert_eq!(
            sentence(&lock(-0.001, None)),
            "With the memory clock locked, steps take 0.10 % (± 0.20) shorter and an unknown energy.\n"
        );
    }
}
