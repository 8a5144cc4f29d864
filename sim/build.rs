//! Gives the simulated library the SONAME of NVIDIA's, so that a link named after it satisfies
//! the dynamic loader.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
