//! Gives the shared library its name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Not `rustc-cdylib-link-arg`: cargo hands that on to the shared libraries of dependents.
    println!("cargo:rustc-link-arg=-Wl,-soname,libpfo.so.0");
    // The background thread and the fork handler run code of the library, so `dlclose` must not
    // unmap it.
    println!("cargo:rustc-link-arg=-Wl,-z,nodelete");
}
