//! Power and energy: what a GPU draws for what it does, and how long a dead process draws it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::machine::{Role, eventually, ready, test_on};
use nvidia_ml::attachment::Attachment;
use nvidia_ml::clock_table::ClockRange;
use nvidia_ml::curve::{CurveIndex, PowerCurve};
use nvidia_ml::driver::Driver;
use nvidia_ml::fault::Fault;
use nvidia_ml::gpu_state::Activity;
use nvidia_ml::units::{Mhz, Milliwatts, MonotonicNs};
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;

const CURVE: usize = 3;

fn computing() -> Activity {
    Activity::Computing(CurveIndex::new(CURVE).unwrap())
}

/// 200 W at 900 MHz and 400 W at 1410 MHz.
fn install_curve(attachment: &Attachment) {
    let points = vec![(Mhz(900), Milliwatts(200_000)), (Mhz(1410), Milliwatts(400_000))];
    let curve = PowerCurve::new(points).unwrap();
    attachment.install_curve(CurveIndex::new(CURVE).unwrap(), &curve).unwrap();
}

#[test]
fn power_follows_what_the_gpu_does_and_energy_is_its_integral() {
    test_on(&["--ideal", "--gpus", "A100,A40", "--settle-ms", "50"], |machine, _| {
        let (nvml, driver) = (machine.nvml(), machine.driver());
        let device = nvml.device_by_index(0).unwrap();
        let attachment = Attachment::new(driver.clone(), 0).unwrap();
        let gpu = driver.gpu(0).unwrap();
        install_curve(&attachment);
        assert_eq!(device.power_usage().unwrap(), 54_000);

        let begin = attachment.set_activity(computing()).unwrap();
        assert_eq!(device.power_usage().unwrap(), 400_000);
        let energy_before = gpu.view().unwrap();
        gpu.lock_clocks(Some(ClockRange::exactly(Mhz(900)))).unwrap();
        let slowed = gpu.view().unwrap().timeline.last().from;
        eventually("the clock has settled", || device.power_usage().unwrap() == 200_000);
        thread::sleep(Duration::from_millis(100));
        let blocked = attachment.set_activity(Activity::Blocked).unwrap();
        assert_eq!(device.power_usage().unwrap(), 83_640);
        thread::sleep(Duration::from_millis(100));
        let end = attachment.set_activity(Activity::Idle).unwrap();

        // mW times ns is pJ.
        let energy = |milliwatts: u128, from: MonotonicNs, to: MonotonicNs| {
            milliwatts * u128::from(to.since(from))
        };
        let expected = energy(400_000, begin, slowed)
            + energy(200_000, slowed, blocked)
            + energy(83_640, blocked, end)
            + energy(54_000, end, gpu.view().unwrap().settled);
        let already = energy(400_000, begin, energy_before.settled);
        let measured = gpu.view().unwrap().energy.0 - energy_before.energy.0 + already;
        let difference = measured.abs_diff(expected);
        assert!(difference < expected / 1000, "{measured} pJ, expected {expected} pJ");
    });
}

/// For how long a power cap and heat have kept the clock down.
fn throttled_ns(device: &Device<'_>) -> Vec<Option<u64>> {
    let fields = [
        FieldId(field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP),
        FieldId(field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN),
    ];
    let counted = device.field_values_for(&fields).unwrap_or_default();
    let number = |value| match value {
        SampleValue::U64(number) => Some(number),
        _ => None,
    };
    counted.into_iter().map(|field| number(field.ok()?.value.ok()?)).collect()
}

#[test]
fn a_power_cap_is_counted_to_the_nanosecond_unless_the_driver_has_no_such_counters() {
    test_on(&["--gpus", "A100"], |machine, _| {
        let (nvml, driver) = (machine.nvml(), machine.driver());
        let device = nvml.device_by_index(0).unwrap();
        let attachment = Attachment::new(driver.clone(), 0).unwrap();
        let gpu = driver.gpu(0).unwrap();
        install_curve(&attachment);
        gpu.cap_power(Some(Milliwatts(300_000))).unwrap();
        assert_eq!(throttled_ns(&device), [Some(0), Some(0)], "an idle GPU is not capped");
        let begin = attachment.set_activity(computing()).unwrap();
        thread::sleep(Duration::from_millis(50));
        let end = attachment.set_activity(Activity::Blocked).unwrap();
        assert_eq!(throttled_ns(&device), [Some(end.since(begin)), Some(0)]);

        let fault = Fault {
            function: "nvmlDeviceGetFieldValues".parse().unwrap(),
            kind: "not-supported".parse().unwrap(),
            gpu: None,
            remaining: None,
        };
        driver.arm_fault(&fault).unwrap();
        assert_eq!(throttled_ns(&device), []);
    });
}

#[test]
fn the_energy_counter_stands_between_refreshes_and_never_goes_back() {
    test_on(&["--ideal", "--gpus", "A100", "--energy-refresh-ms", "20"], |machine, _| {
        let nvml = machine.nvml();
        let attachment = Attachment::new(machine.driver(), 0).unwrap();
        install_curve(&attachment);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                let (nvml, done) = (&nvml, &done);
                scope.spawn(move || {
                    let device = nvml.device_by_index(0).unwrap();
                    let (mut last, mut changes, began) = (0, 0_u64, MonotonicNs::now());
                    while !done.load(Ordering::Relaxed) {
                        let energy = device.total_energy_consumption().unwrap();
                        assert!(energy >= last, "{energy} mJ after {last} mJ");
                        changes += u64::from(energy > last);
                        last = energy;
                    }
                    // A slow machine may see fewer refreshes than there were. None may see more, but a
                    // writer that was overtaken by a reader may put each of them right once.
                    let refreshes = MonotonicNs::now().since(began) / 20_000_000 + 2;
                    assert!((1..=2 * refreshes).contains(&changes), "{changes} of {refreshes}");
                });
            }
            let other = Driver::open(&machine.state).unwrap();
            let start = MonotonicNs::now();
            let mut lock = None;
            while MonotonicNs::now().since(start) < 300_000_000 {
                attachment.set_activity(computing()).unwrap();
                lock = lock.is_none().then_some(ClockRange::exactly(Mhz(900)));
                other.gpu(0).unwrap().lock_clocks(lock).unwrap();
                attachment.set_activity(Activity::Blocked).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_killed_process_leaves_the_gpu_idle_even_while_it_is_a_zombie() {
    test_on(&["--ideal", "--gpus", "A100"], |machine, role| {
        let nvml = machine.nvml();
        let device = nvml.device_by_index(0).unwrap();
        if let Role::Other = role {
            let attachment = Attachment::new(machine.driver(), 0).unwrap();
            install_curve(&attachment);
            attachment.set_activity(computing()).unwrap();
            ready();
            thread::sleep(Duration::from_secs(60));
            return;
        }
        assert_eq!(device.running_compute_processes().unwrap().len(), 0);
        let mut trainer = machine.start("trainer");
        let processes = device.running_compute_processes().unwrap();
        assert_eq!((processes.len(), processes[0].pid), (1, trainer.pid()));
        assert!(matches!(processes[0].used_gpu_memory, UsedGpuMemory::Used(bytes) if bytes > 0));
        assert_eq!(device.power_usage().unwrap(), 400_000);
        assert_eq!(device.utilization_rates().unwrap().gpu, 100);
        trainer.kill();
        eventually("the GPU is idle", || device.power_usage().unwrap() == 54_000);
        assert_eq!(device.running_compute_processes().unwrap().len(), 0);
        let again = Attachment::new(machine.driver(), 0).unwrap();
        again.set_activity(Activity::Blocked).unwrap();
        assert_eq!(device.power_usage().unwrap(), 83_640);
    });
}

#[test]
fn a_gpu_has_room_for_eight_processes_and_says_so_to_the_ninth() {
    test_on(&["--ideal", "--gpus", "A100"], |machine, _| {
        let driver = machine.driver();
        let attach = || Attachment::new(driver.clone(), 0);
        let eight: Vec<_> = (0..8).map(|_| attach().unwrap()).collect();
        let message = attach().err().unwrap().to_string();
        assert!(message.contains("GPU 0") && message.contains('8'), "{message}");
        drop(eight);
        assert!(attach().is_ok());
    });
}
