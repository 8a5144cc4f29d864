//! A process that takes all it can get of pfod, in one of several ways, until it is killed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo::{RankDescription, Session};
use pfo_protocol::{ClientMessage, Request};

use crate::Result;

/// The argument that makes this program such a process.
pub(crate) const ABUSER: &str = "--abuse";

/// What a user may have open at once, and the daemon answers.
const CONNECTIONS: usize = 16;

/// Of a thread that computes part of the time.
const PERIOD: Duration = Duration::from_millis(1);

/// What leaves pfo alone: threads that compute for a percentage of the time.
pub(crate) const COMPUTES: &str = "compute";

/// The ways, and what each sends.
pub(crate) const WAYS: [(&str, &str); 6] = [
    ("flood", "events of a session without a pause"),
    ("trickle", "a byte a millisecond on 16 connections"),
    ("connect", "a thousand connections, again and again"),
    ("garbage", "noise on one connection after the other"),
    ("ask", "requests for status on 16 connections"),
    ("deaf", "the same, without reading the answers"),
];

/// Runs the way that the arguments name: the socket, the way, and a GPU to lease or shares to compute.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let [socket, way, rest @ ..] = arguments else { return Err("give a socket and a way".into()) };
    let socket = Path::new(socket);
    match way.as_str() {
        COMPUTES => compute(rest),
        "flood" => flood(socket, rest.first().ok_or("give a GPU")?),
        "trickle" => trickle(socket),
        "connect" => loop {
            let _open: Vec<_> = (0..1000).map(|_| UnixStream::connect(socket)).collect();
        },
        "garbage" => garbage(socket),
        "ask" => ask(socket, true),
        "deaf" => ask(socket, false),
        other => Err(format!("there is no way {other}").into()),
    }
}

fn compute(percents: &[String]) -> Result<()> {
    let busy: std::result::Result<Vec<u32>, _> = percents.iter().map(|p| p.parse()).collect();
    let threads: Vec<_> = busy?
        .into_iter()
        .map(|percent| {
            std::thread::spawn(move || {
                let busy = PERIOD * percent.min(100) / 100;
                loop {
                    let began = Instant::now();
                    while began.elapsed() < busy {
                        std::hint::spin_loop();
                    }
                    if busy < PERIOD {
                        sleep(PERIOD - busy);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".into()))
}

fn flood(socket: &Path, gpu: &str) -> Result<()> {
    let session = Session::open(RankDescription {
        job: Some("abuse".into()),
        gpu: Some(gpu.parse()?),
        socket: Some(socket.to_owned()),
        devices: Some(pfo_tests::devices_beside(socket)),
        ..RankDescription::default()
    })?;
    loop {
        session.step_begin();
        session.step_end();
    }
}

fn open(socket: &Path) -> Result<Vec<UnixStream>> {
    let connect = |_| {
        let stream = UnixStream::connect(socket)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    (0..CONNECTIONS).map(connect).collect()
}

fn trickle(socket: &Path) -> Result<()> {
    let request = ClientMessage::Request(Request::Status).to_frame()?;
    loop {
        let mut streams = open(socket)?;
        for byte in &request {
            streams.iter_mut().for_each(|stream| drop(stream.write(&[*byte])));
            sleep(Duration::from_millis(1));
        }
    }
}

fn garbage(socket: &Path) -> Result<()> {
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    loop {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise as u8
        })
        .take(4096)
        .collect();
        let Ok(mut stream) = UnixStream::connect(socket) else { continue };
        let _ = stream.write_all(&bytes).and_then(|()| stream.read_to_end(&mut Vec::new()));
    }
}

fn ask(socket: &Path, reads: bool) -> Result<()> {
    let request = ClientMessage::Request(Request::Status).to_frame()?;
    let mut answer = vec![0; 64 * 1024];
    loop {
        let mut streams = open(socket)?;
        for _ in 0..10_000 {
            for stream in &mut streams {
                let _ = stream.write(&request);
                if reads {
                    let _ = stream.read(&mut answer);
                }
            }
        }
    }
}
