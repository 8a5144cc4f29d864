//! The C ABI of `libpfo.so.0`. `pfo.h` declares it and documents what each function does.
//!
//! Each function catches its panics: a bug in here may cost a lease but not a training.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use pfo_protocol::Instruction;

use crate::c_rank::CRank;
use crate::c_session::CSession;
use crate::c_text;
use crate::call::Call;
use crate::description::RankDescription;
use crate::problem::ProblemCode;
use crate::session::Session;

const OK: c_int = 0;
const INVALID_DESCRIPTION: c_int = c_text::INVALID_DESCRIPTION;
const MICROBATCH_AUTO: u32 = u32::MAX;

/// `struct pfo_counters` of this release.
#[repr(C)]
#[derive(Default)]
struct CCounters {
    sent: u64,
    dropped: u64,
    reconnects: u64,
    connected: u64,
    misplaced: u64,
    untimed: u64,
    captured: u64,
}

impl CCounters {
    fn of(session: &CSession) -> Self {
        let known = session.session().counters();
        Self {
            sent: known.sent,
            dropped: known.dropped,
            reconnects: known.reconnects,
            connected: known.connected.into(),
            misplaced: known.misplaced,
            untimed: session.ordered().untimed(),
            captured: session.ordered().captured(),
        }
    }
}

thread_local! {
    /// What was wrong with the description of this thread's last `pfo_open`.
    static REJECTED: RefCell<String> = const { RefCell::new(String::new()) };
}

fn caught<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(otherwise)
}

/// # Safety
/// `session` must be NULL or come from `pfo_open` and not be closed.
unsafe fn in_loop(session: *const CSession, call: impl FnOnce(&CSession)) {
    // SAFETY: the caller promises it.
    if let Some(session) = unsafe { session.as_ref() } {
        caught((), || call(session));
    }
}

/// # Safety
/// `rank` must be NULL or point to `struct_size` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_rank_init(rank: *mut CRank, struct_size: usize) {
    // SAFETY: the caller promises it.
    caught((), || unsafe { CRank::initialize(rank, struct_size) });
}

/// # Safety
/// `rank` must be NULL or a structure that `pfo_rank_init` has initialized, with texts that end
/// with NUL; `session` must be NULL or writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_open(rank: *const CRank, session: *mut *mut CSession) -> c_int {
    if session.is_null() {
        REJECTED.set("pfo_open was given no place for the session".into());
        return INVALID_DESCRIPTION;
    }
    // SAFETY: the caller promises that it is writable.
    unsafe { session.write(ptr::null_mut()) };
    caught(ProblemCode::Internal.number(), || {
        let description = if rank.is_null() {
            Ok(RankDescription::default())
        } else {
            // SAFETY: the caller promises an initialized structure.
            unsafe { CRank::read(rank) }
        };
        match description.and_then(Session::open) {
            Ok(opened) => {
                let problem = opened.problem();
                // SAFETY: as above.
                unsafe { session.write(Box::into_raw(Box::new(CSession::new(opened)))) };
                problem.map_or(OK, |problem| problem.code.number())
            }
            Err(error) => {
                REJECTED.set(error.to_string());
                INVALID_DESCRIPTION
            }
        }
    })
}

/// # Safety
/// `session` must be NULL or come from `pfo_open` and not be closed.
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_step_begin(session: *const CSession) {
    // SAFETY: the caller promises it.
    unsafe { in_loop(session, |session| session.tell(Call::StepBegin)) }
}

/// # Safety
/// As for [`pfo_step_begin`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_step_begin_at(session: *const CSession, at_ns: u64) {
    // SAFETY: the caller promises it.
    unsafe { in_loop(session, |session| session.tell_at(Call::StepBegin, at_ns)) }
}

/// # Safety
/// As for [`pfo_step_begin`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_step_end(session: *const CSession) {
    // SAFETY: the caller promises it.
    unsafe { in_loop(session, |session| session.tell(Call::StepEnd)) }
}

/// # Safety
/// As for [`pfo_step_begin`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_step_end_at(session: *const CSession, at_ns: u64) {
    // SAFETY: the caller promises it.
    unsafe { in_loop(session, |session| session.tell_at(Call::StepEnd, at_ns)) }
}

/// # Safety
/// As for [`pfo_step_begin`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_instruction_begin(
    session: *const CSession,
    instruction: u32,
    microbatch: u32,
) {
    // SAFETY: the caller promises it.
    unsafe { pfo_instruction_begin_in_chunk(session, instruction, 0, microbatch) }
}

/// # Safety
/// As for [`pfo_step_begin`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_instruction_begin_in_chunk(
    session: *const CSession,
    instruction: u32,
    chunk: u16,
    microbatch: u32,
) {
    // SAFETY: the caller promises it.
    unsafe { in_loop(session, |session| session.tell(begin(instruction, chunk, microbatch))) }
}

/// # Safety
/// As for [`pfo_step_begin`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_instruction_begin_at(
    session: *const CSession,
    instruction: u32,
    chunk: u16,
    microbatch: u32,
    at_ns: u64,
) {
    // SAFETY: the caller promises it.
    unsafe {
        in_loop(session, |session| session.tell_at(begin(instruction, chunk, microbatch), at_ns));
    }
}

fn begin(instruction: u32, chunk: u16, microbatch: u32) -> Call {
    let instruction = Instruction::from_number(instruction).unwrap_or(Instruction::Other);
    let microbatch = (microbatch != MICROBATCH_AUTO).then_some(microbatch);
    Call::InstructionBegin { instruction, chunk, microbatch }
}

/// # Safety
/// As for [`pfo_step_begin`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_instruction_end(session: *const CSession) {
    // SAFETY: the caller promises it.
    unsafe { in_loop(session, |session| session.tell(Call::InstructionEnd)) }
}

/// # Safety
/// As for [`pfo_step_begin`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_instruction_end_at(session: *const CSession, at_ns: u64) {
    // SAFETY: the caller promises it.
    unsafe { in_loop(session, |session| session.tell_at(Call::InstructionEnd, at_ns)) }
}

/// # Safety
/// As for [`pfo_step_begin`]. The stream is never read here, only handed to CUDA.
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_use_stream(session: *const CSession, stream: *mut c_void) {
    // SAFETY: the caller promises it.
    unsafe { in_loop(session, |session| session.use_stream(stream.expose_provenance())) }
}

/// # Safety
/// As for [`pfo_step_begin`], and `text` must be NULL or point to `size` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_problem(
    session: *const CSession,
    text: *mut c_char,
    size: usize,
) -> c_int {
    caught(ProblemCode::Internal.number(), || {
        // SAFETY: the caller promises it.
        let (code, words) = match unsafe { session.as_ref() } {
            Some(session) => session.session().problem().map_or((OK, String::new()), |problem| {
                (problem.code.number(), problem.to_string())
            }),
            None => (INVALID_DESCRIPTION, REJECTED.with_borrow(String::clone)),
        };
        // SAFETY: the caller promises the room.
        unsafe { c_text::write(&words, text, size) };
        code
    })
}

/// # Safety
/// As for [`pfo_problem`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_plan_problem(
    session: *const CSession,
    text: *mut c_char,
    size: usize,
) -> c_int {
    caught(ProblemCode::Internal.number(), || {
        // SAFETY: the caller promises it.
        let session = unsafe { session.as_ref() };
        let problem = session.and_then(|session| session.session().plan_problem());
        let (code, words) = problem
            .map_or((OK, String::new()), |problem| (problem.code.number(), problem.to_string()));
        // SAFETY: the caller promises the room.
        unsafe { c_text::write(&words, text, size) };
        code
    })
}

/// # Safety
/// As for [`pfo_step_begin`], and `counters` must be NULL or point to `struct_size` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_counters(session: *const CSession, counters: *mut u8, struct_size: usize) {
    if counters.is_null() {
        return;
    }
    // SAFETY: the caller promises it.
    let session = unsafe { session.as_ref() };
    let known = caught(None, || session.map(CCounters::of)).unwrap_or_default();
    let length = struct_size.min(size_of::<CCounters>());
    // SAFETY: the caller promises `struct_size` bytes, and `length` is at most that and at most
    // what `known` has.
    unsafe {
        counters.write_bytes(0, struct_size);
        counters.copy_from_nonoverlapping((&raw const known).cast::<u8>(), length);
    }
}

/// # Safety
/// `session` must be NULL or come from `pfo_open` and not be closed; it is of no more use
/// afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn pfo_close(session: *mut CSession) {
    if !session.is_null() {
        // SAFETY: the caller promises that it came from `pfo_open`, which boxed it, and is not
        // closed.
        caught((), || drop(unsafe { Box::from_raw(session) }));
    }
}

#[unsafe(no_mangle)]
extern "C" fn pfo_strerror(code: c_int) -> *const c_char {
    c_text::of_code(code).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn pfo_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"unknown",
        };
    VERSION.as_ptr()
}
