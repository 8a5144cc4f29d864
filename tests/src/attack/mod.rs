//! What a hostile member does to the daemons of a node, in ways that have no end: each is a function
//! that is called again and again until its process is killed.

mod agent;
mod arguments;
mod bytes;
mod connections;
mod sessions;

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use pfo_protocol::{
    AgentRequest, ClientMessage, DaemonMessage, GpuName, GpuUuid, Hello, JobSelector, Request,
};

use crate::client::{devices_in, hello, send_with};
use crate::wait::LONG;

/// Nobody waits longer for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Between two rounds of a way: a daemon is to be hurt, not the machine.
const PAUSE: Duration = Duration::from_millis(5);

/// Whom to attack, and with what.
#[derive(Clone, Debug)]
pub struct Target {
    /// The trainers' socket of pfod.
    pub socket: PathBuf,
    /// The users' socket of the agent, if it can be reached.
    pub agent: Option<PathBuf>,
    /// The directory of the GPUs' device files.
    pub devices: PathBuf,
    /// GPUs to lease.
    pub gpus: Vec<GpuUuid>,
    /// The job to hurt.
    pub victim: JobSelector,
}

/// A way to attack.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Its name for the command line.
    pub name: &'static str,
    /// What it sends.
    pub what: &'static str,
    run: fn(&Target) -> io::Result<()>,
}

/// All ways.
pub const WAYS: &[Way] = &[
    way("flood", "events of a session without a pause", connections::flood),
    way("trickle", "a byte a millisecond on 16 connections", connections::trickle),
    way("connect", "a thousand connections, again and again", connections::connect),
    way("garbage", "noise on one connection after the other", connections::garbage),
    way("ask", "requests for status on 16 connections", connections::ask),
    way("deaf", "the same, without reading the answers", connections::ask_deaf),
    way("hoard", "the same, and keeps what the daemon closes", connections::hoard),
    way("spoil", "every recorded frame, and mutations of it", bytes::spoil),
    way("halves", "large frames that never end", bytes::halves),
    way("pass", "requests with 253 descriptors each", bytes::pass),
    way("join", "hellos with any name, rank and GPU", sessions::join),
    way("plans", "plans at the limit, and swaps to them", sessions::plans),
    way("measure", "trials of a job that it holds and leaves", sessions::measure),
    way("administer", "what only administrators and the agent may", sessions::administer),
    way("agent", "sweeps, frontiers, powers and recordings", agent::ask),
    way("die", "some of this from processes that are killed", sessions::die),
];

const fn way(name: &'static str, what: &'static str, run: fn(&Target) -> io::Result<()>) -> Way {
    Way { name, what, run }
}

/// Attacks until the process is killed, in all these ways at once.
pub fn attack(target: &Target, ways: &[Way]) {
    // Those that another attacker started end with it.
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    // A way fails wherever a daemon defends itself, and begins anew.
    panic::set_hook(Box::new(|_| {}));
    thread::scope(|threads| {
        for way in ways {
            threads.spawn(|| {
                loop {
                    let _ = panic::catch_unwind(AssertUnwindSafe(|| (way.run)(target)));
                    thread::sleep(PAUSE);
                }
            });
        }
    });
}

impl Target {
    fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// One of the GPUs to lease.
    fn gpu(&self) -> io::Result<GpuName> {
        let gpu = fastrand::choice(&self.gpus).ok_or(io::ErrorKind::NotFound)?;
        Ok(GpuName::Uuid(gpu.clone()))
    }

    /// Begins a session, and waits until it is open.
    fn begin(&self, hello: Hello) -> io::Result<UnixStream> {
        let stream = self.connect()?;
        stream.set_read_timeout(Some(LONG))?;
        let frame = frame(&ClientMessage::Hello(hello))?;
        send_with(&stream, &frame, &devices_in(&self.devices))?;
        match answer(&stream)? {
            DaemonMessage::Welcome(_) => Ok(stream),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    /// A session of a job of one rank, and the job.
    fn begin_own(&self) -> io::Result<(UnixStream, JobSelector)> {
        let name = format!("own{}", fastrand::u32(..));
        let stream = self.begin(hello(&name, 0, 1, self.gpu()?))?;
        Ok((stream, crate::control::job(&name)))
    }
}

fn frame(message: &ClientMessage) -> io::Result<Vec<u8>> {
    message.to_frame().map_err(io::Error::other)
}

fn answer(mut stream: &UnixStream) -> io::Result<DaemonMessage> {
    DaemonMessage::read_from(&mut stream).map_err(io::Error::other)
}

fn request(mut stream: &UnixStream, request: Request) -> io::Result<DaemonMessage> {
    stream.write_all(&frame(&ClientMessage::Request(request))?)?;
    answer(stream)
}

fn request_agent(mut stream: &UnixStream, request: AgentRequest) -> io::Result<DaemonMessage> {
    stream.write_all(&frame(&ClientMessage::AgentRequest(request))?)?;
    answer(stream)
}
