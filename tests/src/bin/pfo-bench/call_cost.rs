//! What the trainer pays: a call of the shim next to a bare `send` of as many bytes.
//!
//! Both write into a connection that nobody waits on and that is drained between the blocks, so that
//! what is compared is the way through the shim and not the waking of a process.

use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};

use nix::sys::socket::send;
use pfo::{Instruction, RankDescription, Session};
use pfo_protocol::{
    DaemonMessage, EVENT_FRAME_BYTES, Event, HEADER_BYTES, Header, Mark, Unit, Welcome,
};
use tempfile::TempDir;

use crate::Result;
use crate::bare_socket::NEVER_WAIT;
use crate::report::{Cell, Report};
use crate::samples::{Samples, now_ns};

const BLOCKS: usize = 2000;
/// Far fewer than a socket holds.
const CALLS_PER_BLOCK: u32 = 64;

/// Measures both.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let directory = TempDir::with_prefix("pfo-bench-")?;
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path)?;
    let daemon = std::thread::spawn(move || welcome(&listener).map_err(|error| error.to_string()));
    let session = Session::open(RankDescription {
        job: Some("bench".into()),
        gpu: Some("GPU-0".parse()?),
        socket: Some(path),
        ..RankDescription::default()
    })?;
    if let Some(problem) = session.problem() {
        return Err(problem.to_string().into());
    }
    let mut session_peer = daemon.join().map_err(|_| "the stand-in daemon panicked")??;
    let (bare, mut bare_peer) = UnixStream::pair()?;
    bare_peer.set_nonblocking(true)?;
    let frame = begin_frame()?;

    let (mut bare_ns, mut shim_ns) = (Samples::default(), Samples::default());
    let mut nothing_ns = Samples::default();
    for _ in 0..BLOCKS {
        block(&mut nothing_ns, |_| {});
        block(&mut bare_ns, |_| {
            // A full socket shows as a failed drain below.
            let _ = send(bare.as_raw_fd(), &frame, NEVER_WAIT);
        });
        drain(&mut bare_peer, frame.len())?;
        block(&mut shim_ns, |call| match call % 2 {
            0 => session.instruction_begin(Instruction::Forward, call / 2),
            _ => session.instruction_end(),
        });
        drain(&mut session_peer, frame.len())?;
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

fn block(samples: &mut Samples, mut call: impl FnMut(u32)) {
    let mut before = now_ns();
    for number in 0..CALLS_PER_BLOCK {
        call(number);
        let after = now_ns();
        samples.add(after - before);
        before = after;
    }
}

/// Takes what a block has sent out of the socket.
fn drain(peer: &mut UnixStream, frame_bytes: usize) -> Result<()> {
    let expected = CALLS_PER_BLOCK as usize * frame_bytes;
    let (mut drained, mut buffer) = (0, [0; 16 * 1024]);
    loop {
        match peer.read(&mut buffer) {
            Ok(0) => return Err("the connection ended".into()),
            Ok(read) => drained += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    if drained == expected {
        return Ok(());
    }
    Err(format!("{drained} bytes arrived instead of {expected}").into())
}

/// A frame as the measured calls send it.
fn begin_frame() -> Result<Vec<u8>> {
    let unit = Unit { instruction: Instruction::Forward, chunk: 0, microbatch: 0 };
    let event = Event { sequence: 1, client_ns: now_ns(), mark: Mark::InstructionBegin(unit) };
    let mut frame = [0; EVENT_FRAME_BYTES];
    let length = event.write_frame(&mut frame)?;
    Ok(frame[..length].to_vec())
}

/// A daemon that grants a lease and then reads nothing by itself.
fn welcome(listener: &UnixListener) -> Result<UnixStream> {
    let (mut stream, _) = listener.accept()?;
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let mut hello = vec![0; Header::parse(header)?.length];
    stream.read_exact(&mut hello)?;
    let welcome = Welcome {
        daemon: "a stand-in".into(),
        session: 1,
        gpu_uuid: "GPU-0".parse()?,
        gpu_model: "none".into(),
        idle_limit_ms: 60_000,
    };
    std::io::Write::write_all(&mut stream, &DaemonMessage::Welcome(welcome).to_frame()?)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}
