//! The simulated driver: what the NVML functions, the command line and the trainer do to a machine.
//!
//! It knows nothing about who may do what; the NVML functions ask that.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock_table::ClockRange;
use crate::driver_version::DriverVersion;
use crate::error::SimError;
use crate::fault::{ArmedFault, Fault, FaultSlot, FaultSlotCount};
use crate::gpu_state::{Activity, Board, GpuProcess, GpuState};
use crate::identity::{self, GpuUuid, PciBusId};
use crate::model::{GpuModel, ModelFacts};
use crate::occupation::DriverTime;
use crate::set_call::SetCall;
use crate::silicon::Silicon;
use crate::state::file::StateFile;
use crate::state::layout::{CLIENTS, GpuBlock, NONE, PROCESSES_PER_GPU};
use crate::state::lock::{self, LockedThing};
use crate::timeline::Timeline;
use crate::units::{Milliwatts, MonotonicNs, Picojoules};

/// An open machine. Threads can share it; a forked child must open its own.
pub struct Driver {
    state: StateFile,
    /// Locks on the file do not keep the threads of one process apart.
    turns: Vec<Mutex<()>>,
    /// Those of the models, with what is another on a GPU like a measured one.
    facts: Vec<ModelFacts>,
}

/// One GPU of an open machine.
#[derive(Clone, Copy)]
pub struct Gpu<'d> {
    driver: &'d Driver,
    index: usize,
}

impl Driver {
    /// Opens the machine of a state file.
    pub fn open(path: &Path) -> Result<Self, SimError> {
        let state = StateFile::open(path)?;
        if let Some(gpu) =
            (0..state.gpus().len()).find(|&gpu| model_of(&state.gpus()[gpu]).is_none())
        {
            return Err(SimError::NotAState {
                path: path.into(),
                difference: format!("GPU {gpu} is of no known model"),
            });
        }
        let turns = state.gpus().iter().map(|_| Mutex::new(())).collect();
        let model = |block| model_of(block).unwrap_or(GpuModel::A100);
        let facts =
            state.gpus().iter().map(|block| block.facts.load(model(block).facts())).collect();
        Ok(Self { state, turns, facts })
    }

    /// The state file.
    pub fn path(&self) -> &Path {
        self.state.path()
    }

    /// All GPUs.
    pub fn gpus(&self) -> impl ExactSizeIterator<Item = Gpu<'_>> {
        (0..self.turns.len()).map(|index| self.known_gpu(index))
    }

    /// The GPU of an index.
    pub fn gpu(&self, index: usize) -> Result<Gpu<'_>, SimError> {
        let count = self.turns.len();
        if index < count {
            Ok(self.known_gpu(index))
        } else {
            Err(SimError::NoSuchGpu { index, count })
        }
    }

    /// The GPU of an index that was checked before.
    pub(crate) fn known_gpu(&self, index: usize) -> Gpu<'_> {
        Gpu { driver: self, index }
    }

    /// Its version.
    pub fn version(&self) -> DriverVersion {
        DriverVersion::from_word(self.state.header().driver.load(Ordering::Relaxed))
    }

    /// Who may call setters beside root.
    pub fn owner_uid(&self) -> Option<u32> {
        Some(self.state.header().owner_uid.load(Ordering::Relaxed)).filter(|&uid| uid != NONE)
    }

    /// Faults that are armed.
    pub fn faults(&self) -> Vec<Fault> {
        self.state.header().faults.iter().filter_map(FaultSlot::read).collect()
    }

    /// Arms a fault.
    pub fn arm_fault(&self, fault: &Fault) -> Result<(), SimError> {
        if let Some(gpu) = fault.gpu {
            self.gpu(gpu)?;
        }
        let header = self.state.header();
        let _held = lock::hold(self.state.file(), LockedThing::Header).map_err(SimError::Lock)?;
        if !header.faults.iter().any(|slot| slot.arm(fault)) {
            return Err(SimError::TooManyFaults(FaultSlotCount));
        }
        header.faults_armed.store(1, Ordering::Release);
        Ok(())
    }

    /// Clears all faults; calls that hang in one go on.
    pub fn clear_faults(&self) -> Result<(), SimError> {
        let header = self.state.header();
        let _held = lock::hold(self.state.file(), LockedThing::Header).map_err(SimError::Lock)?;
        header.faults_armed.store(0, Ordering::Release);
        header.faults.iter().for_each(FaultSlot::clear);
        Ok(())
    }

    /// The first fault that hits a call of a function.
    pub(crate) fn fault_for(&self, function: &str, gpu: Option<usize>) -> Option<ArmedFault<'_>> {
        let header = self.state.header();
        if header.faults_armed.load(Ordering::Acquire) == 0 {
            return None;
        }
        header.faults.iter().find_map(|slot| slot.hits(function, gpu))
    }

    /// Unloads the driver, with every lock and cap, or loads it again. Who has used it finds all
    /// GPUs lost, and has to initialise NVML anew.
    pub fn set_loaded(&self, loaded: bool) -> Result<(), SimError> {
        let header = self.state.header();
        let _held = lock::hold(self.state.file(), LockedThing::Header).map_err(SimError::Lock)?;
        if self.is_loaded() == loaded {
            return Ok(());
        }
        header.reloads.fetch_add(1, Ordering::AcqRel);
        for gpu in self.gpus().filter(|_| !loaded) {
            gpu.update(|state, _| {
                state.timeline = Timeline::default();
                state.memory_lock = None;
            })?;
        }
        Ok(())
    }

    /// Whether the driver is there.
    pub fn is_loaded(&self) -> bool {
        self.reloads().is_multiple_of(2)
    }

    /// Another number after each time that the driver was unloaded or loaded.
    pub(crate) fn reloads(&self) -> u32 {
        self.state.header().reloads.load(Ordering::Acquire)
    }

    /// Counts this process among those that have the driver open, for as long as the file is. If it
    /// is the only one, GPUs without persistence mode have forgotten everything.
    pub(crate) fn enter_client(&self) -> Result<File, SimError> {
        let life = self.state.reopen()?;
        let _held = lock::hold(self.state.file(), LockedThing::Header).map_err(SimError::Lock)?;
        let others = (0..CLIENTS).map(|slot| {
            lock::is_held_elsewhere(&life, LockedThing::Client(slot)).map_err(SimError::Lock)
        });
        let others = others.collect::<Result<Vec<_>, _>>()?;
        if let Some(slot) = others.iter().position(|taken| !taken) {
            lock::keep(&life, LockedThing::Client(slot)).map_err(SimError::Lock)?;
        }
        for gpu in self.gpus().filter(|_| !others.contains(&true)) {
            gpu.forget_without_persistence()?;
        }
        Ok(life)
    }

    /// Takes everything back that was set: locks, caps, MIG mode, faults, the record of calls, and
    /// that the driver was unloaded. Energy counters go on, and so do processes.
    pub fn reset(&self) -> Result<(), SimError> {
        self.clear_faults()?;
        self.set_loaded(true)?;
        for gpu in self.gpus() {
            gpu.update(|state, _| {
                state.timeline = Timeline::default();
                state.memory_lock = None;
                state.mig = false;
            })?;
            gpu.block().set_calls.clear();
            gpu.block().reset_calls.store(0, Ordering::Relaxed);
            gpu.block().memory_calls.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn state(&self) -> &StateFile {
        &self.state
    }
}

fn model_of(block: &GpuBlock) -> Option<GpuModel> {
    GpuModel::from_number(block.model.load(Ordering::Relaxed))
}

impl<'d> Gpu<'d> {
    /// Its index.
    pub fn index(self) -> usize {
        self.index
    }

    /// The minor number of its device file.
    pub fn minor(self) -> u32 {
        identity::minor(self.index, self.driver.turns.len())
    }

    pub(crate) fn driver(self) -> &'d Driver {
        self.driver
    }

    pub(crate) fn block(self) -> &'d GpuBlock {
        &self.driver.state.gpus()[self.index]
    }

    /// Its model.
    pub fn model(self) -> GpuModel {
        // Checked when the machine was opened; nothing writes it later.
        model_of(self.block()).unwrap_or(GpuModel::A100)
    }

    /// Its model's figures, with those that are another on a GPU like a measured one.
    pub fn facts(self) -> &'d ModelFacts {
        &self.driver.facts[self.index]
    }

    /// Its UUID.
    pub fn uuid(self) -> GpuUuid {
        let [high, low] = &self.block().uuid;
        GpuUuid { high: high.load(Ordering::Relaxed), low: low.load(Ordering::Relaxed) }
    }

    /// Its place on the PCI bus.
    pub fn pci(self) -> PciBusId {
        PciBusId::from_word(self.block().pci.load(Ordering::Relaxed))
    }

    /// Its serial number.
    pub fn serial(self) -> u64 {
        self.block().serial.load(Ordering::Relaxed)
    }

    /// What decides about its clock and power beside its state.
    pub fn board(self) -> Board<'d> {
        Board { facts: self.facts(), silicon: self.silicon(), curves: Some(&self.block().curves) }
    }

    /// What it and its driver are like.
    pub fn silicon(self) -> Silicon {
        self.block().silicon.load()
    }

    /// What calls have cost so far.
    pub fn driver_time(self) -> DriverTime {
        self.block().occupation.time()
    }

    /// A number that is another for each call of a GPU, and the same for each machine.
    fn occasion(self) -> u64 {
        self.serial() ^ self.driver_time().calls.wrapping_mul(0xA24B_AED4_963E_E407)
    }

    /// Waits for as long as a call of a function takes that reads something.
    pub(crate) fn take_time_to_read(self, function: &str) {
        let reads = self.silicon().reads;
        let ns = match function {
            "nvmlDeviceGetTotalEnergyConsumption" => reads.energy.of(self.occasion()),
            "nvmlDeviceGetPowerManagementLimit" | "nvmlDeviceGetMigMode" => reads.settings_ns,
            listed if listed.contains("RunningProcesses") => reads.processes_ns,
            _ => reads.usual_ns,
        };
        if ns == 0 {
            return;
        }
        let (occupation, now) = (&self.block().occupation, MonotonicNs::now());
        if reads.keep_the_driver {
            occupation.enter_to_read(now, ns).wait();
        } else {
            occupation.read_aside(ns);
            now.after(Duration::from_nanos(ns)).wait();
        }
    }

    /// Keeps the driver for as long as a call takes that sets something, which it does first.
    pub(crate) fn take_time_to_set<R>(self, set: impl FnOnce() -> R) -> R {
        let ns = self.silicon().set_call.of(self.occasion());
        let until = self.block().occupation.enter_to_set(MonotonicNs::now(), ns);
        MonotonicNs(until.0.saturating_sub(ns)).wait();
        let result = set();
        until.wait();
        result
    }

    /// Waits while calls keep the driver from a transfer.
    pub(crate) fn wait_for_transfer(self) {
        let now = MonotonicNs::now();
        let until = self.block().occupation.until();
        if self.silicon().transfers_wait && until > now {
            self.block().occupation.delayed(until.since(now));
            until.wait();
        }
    }

    /// Its state now.
    pub fn view(self) -> Result<GpuState, SimError> {
        let mut state = GpuState::from_words(&self.block().state.load());
        if state.activity != Activity::Idle && !self.is_active_process_alive(&state)? {
            return self.update(|state, _| state.clone());
        }
        state.settle(self.board(), MonotonicNs::now());
        Ok(state)
    }

    /// Its state as it was last changed, without a look at the processes. Cheap.
    pub(crate) fn last_change(self) -> GpuState {
        GpuState::from_words(&self.block().state.load())
    }

    /// Changes its state, at a time that no other change shares or is before.
    pub(crate) fn update<R>(
        self,
        change: impl FnOnce(&mut GpuState, MonotonicNs) -> R,
    ) -> Result<R, SimError> {
        let turn = self.driver.turns[self.index].lock();
        let _turn = turn.unwrap_or_else(PoisonError::into_inner);
        let file = self.driver.state.file();
        let _held = lock::hold(file, LockedThing::GpuState(self.index)).map_err(SimError::Lock)?;
        let mut state = self.last_change();
        let now = MonotonicNs::now();
        state.settle(self.board(), now);
        if state.activity != Activity::Idle && !self.is_active_process_alive(&state)? {
            state.begin(Activity::Idle, None);
        }
        let result = change(&mut state, now);
        self.block().state.publish(&state.to_words());
        Ok(result)
    }

    /// Whether the process in a slot still exists: only then is its lock held.
    pub(crate) fn is_alive(self, slot: usize) -> Result<bool, SimError> {
        let thing = LockedThing::Process { gpu: self.index, slot };
        lock::is_held_elsewhere(self.driver.state.file(), thing).map_err(SimError::Lock)
    }

    fn is_active_process_alive(self, state: &GpuState) -> Result<bool, SimError> {
        state.active_process.map_or(Ok(false), |slot| self.is_alive(slot))
    }

    /// The living processes on it.
    pub fn processes(self) -> Result<Vec<GpuProcess>, SimError> {
        let processes = self.last_change().processes;
        let mut living = Vec::with_capacity(PROCESSES_PER_GPU);
        for (slot, process) in processes.iter().enumerate() {
            if let Some(process) = process
                && self.is_alive(slot)?
            {
                living.push(*process);
            }
        }
        Ok(living)
    }

    /// The energy counter in mJ, as last refreshed. It never goes back, whoever looks.
    pub fn energy_mj(self) -> Result<u64, SimError> {
        let energy = self.view()?.published.millijoules();
        // A writer that lost the processor between its look at the clock and its change may have
        // been overtaken by a reader: whoever saw more was right until then.
        let shown = self.block().energy_shown_mj.fetch_max(energy, Ordering::AcqRel);
        let header = self.driver.state.header();
        if header.faults_armed.load(Ordering::Acquire) == 0 {
            return Ok(shown.max(energy));
        }
        let faulty = |energy_mj, slot: &FaultSlot| {
            slot.energy_mj("nvmlDeviceGetTotalEnergyConsumption", self.index(), energy_mj)
        };
        Ok(header.faults.iter().fold(shown.max(energy), faulty))
    }

    /// Locks the SM clock, or unlocks it: takes effect after the settling time.
    pub fn lock_clocks(self, lock: Option<ClockRange>) -> Result<(), SimError> {
        let (silicon, facts) = (self.silicon(), self.facts());
        let target = lock.map_or(facts.highest(), |range| range.max);
        let settling = silicon.settling_ns(target, facts.highest(), self.occasion());
        self.update(|state, now| {
            let from = now.after(Duration::from_nanos(settling));
            state.timeline.schedule_lock(from, lock, state.settled);
        })
    }

    /// Locks the memory clock, or unlocks it.
    pub fn lock_memory_clocks(self, lock: Option<ClockRange>) -> Result<(), SimError> {
        self.update(|state, _| state.memory_lock = lock)
    }

    /// Caps the power: work that would draw more runs at a lower clock. `None` is the default
    /// limit.
    pub fn cap_power(self, cap: Option<Milliwatts>) -> Result<(), SimError> {
        let cap = cap.filter(|&cap| cap != self.facts().default_power_limit());
        self.update(|state, now| state.timeline.set_power_cap(now, cap))
    }

    /// What becomes of its state when nobody has used it.
    fn forget_without_persistence(self) -> Result<(), SimError> {
        if self.last_change().persistence || !self.processes()?.is_empty() {
            return Ok(());
        }
        self.block().energy_shown_mj.store(0, Ordering::Release);
        self.update(|state, _| {
            state.timeline = Timeline::default();
            state.memory_lock = None;
            (state.counted, state.sampled) = (Picojoules(0), Picojoules(0));
            state.published = Picojoules(0);
        })
    }

    /// Switches persistence mode.
    pub fn set_persistence(self, on: bool) -> Result<(), SimError> {
        self.update(|state, _| state.persistence = on)
    }

    /// Switches MIG mode.
    pub fn set_mig(self, on: bool) -> Result<(), SimError> {
        let facts = self.facts();
        if !facts.has_mig {
            return Err(SimError::NotOnThisModel {
                gpu: self.index,
                model: facts.name,
                feature: "MIG mode",
            });
        }
        self.update(|state, _| state.mig = on)
    }

    /// How often `nvmlDeviceSetGpuLockedClocks` was entered, refused calls included.
    pub fn set_call_count(self) -> u64 {
        self.block().set_calls.count()
    }

    /// When it was entered last.
    pub fn last_set_call(self) -> Option<MonotonicNs> {
        self.block().set_calls.last_entered()
    }

    /// The kept calls from a number on, oldest first.
    pub fn set_calls_since(self, number: u64) -> Vec<SetCall> {
        self.block().set_calls.since(number)
    }

    /// How often the SM clock lock was reset.
    pub fn reset_call_count(self) -> u64 {
        self.block().reset_calls.load(Ordering::Relaxed)
    }

    /// How often the memory clock lock was set or reset.
    pub fn memory_call_count(self) -> u64 {
        self.block().memory_calls.load(Ordering::Relaxed)
    }
}
