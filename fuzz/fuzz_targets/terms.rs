//! See the library.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pfo_fuzz::terms::terms(bytes));
