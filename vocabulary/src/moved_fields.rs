//! How drivers number their fields.

/// The first driver, by branch and minor version, that numbers 23 fields otherwise than those before it:
/// `nvml.h` of CUDA 13.0 and of its Update 1 differ in them.
const MOVED: (u32, u32) = (580, 82);

/// Whether a driver of that version has other numbers for the counters of heat than older ones.
#[must_use]
pub fn has_moved_fields(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= MOVED
}

#[cfg(test)]
mod tests {
    use super::has_moved_fields;

    #[test]
    fn fields_have_moved_since_580_82() {
        let versions = ["", "570.86.15", "580.65.06", "580.82.07", "580.126.09", "590.01.01"];
        assert_eq!(versions.map(has_moved_fields), [false, false, false, true, true, true]);
    }
}
