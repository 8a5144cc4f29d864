//! A session whose calls count when the GPU gets to them, here a GPU that gets as far as the test
//! says.

use crate::fake;
use std::ffi::{CString, c_char, c_int, c_long, c_void};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::fake::{Peer, Place, until};
use pfo::{Call, Instruction, Stream, StreamOrdered, Told};
use pfo_protocol::{ClientMessage, Mark};
use tempfile::TempDir;

/// The stand-in of CUDA, loaded into this process for good.
#[derive(Clone, Copy)]
struct Cuda(*mut c_void);

// SAFETY: it has locks of its own.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl Cuda {
    fn load() -> Option<Self> {
        static LOADED: OnceLock<Option<Cuda>> = OnceLock::new();
        *LOADED.get_or_init(|| {
            let directory = TempDir::new().unwrap();
            let library = directory.path().join("libcuda.so.1");
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/streams.c");
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1", "-o"]);
            let Ok(status) = compiler.arg(&library).arg(source).status() else {
                eprintln!("skipped: there is no C compiler `cc`");
                return None;
            };
            assert!(status.success());
            let path = CString::new(library.to_str().unwrap()).unwrap();
            // SAFETY: the library was made a moment ago and has no constructors.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
            assert!(!handle.is_null());
            Some(Self(handle))
        })
    }

    /// The stand-in, with a context that is current to this thread.
    fn with_context() -> Option<Self> {
        let cuda = Self::load()?;
        cuda.make_current(1);
        Some(cuda)
    }

    fn function(self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the library is loaded, the name ends with NUL.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr().cast::<c_char>()) };
        assert!(!function.is_null());
        function
    }

    fn set(self, name: &str, stream: Stream, value: c_int) {
        let function = self.function(name);
        // SAFETY: the source has it with this type.
        let function: extern "C" fn(c_long, c_int) = unsafe { std::mem::transmute(function) };
        function(stream.0 as c_long, value);
    }

    fn get(self, name: &str, stream: Stream) -> c_int {
        let function = self.function(name);
        // SAFETY: the source has it with this type, or without the argument, which is no harm in C.
        let function: extern "C" fn(c_long) -> c_int = unsafe { std::mem::transmute(function) };
        function(stream.0 as c_long)
    }

    fn make_current(self, context: usize) {
        let function = self.function("test_make_current");
        // SAFETY: the source has it with this type.
        let function: extern "C" fn(usize) = unsafe { std::mem::transmute(function) };
        function(context);
    }

    fn reach(self, stream: Stream, number: c_int) {
        self.set("test_reach", stream, number);
    }
}

fn forward() -> Call {
    Call::InstructionBegin { instruction: Instruction::Forward, chunk: 0, microbatch: None }
}

/// Places that keep their socket as long as their session.
fn session(place: &Place) -> (StreamOrdered, Peer) {
    let (session, peer) = place.session(&place.daemon());
    (StreamOrdered::new(session), peer)
}

fn sent(ordered: &StreamOrdered) -> u64 {
    ordered.session().counters().sent
}

#[test]
fn a_call_counts_when_the_gpu_gets_to_it_and_the_host_runs_ahead() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, stream) = (Place::new(), Stream(1));
    let (ordered, mut peer) = session(&place);
    for call in [Call::StepBegin, forward(), Call::InstructionEnd, Call::StepEnd] {
        ordered.tell(call, || stream);
    }
    assert_eq!(sent(&ordered), 0, "the GPU has not begun");
    cuda.reach(stream, 2);
    let Mark::StepBegin(0) = peer.event().mark else { panic!() };
    let Mark::InstructionBegin(unit) = peer.event().mark else { panic!() };
    assert_eq!((unit.instruction, unit.microbatch.0, sent(&ordered)), (Instruction::Forward, 0, 2));
    cuda.reach(stream, 4);
    assert_eq!(peer.marks(2), [Mark::InstructionEnd(unit), Mark::StepEnd(0)]);
}

#[test]
fn calls_on_several_streams_stay_in_the_order_in_which_they_were_made() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, compute, copy) = (Place::new(), Stream(2), Stream(3));
    let (ordered, mut peer) = session(&place);
    ordered.tell(Call::StepBegin, || compute);
    ordered.tell(Call::StepEnd, || copy);
    cuda.reach(copy, 1);
    assert_eq!(sent(&ordered), 0, "the later call does not overtake");
    cuda.reach(compute, 1);
    assert_eq!(peer.marks(2), [Mark::StepBegin(0), Mark::StepEnd(0)]);
}

#[test]
fn while_a_graph_is_captured_nothing_is_recorded_or_told() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, stream) = (Place::new(), Stream(4));
    let (ordered, mut peer) = session(&place);
    assert_eq!(ordered.tell(Call::StepBegin, || stream), Told::ByGpu);
    cuda.set("test_capture", stream, 1);
    for call in [forward(), Call::InstructionEnd] {
        assert_eq!(ordered.tell(call, || stream), Told::Captured);
    }
    cuda.set("test_capture", stream, 0);
    ordered.tell(Call::StepEnd, || stream);
    assert_eq!((cuda.get("test_recorded", stream), sent(&ordered)), (2, 0));
    assert_eq!((ordered.captured(), ordered.untimed()), (2, 0));
    cuda.reach(stream, 2);
    assert_eq!(peer.marks(2), [Mark::StepBegin(0), Mark::StepEnd(0)]);
    assert_eq!(cuda.get("test_spoilt", stream), 0);
}

#[test]
fn a_call_carries_the_time_of_the_gpu_and_not_that_of_the_wake_up() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, stream) = (Place::new(), Stream(15));
    let (ordered, mut peer) = session(&place);
    ordered.tell(Call::StepBegin, || stream);
    ordered.tell(Call::StepEnd, || stream);
    cuda.set("test_clock", stream, 7000);
    cuda.reach(stream, 1);
    let begun = peer.event();
    // The host sees the second event 50 ms later, but on the GPU it was 3 ms.
    std::thread::sleep(Duration::from_millis(50));
    cuda.set("test_clock", stream, 7003);
    cuda.reach(stream, 2);
    cuda.set("test_clock", stream, -1);
    assert_eq!(peer.event().client_ns - begun.client_ns, 3_000_000);
}

#[test]
fn a_time_that_the_caller_knows_goes_with_its_call_in_the_order_of_all() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, stream) = (Place::new(), Stream(16));
    let (ordered, mut peer) = session(&place);
    ordered.tell_at(Call::StepBegin, 11);
    assert_eq!(peer.event().client_ns, 11);
    ordered.tell(Call::StepEnd, || stream);
    ordered.tell(Call::StepBegin, || stream);
    ordered.tell_at(Call::StepEnd, 12);
    assert_eq!(sent(&ordered), 2, "the GPU has not got to the call before it");
    cuda.reach(stream, 1);
    assert_eq!(peer.marks(1), [Mark::StepEnd(0)]);
    assert_eq!((peer.marks(1), peer.event().client_ns), (vec![Mark::StepBegin(1)], 12));
}

#[test]
fn a_thread_that_has_no_context_yet_borrows_that_of_the_session() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, stream) = (Place::new(), Stream(11));
    let (ordered, mut peer) = session(&place);
    ordered.tell(Call::StepBegin, || stream);
    std::thread::scope(|scope| {
        scope.spawn(|| ordered.tell(Call::StepEnd, || stream));
    });
    assert_eq!((cuda.get("test_recorded", stream), sent(&ordered)), (2, 0));
    cuda.reach(stream, 2);
    assert_eq!(peer.marks(2), [Mark::StepBegin(0), Mark::StepEnd(0)]);
}

#[test]
fn a_gpu_that_fails_holds_nothing_up() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, stream) = (Place::new(), Stream(5));
    let (ordered, mut peer) = session(&place);
    ordered.tell(Call::StepBegin, || stream);
    ordered.tell(Call::StepEnd, || stream);
    cuda.reach(stream, -1);
    assert_eq!(peer.marks(2), [Mark::StepBegin(0), Mark::StepEnd(0)]);
}

#[test]
fn a_session_ends_when_the_gpu_has_got_to_its_last_call() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, stream) = (Place::new(), Stream(6));
    let (ordered, mut peer) = session(&place);
    ordered.tell(Call::StepBegin, || stream);
    ordered.tell(Call::StepEnd, || stream);
    ordered.wait(Duration::from_millis(10));
    drop(ordered);
    cuda.reach(stream, 2);
    assert_eq!(peer.marks(2), [Mark::StepBegin(0), Mark::StepEnd(0)]);
    assert_eq!(peer.rest(), [ClientMessage::Goodbye]);
}

#[test]
fn without_a_context_calls_count_when_they_are_made_until_a_step_begins_with_one() {
    let Some(cuda) = Cuda::load() else { return };
    let (place, stream) = (Place::new(), Stream(7));
    let (ordered, mut peer) = session(&place);
    ordered.tell(Call::StepBegin, || panic!("there is no stream to ask for"));
    cuda.make_current(1);
    ordered.tell(Call::StepEnd, || panic!("nor is one looked for inside a step"));
    assert_eq!(peer.marks(2), [Mark::StepBegin(0), Mark::StepEnd(0)]);
    ordered.tell(Call::StepBegin, || stream);
    assert_eq!((cuda.get("test_recorded", stream), sent(&ordered)), (1, 2));
    cuda.reach(stream, 1);
    assert_eq!(peer.marks(1), [Mark::StepBegin(1)]);
}

#[test]
fn a_call_under_another_context_is_timed_in_that_of_the_sessions_gpu() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, stream) = (Place::new(), Stream(8));
    let (ordered, mut peer) = session(&place);
    ordered.tell(Call::StepBegin, || stream);
    cuda.make_current(2);
    ordered.tell(Call::StepEnd, || stream);
    assert_eq!((cuda.get("test_recorded", stream), ordered.untimed()), (2, 0));
    cuda.reach(stream, 1);
    assert_eq!(peer.marks(1), [Mark::StepBegin(0)]);
    assert_eq!(sent(&ordered), 1, "the GPU has not got to the second");
    cuda.reach(stream, 2);
    assert_eq!(peer.marks(1), [Mark::StepEnd(0)]);
}

#[test]
fn a_call_on_a_stream_of_another_gpu_counts_as_soon_as_those_before_it_and_is_counted() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, own, foreign) = (Place::new(), Stream(12), Stream(13));
    cuda.set("test_own", foreign, 1);
    let (ordered, mut peer) = session(&place);
    ordered.tell(Call::StepBegin, || own);
    ordered.tell(Call::StepEnd, || foreign);
    assert_eq!((ordered.untimed(), sent(&ordered)), (1, 0));
    cuda.reach(own, 1);
    assert_eq!(peer.marks(2), [Mark::StepBegin(0), Mark::StepEnd(0)]);
}

#[test]
fn a_full_launch_queue_keeps_nobody_from_giving_up_waiting() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, stream) = (Place::new(), Stream(14));
    let (ordered, _peer) = session(&place);
    ordered.tell(Call::StepBegin, || stream);
    cuda.set("test_block", stream, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| ordered.tell(Call::StepEnd, || stream));
        until(|| cuda.get("test_blocked", stream) == 1);
        ordered.wait(Duration::from_millis(10));
        pfo::wait_for_gpu(Duration::from_millis(10));
        assert_eq!(sent(&ordered), 0);
        cuda.set("test_block", stream, 0);
    });
    cuda.reach(stream, 2);
    until(|| sent(&ordered) == 2);
}

#[test]
fn who_waits_for_the_gpu_goes_on_when_it_has_got_to_the_last_call() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, stream) = (Place::new(), Stream(10));
    let (ordered, _peer) = session(&place);
    ordered.tell(Call::StepBegin, || stream);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ordered.wait(fake::PATIENCE));
        assert_eq!(sent(&ordered), 0);
        cuda.reach(stream, 1);
        waiting.join().unwrap();
        assert_eq!(sent(&ordered), 1);
    });
}

#[test]
fn events_are_used_again() {
    let Some(cuda) = Cuda::with_context() else { return };
    let (place, stream) = (Place::new(), Stream(9));
    let (ordered, mut peer) = session(&place);
    let before = cuda.get("test_events", stream);
    cuda.reach(stream, 1000);
    for _ in 0..200 {
        ordered.tell(Call::StepBegin, || stream);
        let _ = peer.event();
    }
    // Those of other tests come and go meanwhile.
    assert!(cuda.get("test_events", stream) - before < 100);
    until(|| sent(&ordered) == 200);
}
