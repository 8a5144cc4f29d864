//! CUDA events of the trainer's own context: recorded in a stream, waited for on another thread.
//!
//! Names, types and numbers are those of `cuda.h`, where they have been the same since CUDA 10.1.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use pfo_protocol::GpuUuid;

use crate::cuda_library::CudaLibrary;

type Context = *mut c_void;
type RawEvent = *mut c_void;
type RawStream = *mut c_void;

type RetainContext = unsafe extern "C" fn(*mut Context, c_int) -> c_int;
type ReleaseContext = unsafe extern "C" fn(c_int) -> c_int;

const SUCCESS: c_int = 0;

/// A thread that waits sleeps until the GPU interrupts, instead of spinning on a core.
const BLOCKING_SYNC: c_uint = 1;

const CAPTURE_STATUS_NONE: c_int = 0;
const CAPTURE_MODE_RELAXED: c_int = 2;

/// A CUDA stream by its handle, a `CUstream` or `cudaStream_t`; 0 is the default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub usize);

impl Stream {
    fn raw(self) -> RawStream {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

/// Why no event was recorded, with the event that is still to spare.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotRecorded {
    /// The stream is being captured into a graph: what is said now happens when the graph is launched, any
    /// number of times, or never.
    Captured(Option<Event>),
    /// The stream is one of another context, or CUDA has failed.
    Failed(Option<Event>),
}

/// An event, to be used with the [`CudaEvents`] that made it only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event(RawEvent);

// SAFETY: any thread may use an event.
#[allow(unsafe_code)]
unsafe impl Send for Event {}

/// The functions that it takes, and the context of the session's GPU.
#[derive(Debug)]
pub(crate) struct CudaEvents {
    context: Context,
    /// The CUDA ordinal of the context's GPU, if that is known.
    ordinal: Option<u32>,
    get_current: unsafe extern "C" fn(*mut Context) -> c_int,
    set_current: unsafe extern "C" fn(Context) -> c_int,
    create: unsafe extern "C" fn(*mut RawEvent, c_uint) -> c_int,
    record: unsafe extern "C" fn(RawEvent, RawStream) -> c_int,
    synchronize: unsafe extern "C" fn(RawEvent) -> c_int,
    elapsed: unsafe extern "C" fn(*mut f32, RawEvent, RawEvent) -> c_int,
    destroy: unsafe extern "C" fn(RawEvent) -> c_int,
    is_capturing: unsafe extern "C" fn(RawStream, *mut c_int) -> c_int,
    exchange_capture_mode: unsafe extern "C" fn(*mut c_int) -> c_int,
    // The functions are in it.
    library: CudaLibrary,
}

// SAFETY: a context may be current to any number of threads, and every function may be called from
// any.
#[allow(unsafe_code)]
unsafe impl Send for CudaEvents {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for CudaEvents {}

#[allow(unsafe_code)]
impl CudaEvents {
    /// Those of the context in which this process works on a GPU, or why there are none.
    pub(crate) fn of(gpu: &GpuUuid) -> Result<Self, String> {
        let library = CudaLibrary::find().ok_or("this process has not loaded CUDA")?;
        let mut events = Self::in_no_context(library).ok_or("this CUDA lacks functions for it")?;
        let library = &events.library;
        let context = match library.ordinal(gpu) {
            Some(ordinal) if library.has_context(ordinal) => {
                events.ordinal = Some(ordinal);
                library.context(ordinal)
            }
            Some(ordinal) => return Err(format!("there is no CUDA context on cuda:{ordinal}")),
            None if library.devices() > 0 => return Err(format!("CUDA does not see {gpu}")),
            // Not initialized yet, as far as can be seen.
            None => events.current(),
        };
        events.context = context.ok_or("there is no CUDA context")?;
        Ok(events)
    }

    fn in_no_context(library: CudaLibrary) -> Option<Self> {
        // SAFETY: each has the type of its field in every `cuda.h` that declares it, and is called
        // only as long as the library is there beside it.
        Some(unsafe {
            Self {
                context: ptr::null_mut(),
                ordinal: None,
                get_current: library.function(c"cuCtxGetCurrent")?,
                set_current: library.function(c"cuCtxSetCurrent")?,
                create: library.function(c"cuEventCreate")?,
                record: library.function(c"cuEventRecord")?,
                synchronize: library.function(c"cuEventSynchronize")?,
                elapsed: library.function(c"cuEventElapsedTime")?,
                destroy: library.function(c"cuEventDestroy_v2")?,
                is_capturing: library.function(c"cuStreamIsCapturing")?,
                exchange_capture_mode: library.function(c"cuThreadExchangeStreamCaptureMode")?,
                library,
            }
        })
    }

    pub(crate) fn ordinal(&self) -> Option<u32> {
        self.ordinal
    }

    /// The context that is current to this thread.
    fn current(&self) -> Option<Context> {
        let mut context = ptr::null_mut();
        // SAFETY: it writes one handle, and may be called before CUDA is initialized.
        let result = unsafe { (self.get_current)(&raw mut context) };
        (result == SUCCESS && !context.is_null()).then_some(context)
    }

    /// Has this thread, which must be ours, wait for events from now on.
    pub(crate) fn wait_on_this_thread(&self) {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: both change this thread only. In any other mode, waiting for an event would spoil
        // the capture of a graph that the trainer is making on another thread.
        unsafe {
            (self.set_current)(self.context);
            (self.exchange_capture_mode)(&raw mut mode);
        }
    }

    /// Whether work given to this stream is captured into a graph instead of run; none if CUDA does not say.
    fn captures(&self, stream: Stream) -> Option<bool> {
        let mut status = CAPTURE_STATUS_NONE;
        // SAFETY: the stream is one of this process, as the caller's word goes; it writes one
        // number.
        let result = unsafe { (self.is_capturing)(stream.raw(), &raw mut status) };
        (result == SUCCESS).then_some(status != CAPTURE_STATUS_NONE)
    }

    /// Records an event in a stream of the context, this one if there is one to spare.
    ///
    /// A thread to which another context is current, or none, borrows ours for a moment.
    pub(crate) fn record(
        &self,
        stream: Stream,
        spare: Option<Event>,
    ) -> Result<Event, NotRecorded> {
        let current = self.current().unwrap_or(ptr::null_mut());
        if current == self.context {
            return self.record_here(stream, spare);
        }
        // SAFETY: the context is the trainer's.
        unsafe { (self.set_current)(self.context) };
        let event = self.record_here(stream, spare);
        // SAFETY: it was current before, or there was none.
        unsafe { (self.set_current)(current) };
        event
    }

    fn record_here(&self, stream: Stream, spare: Option<Event>) -> Result<Event, NotRecorded> {
        match self.captures(stream) {
            None => return Err(NotRecorded::Failed(spare)),
            Some(true) => return Err(NotRecorded::Captured(spare)),
            Some(false) => {}
        }
        let event = spare.or_else(|| self.create()).ok_or(NotRecorded::Failed(None))?;
        // SAFETY: the event is of the current context, and so is the stream, as the caller's word
        // goes.
        let result = unsafe { (self.record)(event.0, stream.raw()) };
        if result == SUCCESS { Ok(event) } else { Err(NotRecorded::Failed(Some(event))) }
    }

    fn create(&self) -> Option<Event> {
        let mut event = ptr::null_mut();
        // SAFETY: a context is current, as `record` has seen to; it writes one handle.
        let result = unsafe { (self.create)(&raw mut event, BLOCKING_SYNC) };
        (result == SUCCESS).then_some(Event(event))
    }

    /// How long after the first event the GPU got to the second one, in nanoseconds; none if it has not, or
    /// has failed.
    pub(crate) fn elapsed_ns(&self, first: Event, second: Event) -> Option<i64> {
        let mut milliseconds = 0.0;
        // SAFETY: both events were made here, and it writes one number.
        let result = unsafe { (self.elapsed)(&raw mut milliseconds, first.0, second.0) };
        (result == SUCCESS).then(|| (f64::from(milliseconds) * 1e6) as i64)
    }

    /// Waits until the GPU has done all that was in the stream before the event, or has failed.
    pub(crate) fn wait(&self, event: Event) {
        // SAFETY: the event was made here and is not destroyed yet.
        unsafe { (self.synchronize)(event.0) };
    }

    pub(crate) fn destroy(&self, event: Event) {
        // SAFETY: the event was made here, and its owner gives it up.
        unsafe { (self.destroy)(event.0) };
    }
}

/// Whether this process has loaded CUDA.
pub(crate) fn cuda_is_loaded() -> bool {
    CudaLibrary::find().is_some()
}

#[allow(unsafe_code)]
impl CudaLibrary {
    /// The context in which the process works on a device, which it must have made.
    fn context(&self, ordinal: u32) -> Option<Context> {
        // SAFETY: both have these types in every version of `cuda.h` that declares them.
        let (retain, release) = unsafe {
            (
                self.function::<RetainContext>(c"cuDevicePrimaryCtxRetain")?,
                self.function::<ReleaseContext>(c"cuDevicePrimaryCtxRelease_v2")?,
            )
        };
        let device = self.device(ordinal).ok()?;
        let mut context = ptr::null_mut();
        // SAFETY: it writes one handle.
        if unsafe { retain(&raw mut context, device) } != SUCCESS {
            return None;
        }
        // SAFETY: it was retained a moment ago. The context lives as long as its owner, the trainer, keeps
        // it, and nothing is recorded in it when the trainer works no more.
        unsafe { release(device) };
        Some(context)
    }
}
