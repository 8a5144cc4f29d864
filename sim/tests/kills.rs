//! SIGKILL at any moment: it may neither wedge the other processes nor tear the state.

use std::thread;
use std::time::Duration;

use crate::machine::{Role, ready, test_on};
use nvidia_ml::attachment::Attachment;
use nvidia_ml::clock_table::ClockRange;
use nvidia_ml::curve::{CurveIndex, PowerCurve};
use nvidia_ml::driver::Driver;
use nvidia_ml::gpu_state::Activity;
use nvidia_ml::units::{Mhz, Milliwatts};

/// Changes everything that can be changed, as fast as it can, until it is killed.
fn rage(driver: &std::sync::Arc<Driver>) -> ! {
    let gpu = driver.gpu(0).unwrap();
    let curve = PowerCurve::new(vec![(Mhz(900), Milliwatts(200_000))]).unwrap();
    let index = CurveIndex::new(0).unwrap();
    loop {
        let attachment = Attachment::new(driver.clone(), 0).unwrap();
        for mhz in (210..1410).step_by(15) {
            attachment.install_curve(index, &curve).unwrap();
            attachment.set_activity(Activity::Computing(index)).unwrap();
            gpu.lock_clocks(Some(ClockRange::exactly(Mhz(mhz)))).unwrap();
            attachment.set_activity(Activity::Blocked).unwrap();
            gpu.cap_power(Some(Milliwatts(200_000 + mhz))).unwrap();
        }
    }
}

#[test]
fn processes_killed_in_the_middle_of_changes_leave_a_state_that_works() {
    test_on(&["--ideal", "--gpus", "A100"], |machine, role| {
        let driver = machine.driver();
        if let Role::Other = role {
            ready();
            rage(&driver);
        }
        let gpu = driver.gpu(0).unwrap();
        let mut energy = 0;
        for round in 0..25_u64 {
            let (mut one, mut two) = (machine.start("one"), machine.start("two"));
            thread::sleep(Duration::from_micros(500 + 777 * round));
            one.kill();
            two.kill();
            drop((one, two));
            gpu.lock_clocks(Some(ClockRange::exactly(Mhz(900)))).unwrap();
            let state = gpu.view().unwrap();
            assert_eq!(state.activity, Activity::Idle);
            let lock = state.timeline.last().lock.unwrap();
            assert_eq!((lock.min, lock.max), (Mhz(900), Mhz(900)));
            let now = gpu.energy_mj().unwrap();
            assert!(now >= energy);
            energy = now;
            assert!(gpu.processes().unwrap().is_empty());
            assert!(Attachment::new(driver.clone(), 0).is_ok());
        }
    });
}
