//! Gives the shared library its name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpfo.so.0");
    // The background thread and the fork handler run code of the library, so `dlclose` must not unmap it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
