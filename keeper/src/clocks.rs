//! The one writer of a leased GPU's clocks and power limit: it records in the ledger, then calls
//! NVML.
//!
//! Only the thread of the rank that holds the lease owns one of these.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nvml_wrapper::enums::device::GpuLockedClocksSetting;
use pfo_vocabulary::{GpuUuid, Mhz, Milliwatts};

use crate::device::KeptDevice;
use crate::driver::Gpu;
use crate::driver_error::DriverError;
use crate::ledger::{Entry, Ledger, LedgerError};
use crate::power_limit::{self, OwedLimit};
use crate::published::{Published, now_ns};
use crate::restore::{self, RestoreError};
use crate::setting::only_observes;

/// Why a clock or a power limit is not what was requested.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Nothing was locked, because it could not be recorded first.
    #[error("{0}; no clock is locked without a record of it")]
    Ledger(#[from] LedgerError),
    /// pfo only lowers what a GPU may draw.
    #[error("a power limit of {asked} is above the {without_pfo} that GPU {gpu} has without pfo")]
    Raised {
        /// The limit.
        asked: Milliwatts,
        /// The one in force before.
        without_pfo: Milliwatts,
        /// The GPU.
        gpu: GpuUuid,
    },
}

/// The clocks of one leased GPU.
#[derive(Debug)]
pub struct Clocks {
    device: KeptDevice,
    gpu: Arc<Gpu>,
    ledger: Arc<Ledger>,
    entry: Entry,
    locked: Option<Mhz>,
    asked_ns: u64,
    limited: Option<Milliwatts>,
    published: Arc<Published>,
}

impl Clocks {
    /// The clocks of a GPU on which nothing is locked yet; `entry` names the owner of its future
    /// locks.
    ///
    /// # Errors
    /// If the GPU is gone.
    pub fn new(
        gpu: Arc<Gpu>,
        ledger: Arc<Ledger>,
        entry: Entry,
        published: Arc<Published>,
    ) -> Result<Self, DriverError> {
        let device = gpu.kept_device()?;
        let (locked, asked_ns, limited) = (None, 0, None);
        Ok(Self { device, gpu, ledger, entry, locked, asked_ns, limited, published })
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The locked SM clock, and when the driver was asked for it (`CLOCK_MONOTONIC`, ns).
    #[must_use]
    pub fn locked(&self) -> Option<(Mhz, u64)> {
        self.locked.map(|mhz| (mhz, self.asked_ns))
    }

    /// Locks the SM clock. An unchanged clock is not set again. The first lock of a lease goes
    /// through the ledger; later ones only through the driver.
    ///
    /// # Errors
    /// If the ledger cannot be written or the driver refuses.
    pub fn lock_sm(&mut self, mhz: Mhz) -> Result<(), ClockError> {
        if self.locked == Some(mhz) || only_observes() {
            return Ok(());
        }
        if !self.entry.sm {
            self.record(Entry { sm: true, ..self.entry.clone() })?;
        }
        let setting =
            GpuLockedClocksSetting::Numeric { min_clock_mhz: mhz.0, max_clock_mhz: mhz.0 };
        let began_ns = now_ns();
        self.published.in_driver_since_ns.store(began_ns, Relaxed);
        let result = self.gpu.set(&mut self.device.get(), "locking its SM clock", |device| {
            device.set_gpu_locked_clocks(setting)
        });
        self.published.in_driver_since_ns.store(0, Relaxed);
        let took_ns = now_ns().saturating_sub(began_ns);
        self.published.count_set_call(took_ns);
        self.gpu.asked.changed(took_ns);
        self.asked_ns = began_ns;
        self.locked = result.is_ok().then_some(mhz);
        self.published.locked_mhz.store(self.locked.map_or(0, |mhz| mhz.0), Relaxed);
        Ok(result?)
    }

    /// Forgets which clock is locked, because another program may have set one: the next is set
    /// even if it is the same.
    pub fn forget_lock(&mut self) {
        self.locked = None;
    }

    /// Frees the SM clock, if it is locked.
    ///
    /// # Errors
    /// If the driver refuses or the ledger cannot be written.
    pub fn release_sm(&mut self) -> Result<(), ClockError> {
        if !self.entry.sm {
            return Ok(());
        }
        restore::restore_sm(&mut self.device.get(), &self.gpu, self.entry.restore_to_mhz)?;
        self.locked = None;
        self.published.locked_mhz.store(0, Relaxed);
        self.record(Entry { sm: false, ..self.entry.clone() })
    }

    /// Locks the memory clock to its highest, where the GPU can do that.
    ///
    /// # Errors
    /// If the ledger cannot be written or the driver refuses.
    pub fn lock_memory(&mut self) -> Result<(), ClockError> {
        let Some(mhz) = self.gpu.memory_clock.filter(|_| !only_observes()) else {
            return Ok(());
        };
        self.record(Entry { memory: true, ..self.entry.clone() })?;
        let result = self.gpu.set(&mut self.device.get(), "locking its memory clock", |device| {
            device.set_mem_locked_clocks(mhz.0, mhz.0)
        });
        if let Err(error) = result {
            return match error {
                error if error.is_not_supported() => {
                    self.record(Entry { memory: false, ..self.entry.clone() })
                }
                error => Err(error.into()),
            };
        }
        self.published.memory_locked_mhz.store(mhz.0, Relaxed);
        Ok(())
    }

    /// Frees the memory clock, if it is locked; returns whether it was.
    ///
    /// # Errors
    /// If the driver refuses or the ledger cannot be written.
    pub fn release_memory(&mut self) -> Result<bool, ClockError> {
        let is_locked = self.entry.memory;
        if is_locked {
            restore::reset_memory(&mut self.device.get(), &self.gpu)?;
            self.published.memory_locked_mhz.store(0, Relaxed);
            self.record(Entry { memory: false, ..self.entry.clone() })?;
        }
        Ok(is_locked)
    }

    /// Whether the power limit is as it should be, as far as pfo knows.
    #[must_use]
    pub fn has_power_limit(&self, wish: Option<Milliwatts>) -> bool {
        match wish {
            Some(_) => self.limited == wish || only_observes(),
            None => self.entry.power_limit.is_none(),
        }
    }

    /// Limits the power. The previous limit is restored once no limit is wanted any more.
    ///
    /// # Errors
    /// If that would raise it, the ledger cannot be written or the driver refuses.
    pub fn limit_power(&mut self, limit: Milliwatts) -> Result<(), ClockError> {
        let now = power_limit::read(&self.device.get(), &self.gpu)?;
        let without_pfo = OwedLimit::without_pfo(self.entry.power_limit, now);
        if limit > without_pfo {
            let gpu = self.gpu.uuid.clone();
            return Err(ClockError::Raised { asked: limit, without_pfo, gpu });
        }
        let owed = OwedLimit::for_limit(limit, now, self.entry.power_limit);
        self.record(Entry { power_limit: Some(owed), ..self.entry.clone() })?;
        self.limited = None;
        self.published.in_driver_since_ns.store(now_ns(), Relaxed);
        let result = self.gpu.set(&mut self.device.get(), "setting its power limit", |device| {
            device.set_power_management_limit(limit.0)
        });
        self.published.in_driver_since_ns.store(0, Relaxed);
        self.limited = result.is_ok().then_some(limit);
        self.published.power_limit_w.store(self.limited.map_or(0, Milliwatts::watts), Relaxed);
        Ok(result?)
    }

    /// Restores the previous power limit, if the one in force differs and is pfo's.
    ///
    /// # Errors
    /// If the driver refuses or the ledger cannot be written.
    pub fn release_power(&mut self) -> Result<(), ClockError> {
        let Some(owed) = self.entry.power_limit else {
            return Ok(());
        };
        power_limit::put_back(&mut self.device.get(), &self.gpu, owed)?;
        self.limited = None;
        self.published.power_limit_w.store(0, Relaxed);
        self.record(Entry { power_limit: None, ..self.entry.clone() })
    }

    /// Undoes everything that is locked or limited.
    ///
    /// # Errors
    /// If the driver refuses; the ledger then still names what is owed.
    pub fn restore(&mut self) -> Result<(), RestoreError> {
        restore::restore(&mut self.device.get(), &self.gpu, &self.entry, &self.ledger)?;
        self.entry = Entry { sm: false, memory: false, power_limit: None, ..self.entry.clone() };
        (self.locked, self.limited) = (None, None);
        self.published.locked_mhz.store(0, Relaxed);
        self.published.memory_locked_mhz.store(0, Relaxed);
        self.published.power_limit_w.store(0, Relaxed);
        Ok(())
    }

    fn record(&mut self, entry: Entry) -> Result<(), ClockError> {
        self.ledger.record(entry.clone())?;
        self.entry = entry;
        Ok(())
    }
}
