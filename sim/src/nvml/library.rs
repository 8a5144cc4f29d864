//! Starting and ending the library, and questions about the system.

use std::ffi::{c_char, c_int, c_uint};
use std::fs::{self, File};
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use crate::driver::Driver;
use crate::nvml::abi::{Out, put, put_text};
use crate::nvml::{guarded, play_faults, system_call};
use crate::nvml_result::NvmlResult;
use crate::state::file::state_path;

struct Library {
    /// Calls of init without their shutdown.
    users: u32,
    driver: Option<Arc<Driver>>,
    /// Shows that this process has the driver open.
    life: Option<File>,
    /// Who opened the driver: a forked child needs its own.
    opened_by: u32,
    /// What [`Driver::reloads`] was then.
    reloads: u32,
}

static LIBRARY: Mutex<Library> =
    Mutex::new(Library { users: 0, driver: None, life: None, opened_by: 0, reloads: 0 });

impl Library {
    fn driver(&mut self) -> Result<Arc<Driver>, NvmlResult> {
        let this_process = process::id();
        match &self.driver {
            Some(driver) if self.opened_by == this_process => Ok(driver.clone()),
            _ => {
                let driver = Arc::new(Driver::open(&state_path())?);
                self.life = Some(driver.enter_client()?);
                self.driver = Some(driver.clone());
                self.opened_by = this_process;
                self.reloads = driver.reloads();
                Ok(driver)
            }
        }
    }
}

/// The open driver.
pub(super) fn current() -> Result<Arc<Driver>, NvmlResult> {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    if library.users == 0 {
        return Err(NvmlResult::Uninitialized);
    }
    let driver = library.driver()?;
    if driver.reloads() == library.reloads { Ok(driver) } else { Err(NvmlResult::GpuIsLost) }
}

fn init(name: &str) -> Result<(), NvmlResult> {
    let driver = {
        let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = library.driver()?;
        if library.users == 0 && !driver.is_loaded() {
            (library.driver, library.life) = (None, None);
            return Err(NvmlResult::DriverNotLoaded);
        }
        driver
    };
    play_faults(&driver, name, None)?;
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner).users += 1;
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> c_uint {
    guarded(|| init("nvmlInit"))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_uint {
    guarded(|| init("nvmlInit_v2"))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_uint {
    guarded(|| init("nvmlInitWithFlags"))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> c_uint {
    guarded(|| {
        let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
        library.users = library.users.checked_sub(1).ok_or(NvmlResult::Uninitialized)?;
        if library.users == 0 {
            (library.driver, library.life) = (None, None);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: c_uint) -> *const c_char {
    NvmlResult::from_number(result).text().as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> c_uint {
    system_call("nvmlSystemGetDriverVersion", |driver| {
        // SAFETY: NVML's callers pass a buffer and its length.
        unsafe { put_text(version, length, driver.version().to_string()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> c_uint {
    system_call("nvmlSystemGetNVMLVersion", |driver| {
        let cuda = driver.version().cuda() / 1000;
        // SAFETY: NVML's callers pass a buffer and its length.
        unsafe { put_text(version, length, format!("{cuda}.{}", driver.version())) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion(version: Out<'_, c_int>) -> c_uint {
    system_call("nvmlSystemGetCudaDriverVersion", |driver| put(version, driver.version().cuda()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Out<'_, c_int>) -> c_uint {
    system_call("nvmlSystemGetCudaDriverVersion_v2", |driver| put(version, driver.version().cuda()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetProcessName(
    pid: c_uint,
    name: *mut c_char,
    length: c_uint,
) -> c_uint {
    system_call("nvmlSystemGetProcessName", |_| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NvmlResult::NotFound)?;
        let program = line.split(|&byte| byte == 0).next().unwrap_or_default();
        let mut program = String::from_utf8_lossy(program).into_owned();
        let room = (length as usize).saturating_sub(1);
        while program.len() > room {
            program.pop();
        }
        // SAFETY: NVML's callers pass a buffer and its length.
        unsafe { put_text(name, length, program) }
    })
}
