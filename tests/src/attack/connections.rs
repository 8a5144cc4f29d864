//! Connections, requests and events without number.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use pfo::{RankDescription, Session};
use pfo_protocol::{ClientMessage, GpuName, Request};

use super::{Target, frame};

/// Connections at once, where more would only be refused.
const CONNECTIONS: usize = 16;

/// Requests on each of them.
const REQUESTS: usize = 10_000;

/// Requests whose answers fill a connection.
const DEAF_REQUESTS: usize = 500;

pub(super) fn flood(target: &Target) -> io::Result<()> {
    let GpuName::Uuid(gpu) = target.gpu()? else { return Ok(()) };
    let session = Session::open(RankDescription {
        job: Some("abuse".into()),
        gpu: Some(gpu.as_str().parse().map_err(io::Error::other)?),
        socket: Some(target.socket.clone()),
        devices: Some(target.devices.clone()),
        ..RankDescription::default()
    });
    let session = session.map_err(io::Error::other)?;
    for _ in 0..10_000_000 {
        session.step_begin();
        session.step_end();
    }
    Ok(())
}

fn open(target: &Target, count: usize) -> io::Result<Vec<UnixStream>> {
    let connect = |_| {
        let stream = UnixStream::connect(&target.socket)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    (0..count).map(connect).collect()
}

pub(super) fn trickle(target: &Target) -> io::Result<()> {
    let request = frame(&ClientMessage::Request(Request::Status))?;
    let mut streams = open(target, CONNECTIONS)?;
    for byte in &request {
        streams.iter_mut().for_each(|stream| drop(stream.write(&[*byte])));
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

pub(super) fn connect(target: &Target) -> io::Result<()> {
    open(target, 1000).map(drop)
}

pub(super) fn garbage(target: &Target) -> io::Result<()> {
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(4096).collect();
    let mut stream = target.connect()?;
    stream.write_all(&bytes)?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

pub(super) fn ask(target: &Target) -> io::Result<()> {
    let request = frame(&ClientMessage::Request(Request::Status))?;
    let mut answer = vec![0; 64 * 1024];
    let mut streams = open(target, CONNECTIONS)?;
    for _ in 0..REQUESTS {
        for stream in &mut streams {
            let _ = stream.write(&request);
            let _ = stream.read(&mut answer);
        }
    }
    Ok(())
}

pub(super) fn ask_deaf(target: &Target) -> io::Result<()> {
    deafen(open(target, CONNECTIONS)?).map(drop)
}

/// Has as many answers in the sockets as these take.
fn deafen(mut streams: Vec<UnixStream>) -> io::Result<Vec<UnixStream>> {
    let request = frame(&ClientMessage::Request(Request::Status))?;
    for _ in 0..DEAF_REQUESTS {
        for stream in &mut streams {
            let _ = stream.write(&request);
        }
        sleep(Duration::from_millis(1));
    }
    Ok(streams)
}

pub(super) fn hoard(target: &Target) -> io::Result<()> {
    let (most, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let most = usize::try_from(most).map_or(1024, |most| most.min(100_000) / 2);
    let mut kept = Vec::new();
    while kept.len() < most {
        kept.extend(deafen(open(target, 500)?)?);
    }
    Ok(())
}
