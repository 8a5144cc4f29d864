//! The CUDA driver library of this process, if the trainer has loaded it.
//!
//! It is never loaded or initialized here: a library that only watches must not decide when a
//! trainer gets its contexts.

use std::ffi::{CStr, c_char, c_void};

/// A reference to the loaded library.
#[derive(Debug)]
pub(crate) struct CudaLibrary(*mut c_void);

#[allow(unsafe_code)]
impl CudaLibrary {
    pub(crate) fn find() -> Option<Self> {
        // SAFETY: with `RTLD_NOLOAD` this loads nothing, it only looks for what is there.
        let handle =
            unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        (!handle.is_null()).then(|| Self(handle))
    }

    /// A function of the library, if this version has it.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to that function, which must not be called when `self` is
    /// gone.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is a loaded library, the name ends with NUL.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr().cast::<c_char>()) };
        // SAFETY: both are pointers, the symbol is not NULL, and the type is as the caller
        // promises.
        (!symbol.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&symbol) })
    }
}

// SAFETY: the handle is only given to functions that any thread may call.
#[allow(unsafe_code)]
unsafe impl Send for CudaLibrary {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for CudaLibrary {}

#[allow(unsafe_code)]
impl Drop for CudaLibrary {
    fn drop(&mut self) {
        // SAFETY: the handle came from `dlopen` and is given back once.
        unsafe { libc::dlclose(self.0) };
    }
}
