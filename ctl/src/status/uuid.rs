//! A GPU's UUID, as short as it can be and still name one GPU of this node.

use pfo_protocol::{GpuStatus, GpuUuid};

/// `GPU-` and eight digits, as `git` would: enough nearly always, and easy to find again.
const SHORTEST: usize = 12;

/// The shortest beginning of `uuid` that no other GPU's begins with, or the shortest end that no
/// other's ends with where that is shorter (simulated GPUs may differ only there).
pub(crate) fn short(uuid: &GpuUuid, gpus: &[GpuStatus]) -> String {
    let text = uuid.as_str();
    let others = || gpus.iter().map(|gpu| gpu.uuid.as_str()).filter(|other| *other != text);
    // A UUID is ASCII, so that every index is a boundary.
    let start = (SHORTEST..text.len())
        .find(|&end| !others().any(|other| other.starts_with(&text[..end])))
        .unwrap_or(text.len());
    let end = (8..text.len())
        .find(|&length| !others().any(|other| other.ends_with(&text[text.len() - length..])))
        .unwrap_or(text.len());
    if start <= SHORTEST + 4 || start <= end {
        text[..start].trim_end_matches('-').to_owned()
    } else {
        format!("…{}", &text[text.len() - end..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortened(uuids: &[&str]) -> Vec<String> {
        let gpus: Vec<GpuStatus> = uuids
            .iter()
            .map(|uuid| GpuStatus {
                index: 0,
                uuid: uuid.parse().unwrap(),
                pci_bus_id: "00000000:07:00.0".parse().unwrap(),
                model: String::new(),
                mig: false,
                requested_mhz: None,
                observed_mhz: None,
                memory_locked_mhz: None,
                power_w: None,
                power_limit_w: None,
                holder: None,
                problem: None,
                leased: false,
                driver_use: Default::default(),
                throttle_reasons: 0,
                temperature_c: None,
                minor: None,
                meter: None,
            })
            .collect();
        gpus.iter().map(|gpu| short(&gpu.uuid, &gpus)).collect()
    }

    #[test]
    fn eight_digits_are_shown_where_they_are_enough() {
        let uuids = [
            "GPU-6f2c11aa-0000-0000-0000-000000000000",
            "GPU-77aa11aa-0000-0000-0000-000000000000",
        ];
        assert_eq!(shortened(&uuids), ["GPU-6f2c11aa", "GPU-77aa11aa"]);
    }

    #[test]
    fn gpus_that_differ_only_at_the_end_are_shown_by_their_ends() {
        let uuids = [
            "GPU-00000000-0000-0000-0000-000000000001",
            "GPU-00000000-0000-0000-0000-000000000002",
        ];
        assert_eq!(shortened(&uuids), ["…00000001", "…00000002"]);
    }

    #[test]
    fn a_uuid_shorter_than_usual_is_shown_whole() {
        assert_eq!(shortened(&["GPU-a", "GPU-b"]), ["GPU-a", "GPU-b"]);
    }
}
