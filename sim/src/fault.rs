//! Scripted faults: which NVML function misbehaves, how, on which GPU and how often.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::SimError;
use crate::nvml_result::NvmlResult;
use crate::state::layout::{FAULTS, NONE};

/// How many faults can be armed, for the message that says there are too many.
#[derive(Clone, Copy, Debug)]
pub struct FaultSlotCount;

impl fmt::Display for FaultSlotCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FAULTS}")
    }
}

/// How a call misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It does not return until the fault is cleared; then it goes on as if nothing had been.
    Hang,
    /// It ends the process.
    Crash,
    /// It takes this much longer.
    Latency(Duration),
    /// It does nothing and returns this.
    Refuse(NvmlResult),
    /// It does nothing and says that it has: on a setter only.
    Ignore,
    /// The text that it returns is not UTF-8.
    Garble,
    /// The energy that it returns is this part of the true one, in percent.
    Scaled(u32),
    /// From now on its energy counts this part of the true one, in percent: with 0 it stands still.
    Rate(u32),
    /// Its energy, in mJ, has so many bits only.
    Wraps(u32),
}

impl FaultKind {
    /// Whether it changes the energy that a call returns, and nothing else of the call.
    fn changes_energy(self) -> bool {
        matches!(self, Self::Scaled(_) | Self::Rate(_) | Self::Wraps(_))
    }
}

impl FromStr for FaultKind {
    type Err = SimError;

    fn from_str(text: &str) -> Result<Self, SimError> {
        let wrong = |difference: &str| SimError::FaultKind {
            text: text.to_owned(),
            difference: difference.to_owned(),
        };
        if text == "hang" {
            return Ok(Self::Hang);
        }
        if text == "crash" {
            return Ok(Self::Crash);
        }
        if text == "ignored" {
            return Ok(Self::Ignore);
        }
        if text == "garbled" {
            return Ok(Self::Garble);
        }
        let number = |prefix: &str, most: u32| {
            let number = text.strip_prefix(prefix)?.parse().ok();
            Some(number.filter(|number| *number <= most).ok_or_else(|| wrong("no such number")))
        };
        if let Some(percent) = number("scaled:", MOST_PERCENT) {
            return percent.map(Self::Scaled);
        }
        if let Some(percent) = number("rate:", MOST_PERCENT) {
            return percent.map(Self::Rate);
        }
        if let Some(bits) = number("wraps:", 63) {
            return bits.map(Self::Wraps);
        }
        if let Some(ms) = text.strip_prefix("latency:") {
            let ms: f64 = ms.parse().map_err(|_| wrong("the latency is not a number of ms"))?;
            let latency = Duration::try_from_secs_f64(ms / 1e3)
                .map_err(|_| wrong("the latency is negative or too large"))?;
            return Ok(Self::Latency(latency));
        }
        NvmlResult::from_kebab(text)
            .filter(|&result| result != NvmlResult::Success)
            .map(Self::Refuse)
            .ok_or_else(|| wrong("there is no such kind"))
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hang => f.write_str("hang"),
            Self::Crash => f.write_str("crash"),
            Self::Latency(latency) => write!(f, "latency:{}", latency.as_secs_f64() * 1e3),
            Self::Refuse(result) => f.write_str(&result.kebab()),
            Self::Ignore => f.write_str("ignored"),
            Self::Garble => f.write_str("garbled"),
            Self::Scaled(percent) => write!(f, "scaled:{percent}"),
            Self::Rate(percent) => write!(f, "rate:{percent}"),
            Self::Wraps(bits) => write!(f, "wraps:{bits}"),
        }
    }
}

/// The highest percentage: with it, the slot of a fault has room for the energy at which it began.
const PERCENT_BITS: u32 = 10;
const MOST_PERCENT: u32 = (1 << PERCENT_BITS) - 1;

/// Bytes of a function's name that are kept.
const NAME_BYTES: usize = 64;

/// Stands for every function.
const EVERY: &str = "*";

/// Stands for every function that changes something of a GPU.
const SETTERS: &str = "setters";

/// A function's name, or what stands for several.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FunctionName([u8; NAME_BYTES]);

impl FunctionName {
    fn covers(&self, name: &str) -> bool {
        match self.as_str() {
            EVERY => true,
            SETTERS => name.starts_with("nvmlDeviceSet") || name.starts_with("nvmlDeviceReset"),
            own => own == name,
        }
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
        str::from_utf8(&self.0[..end]).unwrap_or_default()
    }
}

impl fmt::Debug for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FunctionName {
    type Err = SimError;

    fn from_str(text: &str) -> Result<Self, SimError> {
        let wrong = |difference: &str| SimError::FaultFunction {
            text: text.to_owned(),
            difference: difference.to_owned(),
        };
        if ![EVERY, SETTERS].contains(&text) && !text.starts_with("nvml") {
            return Err(wrong("NVML's functions begin with nvml; * and setters stand for several"));
        }
        if text.len() > NAME_BYTES || !text.is_ascii() {
            return Err(wrong("it is too long or not ASCII"));
        }
        let mut bytes = [0; NAME_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self(bytes))
    }
}

/// A fault to arm, or one that is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which function.
    pub function: FunctionName,
    /// How it misbehaves.
    pub kind: FaultKind,
    /// On which GPU; `None` is any, and calls that concern none.
    pub gpu: Option<usize>,
    /// How many more calls it hits; `None` is all.
    pub remaining: Option<u64>,
}

const FREE: u32 = 0;
const ARMED: u32 = 1;

const HANG: u32 = 1;
const LATENCY: u32 = 2;
const REFUSE: u32 = 3;
const CRASH: u32 = 4;
const IGNORE: u32 = 5;
const GARBLE: u32 = 6;
const SCALED: u32 = 7;
const RATE: u32 = 8;
const WRAPS: u32 = 9;

/// A fault in the state file. Armed and cleared under the header's lock, read and counted without.
#[repr(C)]
pub(crate) struct FaultSlot {
    state: AtomicU32,
    gpu: AtomicU32,
    kind: AtomicU32,
    _unused: AtomicU32,
    /// Nanoseconds of a latency, the number of an NVML result, a percentage and above it the energy at which
    /// a rate began, or a number of bits.
    argument: AtomicU64,
    /// Calls left; the highest value is "all".
    remaining: AtomicU64,
    /// Grows with each arming, so that a hung call knows its own fault.
    serial: AtomicU64,
    function: [AtomicU64; NAME_BYTES / 8],
}

impl FaultSlot {
    /// Arms the slot if it is free.
    pub(crate) fn arm(&self, fault: &Fault) -> bool {
        if self.state.load(Ordering::Acquire) != FREE {
            return false;
        }
        let (kind, argument) = match fault.kind {
            FaultKind::Hang => (HANG, 0),
            FaultKind::Crash => (CRASH, 0),
            FaultKind::Latency(latency) => (LATENCY, latency.as_nanos() as u64),
            FaultKind::Refuse(result) => (REFUSE, u64::from(result.number())),
            FaultKind::Ignore => (IGNORE, 0),
            FaultKind::Garble => (GARBLE, 0),
            FaultKind::Scaled(percent) => (SCALED, u64::from(percent)),
            FaultKind::Rate(percent) => (RATE, u64::from(percent)),
            FaultKind::Wraps(bits) => (WRAPS, u64::from(bits)),
        };
        self.gpu.store(fault.gpu.map_or(NONE, |gpu| gpu as u32), Ordering::Relaxed);
        self.kind.store(kind, Ordering::Relaxed);
        self.argument.store(argument, Ordering::Relaxed);
        self.remaining.store(fault.remaining.unwrap_or(u64::MAX), Ordering::Relaxed);
        for (word, bytes) in self.function.iter().zip(fault.function.0.chunks_exact(8)) {
            let bytes: [u8; 8] = std::array::from_fn(|i| bytes[i]);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        self.serial.fetch_add(1, Ordering::AcqRel);
        self.state.store(ARMED, Ordering::Release);
        true
    }

    /// Clears the slot; a call that hangs in it goes on.
    pub(crate) fn clear(&self) {
        self.state.store(FREE, Ordering::Release);
    }

    /// What is armed here.
    pub(crate) fn read(&self) -> Option<Fault> {
        if self.state.load(Ordering::Acquire) != ARMED {
            return None;
        }
        let argument = self.argument.load(Ordering::Relaxed);
        let kind = match self.kind.load(Ordering::Relaxed) {
            HANG => FaultKind::Hang,
            CRASH => FaultKind::Crash,
            LATENCY => FaultKind::Latency(Duration::from_nanos(argument)),
            IGNORE => FaultKind::Ignore,
            GARBLE => FaultKind::Garble,
            SCALED => FaultKind::Scaled(argument as u32),
            RATE => FaultKind::Rate(argument as u32 & MOST_PERCENT),
            WRAPS => FaultKind::Wraps(argument as u32),
            _ => FaultKind::Refuse(NvmlResult::from_number(argument as u32)),
        };
        let mut function = [0; NAME_BYTES];
        for (bytes, word) in function.chunks_exact_mut(8).zip(&self.function) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let (gpu, remaining) =
            (self.gpu.load(Ordering::Relaxed), self.remaining.load(Ordering::Relaxed));
        Some(Fault {
            function: FunctionName(function),
            kind,
            gpu: (gpu != NONE).then_some(gpu as usize),
            remaining: (remaining != u64::MAX).then_some(remaining),
        })
    }

    /// Whether a call is hit; if so, one hit fewer remains.
    pub(crate) fn hits(&self, function: &str, gpu: Option<usize>) -> Option<ArmedFault<'_>> {
        self.hits_kind(function, gpu, false)
    }

    /// The energy in mJ that a call returns in place of the true one.
    pub(crate) fn energy_mj(&self, function: &str, gpu: usize, true_mj: u64) -> u64 {
        match self.hits_kind(function, Some(gpu), true).map(|fault| fault.kind) {
            Some(FaultKind::Scaled(percent)) => part(true_mj, percent),
            Some(FaultKind::Rate(percent)) => {
                let began_mj = self.began_mj(true_mj);
                began_mj + part(true_mj.saturating_sub(began_mj), percent)
            }
            Some(FaultKind::Wraps(bits)) => true_mj & ((1 << bits) - 1),
            _ => true_mj,
        }
    }

    /// The energy at which this fault hit first.
    fn began_mj(&self, now_mj: u64) -> u64 {
        let begin = |argument: u64| {
            (argument >> PERCENT_BITS == 0).then_some(argument | now_mj << PERCENT_BITS)
        };
        let before = self.argument.fetch_update(Ordering::AcqRel, Ordering::Acquire, begin);
        before.map_or_else(|began| began >> PERCENT_BITS, |_| now_mj)
    }

    fn hits_kind(
        &self,
        function: &str,
        gpu: Option<usize>,
        changes_energy: bool,
    ) -> Option<ArmedFault<'_>> {
        let serial = self.serial.load(Ordering::Acquire);
        let fault = self.read().filter(|fault| fault.kind.changes_energy() == changes_energy)?;
        if !fault.function.covers(function) || (fault.gpu.is_some() && fault.gpu != gpu) {
            return None;
        }
        let take = |left: u64| match left {
            0 => None,
            u64::MAX => Some(u64::MAX),
            left => Some(left - 1),
        };
        self.remaining.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        Some(ArmedFault { slot: self, serial, kind: fault.kind })
    }
}

fn part(energy_mj: u64, percent: u32) -> u64 {
    (u128::from(energy_mj) * u128::from(percent) / 100) as u64
}

/// A fault that hit a call.
pub(crate) struct ArmedFault<'a> {
    slot: &'a FaultSlot,
    serial: u64,
    pub(crate) kind: FaultKind,
}

impl ArmedFault<'_> {
    /// Whether it has not been cleared since.
    pub(crate) fn persists(&self) -> bool {
        self.slot.state.load(Ordering::Acquire) == ARMED
            && self.slot.serial.load(Ordering::Acquire) == self.serial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> FaultSlot {
        FaultSlot {
            state: AtomicU32::new(0),
            gpu: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            _unused: AtomicU32::new(0),
            argument: AtomicU64::new(0),
            remaining: AtomicU64::new(0),
            serial: AtomicU64::new(0),
            function: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    fn fault(kind: &str, gpu: Option<usize>, remaining: Option<u64>) -> Fault {
        let function = "nvmlDeviceSetGpuLockedClocks".parse().unwrap();
        Fault { function, kind: kind.parse().unwrap(), gpu, remaining }
    }

    #[test]
    fn kinds_are_read_and_shown_in_the_same_words() {
        for kind in [
            "hang",
            "crash",
            "ignored",
            "garbled",
            "latency:50",
            "latency:0.5",
            "scaled:1",
            "rate:0",
            "wraps:32",
            "no-permission",
            "gpu-is-lost",
            "unknown",
        ] {
            assert_eq!(kind.parse::<FaultKind>().unwrap().to_string(), kind);
        }
        for kind in ["", "success", "latency:", "latency:-1", "hangs", "rate:x", "wraps:64"] {
            let message = kind.parse::<FaultKind>().unwrap_err().to_string();
            assert!(message.contains("latency:MS"), "{message}");
        }
    }

    #[test]
    fn a_counted_fault_hits_that_many_calls_of_its_function_on_its_gpu() {
        let slot = slot();
        let armed = fault("gpu-is-lost", Some(2), Some(2));
        assert!(slot.arm(&armed));
        assert_eq!(slot.read(), Some(armed));
        let hits = |name, gpu| slot.hits(name, gpu).is_some();
        assert!(!hits("nvmlDeviceGetName", Some(2)));
        assert!(!hits("nvmlDeviceSetGpuLockedClocks", Some(1)));
        assert!(hits("nvmlDeviceSetGpuLockedClocks", Some(2)));
        assert!(hits("nvmlDeviceSetGpuLockedClocks", Some(2)));
        assert!(!hits("nvmlDeviceSetGpuLockedClocks", Some(2)));
    }

    #[test]
    fn a_fault_of_the_energy_changes_what_is_returned_and_not_the_call() {
        let changed = |kind: &str| {
            let slot = slot();
            assert!(
                slot.arm(&Fault { function: "*".parse().unwrap(), ..fault(kind, Some(1), None) })
            );
            assert!(slot.hits("nvmlDeviceGetTotalEnergyConsumption", Some(1)).is_none());
            [1000, 3000].map(|mj| slot.energy_mj("nvmlDeviceGetTotalEnergyConsumption", 1, mj))
        };
        assert_eq!(changed("scaled:1"), [10, 30]);
        assert_eq!(changed("rate:0"), [1000, 1000]);
        assert_eq!(changed("rate:50"), [1000, 2000]);
        assert_eq!(changed("wraps:11"), [1000, 3000 - 2048]);
        let spike = slot();
        assert!(
            spike.arm(&Fault {
                function: "*".parse().unwrap(),
                ..fault("scaled:200", None, Some(1))
            })
        );
        assert_eq!([7, 8].map(|mj| spike.energy_mj("nvml", 0, mj)), [14, 8]);
    }

    #[test]
    fn a_hung_call_sees_its_own_fault_cleared_even_if_another_takes_its_place() {
        let slot = slot();
        assert!(slot.arm(&fault("hang", None, Some(1))));
        assert!(!slot.arm(&fault("hang", None, None)));
        let hit = slot.hits("nvmlDeviceSetGpuLockedClocks", Some(0)).unwrap();
        assert!(hit.persists());
        slot.clear();
        assert!(slot.arm(&fault("hang", None, None)));
        assert!(!hit.persists());
    }
}
