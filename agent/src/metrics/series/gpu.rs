//! Series of GPUs, leased or not.

use std::fmt;

use pfo_protocol::{GpuStatus, Mhz};

use super::{Known, Sink, Subject, flag, gauge, info, text};

/// NVML's bits for why a clock is lower than requested. Their names are those of the fields of
/// `ThrottledNs`, where they have a counter.
const REASONS: [(u64, &str); 7] = [
    (0x04, "sw_power_cap"),
    (0x08, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal"),
    (0x40, "hw_thermal"),
    (0x80, "hw_power_brake"),
    (0x100, "display_clocks"),
];

/// Any bit that has no name here.
const OTHER: &str = "other";

/// A GPU and the version of its driver.
struct Described<'a> {
    gpu: &'a GpuStatus,
    driver: Option<&'a str>,
}

/// Calls of one kind to the driver of a GPU.
struct Calls<'a> {
    gpu: &'a GpuStatus,
    kind: &'static str,
    per_s: f64,
    share: f64,
}

/// A reason that keeps the clock of a GPU down.
struct Throttle<'a> {
    gpu: &'a GpuStatus,
    reason: &'static str,
}

pub(super) fn series(known: &Known, sink: &mut impl Sink) -> fmt::Result {
    let driver = known.node.as_ref().and_then(|node| node.daemon.driver.as_deref());
    let gpus: Vec<_> = known.node.iter().flat_map(|node| &node.gpus).collect();
    let described: Vec<_> = gpus.iter().map(|gpu| Described { gpu, driver }).collect();
    sink.take(&description(), &described)?;
    sink.take(&gpu(), &gpus)?;
    let throttles: Vec<_> = gpus.iter().copied().flat_map(throttles_of).collect();
    sink.take(&throttle(), &throttles)?;
    let calls: Vec<_> = gpus.iter().copied().flat_map(calls_of).collect();
    sink.take(&calls_subject(), &calls)
}

fn throttles_of(gpu: &GpuStatus) -> Vec<Throttle<'_>> {
    let named = REASONS.iter().fold(0, |all, (bit, _)| all | bit);
    let others = (gpu.throttle_reasons & !named != 0).then_some(OTHER);
    let known = REASONS.iter().filter(|(bit, _)| gpu.throttle_reasons & bit != 0);
    known.map(|(_, name)| *name).chain(others).map(|reason| Throttle { gpu, reason }).collect()
}

fn calls_of(gpu: &GpuStatus) -> [Calls<'_>; 2] {
    let used = &gpu.driver_use;
    [
        Calls { gpu, kind: "read", per_s: used.reads_per_s, share: used.reading_share },
        Calls { gpu, kind: "change", per_s: used.changes_per_s, share: used.changing_share },
    ]
}

fn hertz(clock: Option<Mhz>) -> Option<f64> {
    clock.map(|clock| f64::from(clock.0) * 1e6)
}

fn description<'a>() -> Subject<Described<'a>> {
    Subject {
        labels: &["gpu_uuid", "index", "pci_bus_id", "model", "driver"],
        label_values: |Described { gpu, driver }| {
            let model = gpu.model.clone();
            let driver = driver.unwrap_or_default().to_owned();
            vec![text(&gpu.uuid), text(gpu.index), text(&gpu.pci_bus_id), model, driver]
        },
        series: vec![info(
            "pfo_gpu_info",
            "A GPU: its index and bus id, its model, and the version of the driver.",
        )],
    }
}

fn gpu<'a>() -> Subject<&'a GpuStatus> {
    Subject {
        labels: &["gpu_uuid"],
        label_values: |gpu| vec![text(&gpu.uuid)],
        series: vec![
            gauge("pfo_gpu_leased", None, "1 if a session holds the lease, else 0.", |gpu| {
                flag(gpu.leased)
            }),
            gauge(
                "pfo_gpu_problem",
                None,
                "1 if something is wrong with the GPU, which `pfoctl status` says, else 0.",
                |gpu| flag(gpu.problem.is_some()),
            ),
            gauge(
                "pfo_gpu_meter_doubted",
                None,
                "1 if the energy counter of the GPU is not believed, and there are no figures of its \
                 energy, else 0.",
                |gpu| flag(gpu.meter.as_ref().is_some_and(|meter| meter.withheld)),
            ),
            gauge(
                "pfo_gpu_power_watts",
                Some("watts"),
                "The power that the driver reports.",
                |gpu| gpu.power_w,
            ),
            gauge(
                "pfo_gpu_power_limit_watts",
                Some("watts"),
                "The power limit that pfo has set; absent if it has set none.",
                |gpu| gpu.power_limit_w.map(f64::from),
            ),
            gauge(
                "pfo_gpu_observed_clock_hertz",
                Some("hertz"),
                "The SM clock that the driver reports.",
                |gpu| hertz(gpu.observed_mhz),
            ),
            gauge(
                "pfo_gpu_requested_clock_hertz",
                Some("hertz"),
                "The SM clock that pfo has locked; absent if it has locked none.",
                |gpu| hertz(gpu.requested_mhz),
            ),
            gauge(
                "pfo_gpu_requested_memory_clock_hertz",
                Some("hertz"),
                "The memory clock that pfo has locked; absent if it has locked none.",
                |gpu| hertz(gpu.memory_locked_mhz),
            ),
        ],
    }
}

fn throttle<'a>() -> Subject<Throttle<'a>> {
    Subject {
        labels: &["gpu_uuid", "reason"],
        label_values: |Throttle { gpu, reason }| vec![text(&gpu.uuid), text(reason)],
        series: vec![gauge(
            "pfo_gpu_throttled",
            None,
            "1 while the driver keeps the clock down for this reason; absent otherwise.",
            |_| Some(1.0),
        )],
    }
}

fn calls_subject<'a>() -> Subject<Calls<'a>> {
    Subject {
        labels: &["gpu_uuid", "kind"],
        label_values: |Calls { gpu, kind, .. }| vec![text(&gpu.uuid), text(kind)],
        series: vec![
            gauge(
                "pfo_gpu_driver_calls_per_second",
                None,
                "Calls of pfod that read the GPU or change its clocks, over the last seconds.",
                |calls| Some(calls.per_s),
            ),
            gauge(
                "pfo_gpu_driver_time_ratio",
                Some("ratio"),
                "The share of the time that these calls took.",
                |calls| Some(calls.share),
            ),
        ],
    }
}
