//! The proof that nothing is locked any more and nothing else was touched.
//!
//! NVML cannot read a lock back. But a GPU that nobody locked idles at its lowest clock and computes
//! at its highest, and a locked one does both at its lock.

use crate::bindings::{Bindings, Reading};
use crate::machine::Machine;
use crate::node::Node;
use crate::wait;

/// The clock, in MHz, of a lock that is not pfo's.
pub const FOREIGN_MHZ: u32 = 1005;

impl Node {
    /// Locks the SM clock of a GPU at [`FOREIGN_MHZ`] as another tool would.
    pub fn lock_by_another_tool(&self, gpu: usize) {
        match Bindings::on(&self.machine) {
            Some(bindings) => bindings.lock(gpu, FOREIGN_MHZ),
            None => self.machine.lock(gpu, FOREIGN_MHZ),
        }
    }

    /// Waits until the ledger is empty and the driver has no lock but `locked` (GPU, MHz).
    pub fn assert_only_locked(&self, locked: &[(usize, u32)]) {
        self.until_is("the ledger names no lock", &0, || self.ledger_entries());
        self.machine.assert_locks_are(locked);
    }
}

impl Machine {
    /// Waits until the driver has no lock but `locked` (GPU, MHz), nor a power limit that is not the
    /// board's default, then has NVIDIA's bindings say the same.
    pub fn assert_locks_are(&self, locked: &[(usize, u32)]) {
        let gpus = 0..self.gpu_count();
        let wanted =
            |gpu: usize| locked.iter().find(|(other, _)| *other == gpu).map(|(_, mhz)| *mhz);
        let wanted: Vec<_> = gpus.clone().map(wanted).collect();
        wait::until_is("the SM clocks are locked as they should be", &wanted, || {
            gpus.clone().map(|gpu| self.sm_lock(gpu)).collect()
        });
        for gpu in gpus.clone().filter(|gpu| wanted[*gpu].is_none()) {
            let what = format!("the memory clock of GPU {gpu} is free");
            wait::until_is(&what, &None, || self.memory_lock(gpu));
        }
        self.assert_power_limits_are_defaults();
        let Some(bindings) = Bindings::on(self) else { return };
        // Processes that were killed may leave while this looks on.
        let unused = |gpu: &usize| self.processes(*gpu).is_empty();
        // Accepted is not in force yet.
        wait::until_ok("NVIDIA's bindings see idle GPUs so", || {
            let readings = bindings.read();
            let mut idle = gpus.clone().filter(unused);
            idle.try_for_each(|gpu| check_idle(gpu, wanted[gpu], &readings[gpu]))
        });
        let mut computing = Vec::new();
        wait::until_ok("NVIDIA's bindings see working GPUs so", || {
            computing.extend(gpus.clone().filter(unused).map(|gpu| self.compute(gpu)));
            let mut readings = bindings.read().into_iter().enumerate();
            readings.try_for_each(|(gpu, reading)| check_working(gpu, wanted[gpu], &reading))
        });
    }
}

impl Machine {
    /// Waits until the power limit of every GPU is its board's default.
    pub fn assert_power_limits_are_defaults(&self) {
        for gpu in 0..self.gpu_count() {
            let what = format!("the power limit of GPU {gpu}");
            wait::until_is(&what, &self.default_power_limit_w(gpu), || self.power_limit_w(gpu));
        }
    }
}

/// Waits until nothing of some GPUs, which nobody uses, is locked, then has NVIDIA's bindings say the
/// same.
pub fn assert_free(machine: &Machine, gpus: std::ops::Range<usize>) {
    let all = |attempt: &dyn Fn(usize) -> Result<(), String>| {
        let checked = wait::until(|| gpus.clone().try_for_each(attempt));
        checked.unwrap_or_else(|last| panic!("not everything is free: {last}"));
    };
    all(&|gpu| {
        let default_w = machine.default_power_limit_w(gpu);
        match (machine.sm_lock(gpu), machine.memory_lock(gpu), machine.power_limit_w(gpu)) {
            (None, None, limit_w) if limit_w == default_w => Ok(()),
            left => Err(format!("GPU {gpu} has locks and a power limit of {left:?}")),
        }
    });
    let Some(bindings) = Bindings::on(machine) else { return };
    all(&|gpu| check_idle(gpu, None, &bindings.read()[gpu]));
    let _computing: Vec<_> = gpus.clone().map(|gpu| machine.compute(gpu)).collect();
    all(&|gpu| check_working(gpu, None, &bindings.read()[gpu]));
}

fn check_idle(gpu: usize, lock: Option<u32>, reading: &Reading) -> Result<(), String> {
    check(gpu, "idles", lock.unwrap_or(reading.lowest_sm_mhz), reading.sm_mhz)?;
    if lock.is_none() && reading.memory_mhz == reading.highest_memory_mhz {
        let mhz = reading.memory_mhz;
        return Err(format!("the memory of GPU {gpu} idles at {mhz} MHz, as if it were locked"));
    }
    Ok(())
}

fn check_working(gpu: usize, lock: Option<u32>, reading: &Reading) -> Result<(), String> {
    if reading.power_limit_mw != reading.default_power_limit_mw {
        return Err(format!("GPU {gpu} has a power limit of {} mW", reading.power_limit_mw));
    }
    check(gpu, "works", lock.unwrap_or(reading.highest_sm_mhz), reading.sm_mhz)
}

fn check(gpu: usize, doing: &str, expected: u32, seen: u32) -> Result<(), String> {
    if seen == expected {
        return Ok(());
    }
    Err(format!("GPU {gpu} {doing} at {seen} MHz instead of {expected} MHz"))
}
