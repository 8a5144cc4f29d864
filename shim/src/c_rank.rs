//! The C side's `struct pfo_rank`: how it is initialized and read, for callers that were compiled with
//! any release of `pfo.h`.

use std::ffi::{CStr, OsStr, c_char};
use std::mem::size_of;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use pfo_protocol::{DpRank, Rank, Stage, TpRank};

use crate::description::{DescriptionError, RankDescription};

/// `struct pfo_rank` of this release. New fields are only ever added at the end, with 0 as default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CRank {
    struct_size: usize,
    job: *const c_char,
    gpu: *const c_char,
    socket: *const c_char,
    rank: u32,
    pp_rank: u32,
    dp_rank: u32,
    tp_rank: u32,
    pp_degree: u32,
    dp_degree: u32,
    tp_degree: u32,
    num_microbatches: u32,
    first_step: u64,
    setup_timeout_ms: u32,
    reserved: u32,
}

impl CRank {
    fn defaults(struct_size: usize) -> Self {
        let description = RankDescription::default();
        Self {
            struct_size,
            job: std::ptr::null(),
            gpu: std::ptr::null(),
            socket: std::ptr::null(),
            rank: description.rank.0,
            pp_rank: description.pp_rank.into(),
            dp_rank: description.dp_rank.0,
            tp_rank: description.tp_rank.0,
            pp_degree: description.pp_degree,
            dp_degree: description.dp_degree,
            tp_degree: description.tp_degree,
            num_microbatches: 0,
            first_step: description.first_step,
            setup_timeout_ms: description.setup_timeout.as_millis() as u32,
            reserved: 0,
        }
    }

    /// Fills a caller's structure of `struct_size` bytes with the defaults.
    ///
    /// # Safety
    /// `rank` must be NULL or point to `struct_size` writable bytes.
    pub(crate) unsafe fn initialize(rank: *mut Self, struct_size: usize) {
        if rank.is_null() {
            return;
        }
        let defaults = Self::defaults(struct_size);
        let known = struct_size.min(size_of::<Self>());
        let bytes = rank.cast::<u8>();
        // SAFETY: the caller promises `struct_size` bytes, `known` is at most that and at most what
        // `defaults` has; the local is no part of the caller's memory.
        unsafe {
            bytes.write_bytes(0, struct_size);
            bytes.copy_from_nonoverlapping((&raw const defaults).cast::<u8>(), known);
        }
    }

    /// Reads a caller's structure.
    ///
    /// # Safety
    /// `rank` must point to a structure that starts with its own size, and its texts must be NULL
    /// or end with NUL.
    pub(crate) unsafe fn read(rank: *const Self) -> Result<RankDescription, DescriptionError> {
        // SAFETY: the size is the first field in every release of the header.
        let struct_size = unsafe { rank.cast::<usize>().read_unaligned() };
        if !(size_of::<usize>()..=LARGEST).contains(&struct_size) {
            return Err(DescriptionError::StructSize(struct_size));
        }
        let known = struct_size.min(size_of::<Self>());
        let mut copy = Self::defaults(struct_size);
        let bytes = rank.cast::<u8>();
        // SAFETY: the caller promises `struct_size` bytes, and `known` is at most that.
        unsafe { bytes.copy_to_nonoverlapping((&raw mut copy).cast::<u8>(), known) };
        // SAFETY: as above; this is what lies between `known` and the structure's end.
        let newer = unsafe { std::slice::from_raw_parts(bytes.add(known), struct_size - known) };
        if copy.reserved != 0 || newer.iter().any(|byte| *byte != 0) {
            return Err(DescriptionError::NewerFields);
        }
        // SAFETY: the caller promises that the texts end with NUL.
        unsafe { copy.description() }
    }

    /// # Safety
    /// The texts must be NULL or end with NUL.
    unsafe fn description(&self) -> Result<RankDescription, DescriptionError> {
        // SAFETY: the caller promises it.
        let (job, gpu, socket) = unsafe { (text(self.job), text(self.gpu), text(self.socket)) };
        let utf8 = |field, text: &CStr| {
            let text = text.to_str().map(str::to_owned);
            text.map_err(|_| DescriptionError::Text { field })
        };
        let gpu = gpu.map(|text| {
            let read = utf8("gpu", text)?.parse();
            read.map_err(|error| DescriptionError::Gpu { source_of_name: "gpu", error })
        });
        Ok(RankDescription {
            job: job.map(|text| utf8("job", text)).transpose()?,
            gpu: gpu.transpose()?,
            socket: socket.map(|path| OsStr::from_bytes(path.to_bytes()).into()),
            devices: None,
            rank: Rank(self.rank),
            pp_rank: Stage::try_from(self.pp_rank)
                .map_err(|_| DescriptionError::Stage(self.pp_rank))?,
            dp_rank: DpRank(self.dp_rank),
            tp_rank: TpRank(self.tp_rank),
            pp_degree: self.pp_degree,
            dp_degree: self.dp_degree,
            tp_degree: self.tp_degree,
            num_microbatches: (self.num_microbatches > 0).then_some(self.num_microbatches),
            first_step: self.first_step,
            setup_timeout: Duration::from_millis(self.setup_timeout_ms.into()),
            plan: None,
        })
    }
}

/// A size beyond this is not the size of any release's structure but uninitialized memory.
const LARGEST: usize = 4096;

/// # Safety
/// `text` must be NULL or end with NUL, and stay as it is during the call that brought it.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller promises it.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A caller of some release: its structure is `size` bytes large.
    fn initialized(size: usize) -> Vec<u64> {
        let mut memory = vec![u64::MAX; size.div_ceil(8) + 1];
        // SAFETY: the memory is larger than `size`.
        unsafe { CRank::initialize(memory.as_mut_ptr().cast(), size) };
        memory
    }

    fn read(memory: &[u64]) -> Result<RankDescription, DescriptionError> {
        // SAFETY: `initialize` has written the size, and the memory is larger than that.
        unsafe { CRank::read(memory.as_ptr().cast()) }
    }

    #[test]
    fn an_initialized_structure_means_the_defaults() {
        let memory = initialized(size_of::<CRank>());
        assert_eq!(read(&memory), Ok(RankDescription::default()));
    }

    #[test]
    fn a_caller_with_an_older_header_keeps_what_is_behind_its_structure() {
        let memory = initialized(40);
        assert_eq!(memory[5], u64::MAX);
        assert_eq!(read(&memory), Ok(RankDescription::default()));
    }

    #[test]
    fn a_caller_with_a_newer_header_is_understood_unless_it_asks_for_what_is_unknown_here() {
        let size = size_of::<CRank>() + 16;
        let mut memory = initialized(size);
        assert_eq!(read(&memory), Ok(RankDescription::default()));
        memory[size / 8 - 1] = 1;
        assert_eq!(read(&memory), Err(DescriptionError::NewerFields));
    }

    #[test]
    fn a_structure_that_was_never_initialized_is_refused() {
        for size in [0, 7, 5000, u64::MAX] {
            let error = read(&[size, 0, 0]).unwrap_err().to_string();
            assert!(error.contains("pfo_rank_init"), "{error}");
        }
    }
}
