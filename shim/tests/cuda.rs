//! A process that has CUDA initialized is asked which GPU an ordinal means, here with a library
//! that has CUDA's name and functions.

use std::ffi::CString;
use std::path::Path;
use std::process::Command;

use crate::fake::Place;
use pfo::{Gpu, ProblemCode, RankDescription, Session};

/// Ordinal 0 is a whole GPU, 1 a MIG instance, all others do not exist.
const CUDA: &str = r#"
#include <string.h>
int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal > 1 ? 101 : 0;
}
int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    memset(uuid, 0xab, 16);
    return 0;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    memset(uuid, device == 1 ? 0xcd : 0xab, 16);
    return 0;
}
"#;

fn load_cuda(directory: &Path) -> bool {
    let source = directory.join("cuda.c");
    let library = directory.join("libcuda.so.1");
    std::fs::write(&source, CUDA).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]);
    let Ok(status) = compiler.arg(&library).arg(&source).status() else {
        eprintln!("skipped: there is no C compiler `cc`");
        return false;
    };
    assert!(status.success());
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: the library was made a moment ago and has no constructors.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    true
}

// One test: the library stays loaded in this process.
#[test]
fn a_cuda_ordinal_is_what_cuda_says_it_is() {
    let place = Place::new();
    let ordinal =
        |ordinal| RankDescription { gpu: Some(Gpu::CudaOrdinal(ordinal)), ..place.description() };
    if !load_cuda(place.directory()) {
        return;
    }
    let daemon = place.daemon();
    let (_session, peer) = daemon.open(ordinal(0));
    assert_eq!(peer.hello().gpu.to_string(), "GPU-abababab-abab-abab-abab-abababababab");

    for (number, reason) in [(1, "MIG instance"), (2, "CUDA has no device cuda:2")] {
        let session = Session::open(ordinal(number)).unwrap();
        let problem = session.problem().unwrap();
        assert_eq!(problem.code, ProblemCode::GpuUnresolved);
        assert!(problem.message.contains(reason), "{problem}");
    }
}
