//! A daemon that counts what it has allocated.
//!
//! ```text
//! pfo-counted FILE PROGRAM [ARGUMENT]…
//! ```
//!
//! It is pfod or pfo-agent, whichever `PROGRAM` is called like. `FILE` always holds the bytes that its
//! allocator has given and not taken back, and the most that these were, as two lines.

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use clap::Parser;

/// How often the file is written.
const EVERY: Duration = Duration::from_millis(5);

/// What the C library keeps in front of each piece of memory.
const HEADER_BYTES: usize = size_of::<usize>();

#[global_allocator]
static COUNTING: Counting = Counting;

static KEPT: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which takes more than it is asked for: that is what counts.
struct Counting;

fn count(piece: *mut u8) -> *mut u8 {
    if !piece.is_null() {
        let kept = KEPT.fetch_add(bytes_of(piece), Relaxed) + bytes_of(piece);
        MOST.fetch_max(kept, Relaxed);
    }
    piece
}

fn bytes_of(piece: *mut u8) -> usize {
    // SAFETY: the piece is one of the C library's, which is what `System` uses.
    unsafe { libc::malloc_usable_size(piece.cast()) + HEADER_BYTES }
}

// SAFETY: every call goes to `System` as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        count(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        count(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let before = bytes_of(piece);
        // SAFETY: as the caller promises.
        let moved = unsafe { System.realloc(piece, layout, size) };
        if !moved.is_null() {
            KEPT.fetch_sub(before, Relaxed);
        }
        count(moved)
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        KEPT.fetch_sub(bytes_of(piece), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(piece, layout) };
    }
}

fn report(file: &File) -> ! {
    loop {
        // Of the same length each time, so that whoever reads finds whole lines.
        let text = format!("{:020}\n{:020}\n", KEPT.load(Relaxed), MOST.load(Relaxed));
        let _ = file.write_all_at(text.as_bytes(), 0);
        thread::sleep(EVERY);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args();
    let file = File::create(arguments.nth(1).ok_or("give a file")?)?;
    let arguments: Vec<String> = arguments.collect();
    let program = arguments.first().ok_or("give a program")?;
    thread::spawn(move || report(&file));
    if program.ends_with("pfod") {
        let source = pfod::Arguments::parse_from(&arguments).source;
        pfo_service::begin_log("pfod", &pfod::MESSAGE_IDS);
        let config = source.read()?;
        Ok(pfod::run(source, config)?)
    } else {
        let source = pfo_agent::Arguments::parse_from(&arguments).source;
        pfo_service::begin_log("pfo-agent", pfo_agent::MESSAGE_IDS);
        let config = source.read()?;
        Ok(pfo_agent::run(source, config)?)
    }
}
