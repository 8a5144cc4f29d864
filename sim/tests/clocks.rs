//! Clock tables, locks and faults, seen through the unchanged Rust wrapper of NVML.

use crate::machine;
use std::os::unix::process::CommandExt;
use std::thread;
use std::time::{Duration, Instant};

use crate::machine::{Machine, Role, eventually, is_root, test_on};
use nvidia_ml::attachment::Attachment;
use nvidia_ml::clock_table::ClockRange;
use nvidia_ml::curve::CurveIndex;
use nvidia_ml::gpu_state::Activity;
use nvidia_ml::nvml_result::NvmlResult;
use nvidia_ml::units::{Mhz, MonotonicNs};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, ClockLimitId, PerformanceState};
use nvml_wrapper::enums::device::GpuLockedClocksSetting;
use nvml_wrapper::error::NvmlError;

/// The lowest uid that belongs to nobody by custom.
const STRANGER: u32 = 65_534;

fn lock(nvml: &Nvml, gpu: u32, min: u32, max: u32) -> Result<(), NvmlError> {
    let range = GpuLockedClocksSetting::Numeric { min_clock_mhz: min, max_clock_mhz: max };
    nvml.device_by_index(gpu)?.set_gpu_locked_clocks(range)
}

fn unlock(nvml: &Nvml, gpu: u32) -> Result<(), NvmlError> {
    nvml.device_by_index(gpu)?.reset_gpu_locked_clocks()
}

fn sm(nvml: &Nvml, gpu: u32) -> u32 {
    nvml.device_by_index(gpu).unwrap().clock_info(Clock::SM).unwrap()
}

/// SM clocks as NVML lists them. Not with the wrapper's own method: in its version 0.13.0 that
/// takes `INSUFFICIENT_SIZE` for a success, and a table of more than 128 clocks, as a V100's, for
/// zeros.
fn sm_clocks(nvml: &Nvml, gpu: u32, memory: u32) -> Vec<u32> {
    let device = nvml.device_by_index(gpu).unwrap();
    let list = nvml.lib().nvmlDeviceGetSupportedGraphicsClocks.as_ref().unwrap();
    let mut count = 0;
    // SAFETY: the handle is the library's own, and without room there is nothing to write to.
    let answer = unsafe { list(device.handle(), memory, &raw mut count, std::ptr::null_mut()) };
    assert_eq!(answer, NvmlResult::InsufficientSize.number());
    let mut clocks = vec![0; count as usize];
    // SAFETY: there is room for `count` clocks.
    let answer = unsafe { list(device.handle(), memory, &raw mut count, clocks.as_mut_ptr()) };
    assert_eq!(answer, NvmlResult::Success.number());
    clocks
}

#[test]
fn every_model_lists_its_published_clocks() {
    let models = "V100,A40,A100,RTX3090,A6000,H100,H200";
    test_on(&["--ideal", "--gpus", models], |machine, _| {
        let nvml = machine.nvml();
        let expected: [(u32, usize, &[u32]); 7] = [
            (1530, 187, &[877]),
            (1740, 103, &[7251, 405]),
            (1410, 81, &[1215]),
            (2100, 127, &[9751, 9501, 5001, 810, 405]),
            (2100, 127, &[8001, 7601, 5001, 810, 405]),
            (1980, 110, &[2619, 1593]),
            (1980, 110, &[3201, 2201]),
        ];
        assert_eq!(nvml.device_count().unwrap(), 7);
        for (gpu, (highest, count, memory)) in expected.into_iter().enumerate() {
            let device = nvml.device_by_index(gpu as u32).unwrap();
            assert_eq!(device.supported_memory_clocks().unwrap(), memory);
            let clocks = sm_clocks(&nvml, gpu as u32, memory[0]);
            assert_eq!((clocks[0], clocks.len()), (highest, count), "{}", device.name().unwrap());
            assert!(clocks.windows(2).all(|pair| pair[0] > pair[1]));
            assert_eq!(device.max_clock_info(Clock::SM).unwrap(), highest);
            assert_eq!(device.max_clock_info(Clock::Memory).unwrap(), memory[0]);
            let unknown = device.supported_graphics_clocks(1).unwrap_err();
            assert!(matches!(unknown, NvmlError::NotFound), "{unknown}");
        }
    });
}

#[test]
fn a_lock_takes_its_time_and_outlives_the_process_that_set_it() {
    test_on(&["--ideal", "--gpus", "2xA100"], |machine, role| {
        let nvml = machine.nvml();
        if let Role::Other = role {
            let start = Instant::now();
            lock(&nvml, 1, 900, 900).unwrap();
            assert!(start.elapsed() >= Duration::from_millis(8));
            return;
        }
        let before = MonotonicNs::now();
        assert!(machine.role("setter").status().unwrap().success());
        eventually("the lock is in force", || sm(&nvml, 1) == 900);
        assert_eq!(sm(&nvml, 0), 210);

        let driver = machine.driver();
        let gpu = driver.gpu(1).unwrap();
        let calls = gpu.set_calls_since(0);
        let (call, limits) = (calls[0], gpu.view().unwrap().timeline.last());
        assert_eq!((calls.len(), call.min.0, call.max.0, call.result), (1, 900, 900, Some(0)));
        assert!(call.entered > before && gpu.last_set_call() == Some(call.entered));
        assert!(call.returned.unwrap().since(call.entered) >= 8_000_000);
        assert!(limits.from.since(call.entered) >= 15_000_000);

        unlock(&nvml, 1).unwrap();
        eventually("the lock is gone", || sm(&nvml, 1) == 210);
        assert_eq!((gpu.set_call_count(), gpu.reset_call_count()), (1, 1));
    });
}

#[test]
fn numbers_outside_of_the_range_are_clamped_and_nonsense_is_refused() {
    test_on(
        &["--ideal", "--gpus", "A100", "--set-latency-ms", "0", "--settle-ms", "0"],
        |machine, _| {
            let nvml = machine.nvml();
            for (min, max, effective) in [(1000, 1000, 990), (5000, 5000, 1410), (1, 1, 210)] {
                lock(&nvml, 0, min, max).unwrap();
                assert_eq!(sm(&nvml, 0), effective);
            }
            let error = lock(&nvml, 0, 1200, 900).unwrap_err();
            assert!(matches!(error, NvmlError::InvalidArg), "{error}");
            assert_eq!(sm(&nvml, 0), 210, "a refused call changes nothing");
            let symbolic = GpuLockedClocksSetting::Symbolic {
                lower_bound: ClockLimitId::Tdp,
                upper_bound: ClockLimitId::Unlimited,
            };
            nvml.device_by_index(0).unwrap().set_gpu_locked_clocks(symbolic).unwrap();
            assert_eq!(sm(&nvml, 0), 1410);
        },
    );
}

#[test]
fn memory_clocks_can_be_locked_from_ampere_on() {
    test_on(&["--ideal", "--gpus", "V100,A40", "--set-latency-ms", "0"], |machine, _| {
        let nvml = machine.nvml();
        let (mut old, mut new) =
            (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
        assert!(matches!(old.set_mem_locked_clocks(877, 877), Err(NvmlError::NotSupported)));
        assert!(matches!(old.reset_mem_locked_clocks(), Err(NvmlError::NotSupported)));
        assert_eq!(new.clock_info(Clock::Memory).unwrap(), 405);
        assert_eq!(new.performance_state().unwrap(), PerformanceState::Eight);
        new.set_mem_locked_clocks(7251, 7251).unwrap();
        assert_eq!(new.clock_info(Clock::Memory).unwrap(), 7251);
        assert_eq!(new.performance_state().unwrap(), PerformanceState::Zero);
        new.reset_mem_locked_clocks().unwrap();
        assert_eq!(new.clock_info(Clock::Memory).unwrap(), 405);
        assert!(matches!(new.set_mem_locked_clocks(7251, 405), Err(NvmlError::InvalidArg)));
    });
}

/// Runs the role `stranger` as another user: whether all went as that role expects.
fn stranger_is_content(machine: &Machine) -> Option<bool> {
    if !is_root() {
        println!("skipped: only root can become another user");
        return None;
    }
    let mut command = machine.role("stranger");
    match command.uid(STRANGER).gid(STRANGER).status() {
        Ok(status) => Some(status.success()),
        Err(error) => {
            println!("skipped: another user cannot run this test's program: {error}");
            None
        }
    }
}

#[test]
fn who_is_not_root_may_look_but_not_set() {
    test_on(
        &["--ideal", "--gpus", "A100", "--set-latency-ms", "0", "--settle-ms", "0"],
        |machine, role| {
            let nvml = machine.nvml();
            if let Role::Other = role {
                assert_eq!(sm(&nvml, 0), 1200);
                let refused = |answer| assert!(matches!(answer, Err(NvmlError::NoPermission)));
                let mut device = nvml.device_by_index(0).unwrap();
                refused(lock(&nvml, 0, 900, 900));
                refused(unlock(&nvml, 0));
                refused(device.set_mem_locked_clocks(1215, 1215));
                refused(device.set_power_management_limit(300_000));
                return;
            }
            machine
                .driver()
                .gpu(0)
                .unwrap()
                .lock_clocks(Some(ClockRange::exactly(Mhz(1200))))
                .unwrap();
            if let Some(content) = stranger_is_content(machine) {
                assert!(content);
                assert_eq!(sm(&nvml, 0), 1200);
                let calls = machine.driver().gpu(0).unwrap().set_calls_since(0);
                assert_eq!(calls[0].result, Some(4), "the refused call is on record");
            }
        },
    );
}

#[test]
fn the_owner_of_the_machine_may_set_without_being_root() {
    let owner = STRANGER.to_string();
    test_on(&["--ideal", "--gpus", "A100", "--owner-uid", &owner], |machine, role| {
        if let Role::Other = role {
            return lock(&machine.nvml(), 0, 900, 900).unwrap();
        }
        if let Some(content) = stranger_is_content(machine) {
            assert!(content);
        }
    });
}

#[test]
fn a_scripted_fault_hits_its_function_its_gpu_and_its_count() {
    test_on(&["--ideal", "--gpus", "2xA100", "--set-latency-ms", "0"], |machine, _| {
        let nvml = machine.nvml();
        let fault = |arguments: &str| {
            let arguments: Vec<_> = arguments.split(' ').collect();
            assert!(machine.pfo_sim(&arguments).status.success());
        };
        fault("fault --function nvmlDeviceSetGpuLockedClocks --kind gpu-is-lost --gpu 1 --count 2");
        assert!(lock(&nvml, 0, 900, 900).is_ok());
        for _ in 0..2 {
            assert!(matches!(lock(&nvml, 1, 900, 900), Err(NvmlError::GpuLost)));
        }
        assert!(lock(&nvml, 1, 900, 900).is_ok());

        fault("fault --clear --function nvmlDeviceGetPowerUsage --kind not-supported");
        let power = nvml.device_by_index(0).unwrap().power_usage();
        assert!(matches!(power, Err(NvmlError::NotSupported)));

        fault("fault --clear --function nvmlDeviceResetGpuLockedClocks --kind latency:120");
        let start = Instant::now();
        unlock(&nvml, 0).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(120));

        fault("fault --clear --function * --kind no-permission --gpu 0");
        assert!(matches!(nvml.device_by_index(0).unwrap().name(), Err(NvmlError::NoPermission)));
        assert!(nvml.device_by_index(1).unwrap().name().is_ok());
        fault("fault --clear");
        assert!(nvml.device_by_index(0).unwrap().name().is_ok());
    });
}

#[test]
fn a_call_that_hangs_goes_on_when_the_fault_is_cleared_and_disturbs_no_other_gpu() {
    test_on(&["--ideal", "--gpus", "2xA100", "--set-latency-ms", "0"], |machine, _| {
        let hang =
            ["fault", "--function", "nvmlDeviceSetGpuLockedClocks", "--kind", "hang", "--gpu", "0"];
        assert!(machine.pfo_sim(&hang).status.success());
        let nvml = machine.nvml();
        thread::scope(|scope| {
            let hung = scope.spawn(|| lock(&nvml, 0, 900, 900));
            let driver = machine.driver();
            let gpu = driver.gpu(0).unwrap();
            eventually("the call is entered", || gpu.set_call_count() == 1);
            lock(&nvml, 1, 1200, 1200).unwrap();
            eventually("the other GPU is locked", || sm(&nvml, 1) == 1200);
            assert!(!hung.is_finished());
            assert_eq!((sm(&nvml, 0), gpu.set_calls_since(0)[0].result), (210, None));
            assert!(machine.pfo_sim(&["fault", "--clear"]).status.success());
            hung.join().unwrap().unwrap();
        });
        eventually("the lock is in force", || sm(&nvml, 0) == 900);
    });
}

#[test]
fn a_power_cap_lowers_the_clock_below_the_lock_and_says_so() {
    test_on(
        &["--ideal", "--gpus", "A100", "--set-latency-ms", "0", "--settle-ms", "0"],
        |machine, _| {
            let (nvml, driver) = (machine.nvml(), machine.driver());
            let mut device = nvml.device_by_index(0).unwrap();
            assert_eq!(device.current_throttle_reasons().unwrap(), ThrottleReasons::GPU_IDLE);
            let attachment = Attachment::new(driver, 0).unwrap();
            attachment.set_activity(Activity::Computing(CurveIndex::new(0).unwrap())).unwrap();
            lock(&nvml, 0, 1305, 1305).unwrap();
            assert_eq!(sm(&nvml, 0), 1305);
            assert!(device.current_throttle_reasons().unwrap().is_empty());

            assert!(machine.pfo_sim(&["power-cap", "--gpu", "0", "300"]).status.success());
            let capped = sm(&nvml, 0);
            assert!((1000..1305).contains(&capped), "{capped}");
            assert!(device.power_usage().unwrap() <= 300_000);
            assert_eq!(device.enforced_power_limit().unwrap(), 300_000);
            assert_eq!(device.current_throttle_reasons().unwrap(), ThrottleReasons::SW_POWER_CAP);

            device.set_power_management_limit(400_000).unwrap();
            assert_eq!(sm(&nvml, 0), 1305);
            assert!(matches!(
                device.set_power_management_limit(99_000),
                Err(NvmlError::InvalidArg)
            ));
        },
    );
}

#[test]
fn without_persistence_mode_locks_and_the_counters_zero_vanish_with_the_last_client() {
    let create = ["--ideal", "--gpus", "A100", "--settle-ms", "0", "--no-persistence"];
    test_on(&create, |machine, role| {
        if let Role::Other = role {
            let _nvml = machine.nvml();
            machine::ready();
            thread::sleep(Duration::from_secs(60));
            return;
        }
        let driver = machine.driver();
        let gpu = driver.gpu(0).unwrap();
        let locked = || gpu.view().unwrap().timeline.last().lock.is_some();
        let energy =
            || machine.nvml().device_by_index(0).unwrap().total_energy_consumption().unwrap();
        let before = {
            let other = machine.start("client");
            lock(&machine.nvml(), 0, 900, 900).unwrap();
            thread::sleep(Duration::from_millis(100));
            let before = energy();
            assert!(locked(), "another process has the driver open");
            drop(other);
            before
        };
        assert!(energy() < before, "the counter begins anew");
        assert!(!locked());
    });
}

#[test]
fn a_driver_that_was_unloaded_is_lost_until_nvml_is_initialised_anew_and_forgets_its_locks() {
    test_on(&["--ideal", "--gpus", "2xA40", "--set-latency-ms", "0"], |machine, _| {
        let nvml = machine.nvml();
        lock(&nvml, 0, 900, 900).unwrap();
        nvml.device_by_index(0).unwrap().set_mem_locked_clocks(405, 405).unwrap();
        let driver = machine.driver();
        let lost = |nvml: &Nvml| {
            let error = nvml.device_by_index(1).map(drop).unwrap_err();
            assert!(matches!(error, NvmlError::GpuLost), "{error}");
        };
        driver.set_loaded(false).unwrap();
        lost(&nvml);
        drop(nvml);
        let absent = machine.try_nvml().map(drop).unwrap_err();
        assert!(matches!(absent, NvmlError::DriverNotLoaded), "{absent}");
        driver.set_loaded(true).unwrap();
        let nvml = machine.nvml();
        let state = driver.gpu(0).unwrap().view().unwrap();
        assert_eq!((state.timeline.last().lock, state.memory_lock), (None, None));
        // Whoever slept through both is no better off.
        driver.set_loaded(false).unwrap();
        driver.set_loaded(true).unwrap();
        lost(&nvml);
    });
}
