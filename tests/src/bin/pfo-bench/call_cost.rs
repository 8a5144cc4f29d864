//! What the trainer pays: a call of the shim next to a bare `send` of as many bytes.
//!
//! Both write into a connection that nobody waits on and that is drained between the blocks, so that
//! what is compared is the way through the shim and not the waking of a process.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use nix::sys::socket::send;
use pfo::Instruction;
use pfo_protocol::{EVENT_FRAME_BYTES, Event, Mark, Unit};

use crate::Result;
use crate::bare_socket::NEVER_WAIT;
use crate::extent::Extent;
use crate::report::{Cell, Report};
use crate::samples::{Samples, now_ns};
use crate::stand_in::{StandIn, drain};

/// Far fewer than a socket holds.
pub(crate) const CALLS_PER_BLOCK: u32 = 64;
const BLOCK_EVENTS: usize = CALLS_PER_BLOCK as usize;

/// Measures both.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let stand_in = StandIn::start()?;
    let session = stand_in.open_session()?;
    let mut session_peer = stand_in.peer()?;
    let (bare, mut bare_peer) = UnixStream::pair()?;
    bare_peer.set_nonblocking(true)?;
    let frame = begin_frame()?;

    let (mut bare_ns, mut shim_ns) = (Samples::default(), Samples::default());
    let mut nothing_ns = Samples::default();
    for _ in 0..extent.of(2000, 50) {
        block(&mut nothing_ns, |_| {});
        block(&mut bare_ns, |_| {
            // A full socket shows as a failed drain below.
            let _ = send(bare.as_raw_fd(), &frame, NEVER_WAIT);
        });
        drain(&mut bare_peer, BLOCK_EVENTS * frame.len())?;
        block(&mut shim_ns, |call| match call % 2 {
            0 => session.instruction_begin(Instruction::Forward, call / 2),
            _ => session.instruction_end(),
        });
        drain(&mut session_peer, BLOCK_EVENTS * frame.len())?;
    }
    let stamp = nothing_ns.percentiles();
    let bare = bare_ns.percentiles().without(stamp);
    let shim = shim_ns.percentiles().without(stamp);
    report.table(
        "call",
        "What a call costs the trainer, next to a bare send() of as many bytes into a drained Unix \
         socket\n(µs, without the clock's own; aim: ratio at most 1.3)",
        &[
            ("bytes", "bytes"),
            ("send_p50_us", "send p50"),
            ("send_p99_us", "send p99"),
            ("shim_p50_us", "shim p50"),
            ("shim_p99_us", "shim p99"),
            ("ratio_p50", "ratio p50"),
            ("ratio_p99", "ratio p99"),
        ],
        &[vec![
            Cell::count(frame.len() as u64),
            Cell::Figure(bare.p50_us, 3),
            Cell::Figure(bare.p99_us, 3),
            Cell::Figure(shim.p50_us, 3),
            Cell::Figure(shim.p99_us, 3),
            Cell::Figure(shim.p50_us / bare.p50_us, 2),
            Cell::Figure(shim.p99_us / bare.p99_us, 2),
        ]],
    );
    Ok(())
}

pub(crate) fn block(samples: &mut Samples, mut call: impl FnMut(u32)) {
    let mut before = now_ns();
    for number in 0..CALLS_PER_BLOCK {
        call(number);
        let after = now_ns();
        samples.add(after - before);
        before = after;
    }
}

/// A frame as the measured calls send it.
pub(crate) fn begin_frame() -> Result<Vec<u8>> {
    let unit = Unit::new(Instruction::Forward, 0);
    let event = Event { sequence: 1, client_ns: now_ns(), mark: Mark::InstructionBegin(unit) };
    let mut frame = [0; EVENT_FRAME_BYTES];
    let length = event.write_frame(&mut frame)?;
    Ok(frame[..length].to_vec())
}
