//! Showing the machine, to people and to scripts.

use std::io::{self, Write};

use comfy_table::{Table, presets};
use nvidia_ml::clock_table::ClockRange;
use nvidia_ml::driver::{Driver, Gpu};
use nvidia_ml::error::SimError;
use nvidia_ml::gpu_state::Activity;
use nvidia_ml::set_call::SetCall;
use nvidia_ml::units::MonotonicNs;
use serde::Serialize;

use crate::args::ShowArgs;

#[derive(Serialize)]
struct MachineView {
    state: String,
    /// `CLOCK_MONOTONIC` when this was read.
    now_ns: u64,
    owner_uid: Option<u32>,
    driver_version: String,
    driver_loaded: bool,
    faults: Vec<FaultView>,
    gpus: Vec<GpuView>,
}

#[derive(Serialize)]
struct FaultView {
    function: String,
    kind: String,
    gpu: Option<usize>,
    remaining: Option<u64>,
}

#[derive(Serialize)]
struct RangeView {
    min: u32,
    max: u32,
}

#[derive(Serialize)]
struct GpuView {
    index: usize,
    model: &'static str,
    name: &'static str,
    uuid: String,
    pci_bus_id: String,
    /// That of its device file, `nvidiaN`.
    minor: u32,
    /// The newest accepted lock, in force or about to be.
    locked_sm_mhz: Option<RangeView>,
    locked_memory_mhz: Option<RangeView>,
    /// The clocks now.
    sm_mhz: u32,
    memory_mhz: u32,
    /// `idle`, `blocked` or `computing`.
    activity: &'static str,
    power_w: f64,
    power_limit_w: f64,
    power_capped: bool,
    /// Whether software or hardware lowers the clock because the GPU is hot.
    heat_slowed: bool,
    energy_mj: u64,
    /// The true energy, whatever the counter makes of it.
    drawn_mj: u64,
    temperature_c: f64,
    mig: bool,
    processes: Vec<u32>,
    set_calls: u64,
    reset_calls: u64,
    memory_calls: u64,
    last_set_entry_ns: Option<u64>,
    /// All calls that concern it, and what they cost.
    driver_calls: u64,
    driver_reading_ms: f64,
    driver_setting_ms: f64,
    transfers_delayed_ms: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    calls: Vec<CallView>,
}

#[derive(Serialize)]
struct CallView {
    number: u64,
    entry_ns: u64,
    return_ns: Option<u64>,
    /// NVML's number.
    result: Option<u32>,
    min: u32,
    max: u32,
    pid: u32,
}

impl From<ClockRange> for RangeView {
    fn from(range: ClockRange) -> Self {
        Self { min: range.min.0, max: range.max.0 }
    }
}

impl From<SetCall> for CallView {
    fn from(call: SetCall) -> Self {
        Self {
            number: call.number,
            entry_ns: call.entered.0,
            return_ns: call.returned.map(|time| time.0),
            result: call.result,
            min: call.min.0,
            max: call.max.0,
            pid: call.pid,
        }
    }
}

fn view_gpu(gpu: Gpu<'_>, calls: usize) -> Result<GpuView, SimError> {
    let energy_mj = gpu.energy_mj()?;
    let (state, board, facts) = (gpu.view()?, gpu.board(), gpu.facts());
    let now = MonotonicNs::now();
    let (limits, held_back) = (state.timeline.at(now), state.held_back(board, now));
    let (set_calls, driver_time) = (gpu.set_call_count(), gpu.driver_time());
    Ok(GpuView {
        index: gpu.index(),
        model: facts.short_name,
        name: facts.name,
        uuid: gpu.uuid().to_string(),
        pci_bus_id: gpu.pci().to_string(),
        minor: gpu.minor(),
        locked_sm_mhz: state.timeline.last().lock.map(Into::into),
        locked_memory_mhz: state.memory_lock.map(Into::into),
        sm_mhz: state.clock_at(board, now).0,
        memory_mhz: state.memory_clock(facts).0,
        activity: match state.activity {
            Activity::Idle => "idle",
            Activity::Blocked => "blocked",
            Activity::Computing(_) => "computing",
        },
        power_w: state.power_at(board, now).watts(),
        power_limit_w: limits.power_cap.unwrap_or(facts.default_power_limit()).watts(),
        power_capped: held_back.by_power,
        heat_slowed: held_back.by_software || held_back.by_hardware,
        energy_mj,
        drawn_mj: state.energy.millijoules(),
        temperature_c: state.warmth.celsius(),
        mig: state.mig,
        processes: gpu.processes()?.into_iter().map(|process| process.pid).collect(),
        set_calls,
        reset_calls: gpu.reset_call_count(),
        memory_calls: gpu.memory_call_count(),
        last_set_entry_ns: gpu.last_set_call().map(|time| time.0),
        driver_calls: driver_time.calls,
        driver_reading_ms: driver_time.reading.as_secs_f64() * 1e3,
        driver_setting_ms: driver_time.setting.as_secs_f64() * 1e3,
        transfers_delayed_ms: driver_time.transfers_delayed.as_secs_f64() * 1e3,
        calls: gpu
            .set_calls_since(set_calls.saturating_sub(calls as u64))
            .into_iter()
            .map(Into::into)
            .collect(),
    })
}

fn view(driver: &Driver, calls: usize) -> Result<MachineView, SimError> {
    let faults = driver.faults().into_iter().map(|fault| FaultView {
        function: fault.function.as_str().to_owned(),
        kind: fault.kind.to_string(),
        gpu: fault.gpu,
        remaining: fault.remaining,
    });
    Ok(MachineView {
        state: driver.path().display().to_string(),
        now_ns: MonotonicNs::now().0,
        owner_uid: driver.owner_uid(),
        driver_version: driver.version().to_string(),
        driver_loaded: driver.is_loaded(),
        faults: faults.collect(),
        gpus: driver.gpus().map(|gpu| view_gpu(gpu, calls)).collect::<Result<_, _>>()?,
    })
}

pub(crate) fn show(driver: &Driver, args: &ShowArgs) -> Result<(), SimError> {
    let machine = view(driver, args.calls)?;
    let text = if args.json { as_json(&machine) } else { as_text(&machine) };
    match writeln!(io::stdout().lock(), "{text}") {
        // Whoever reads has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(SimError::file("write", "standard output", error))
        }
        _ => Ok(()),
    }
}

fn as_json(machine: &MachineView) -> String {
    // Plain structs with string keys always serialise.
    serde_json::to_string_pretty(machine).unwrap_or_default()
}

fn as_text(machine: &MachineView) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "GPU",
        "MODEL",
        "LOCKED SM",
        "SM",
        "LOCKED MEM",
        "MEM",
        "ACTIVITY",
        "POWER W",
        "ENERGY J",
        "SETS",
        "PIDS",
    ]);
    for gpu in &machine.gpus {
        let range = |range: &Option<RangeView>| match range {
            None => "-".to_owned(),
            Some(range) if range.min == range.max => range.max.to_string(),
            Some(range) => format!("{}-{}", range.min, range.max),
        };
        let pids: Vec<_> = gpu.processes.iter().map(u32::to_string).collect();
        let mut activity = gpu.activity.to_owned();
        if gpu.power_capped {
            activity.push_str(", capped");
        }
        if gpu.heat_slowed {
            activity.push_str(", hot");
        }
        table.add_row([
            gpu.index.to_string(),
            gpu.model.to_owned() + if gpu.mig { " (MIG)" } else { "" },
            range(&gpu.locked_sm_mhz),
            gpu.sm_mhz.to_string(),
            range(&gpu.locked_memory_mhz),
            gpu.memory_mhz.to_string(),
            activity,
            format!("{:.2}", gpu.power_w),
            format!("{:.3}", gpu.energy_mj as f64 / 1e3),
            gpu.set_calls.to_string(),
            if pids.is_empty() { "-".to_owned() } else { pids.join(" ") },
        ]);
    }
    let mut text = table.trim_fmt();
    for fault in &machine.faults {
        let gpu = fault.gpu.map_or("any GPU".to_owned(), |gpu| format!("GPU {gpu}"));
        let left = fault.remaining.map_or(String::new(), |left| format!(", {left} calls left"));
        text.push_str(&format!("\nfault: {} on {gpu}: {}{left}", fault.function, fault.kind));
    }
    text
}
