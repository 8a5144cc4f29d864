//! A client in a process of its own: passes standard input to the daemon's socket, and what the daemon
//! says to standard output, until standard input ends or somebody kills it.
//!
//! ```text
//! pfo-test-client SOCKET [--beside CONNECTIONS] [--leave-child FILE] [--half-close MS] [--keep FILE]
//! ```
//!
//! With the first bytes it passes the device files that it can open, of the directory that
//! `PFO_DEVICES` names, or of the simulated machine beside the socket.
//!
//! `--beside` holds that many silent connections beside its own. `--leave-child` starts a process that
//! keeps a copy of the socket after the end of this one, and writes its number to a file. With
//! `--half-close` the end of standard input closes only this side of the connection, once the time in
//! ms that follows has passed, and the daemon has to close the other. With `--keep` it opens the device
//! files at once, then makes a file, and passes them later, whether it could open them by then or not.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use pfo_tests::{devices_beside, devices_in, send_with};

fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            length => to.write_all(&buffer[..length]).and_then(|()| to.flush())?,
        }
    }
}

/// The device files that this process can open.
fn open_devices(socket: &str) -> Vec<File> {
    let devices = std::env::var_os("PFO_DEVICES").map(PathBuf::from);
    devices_in(&devices.unwrap_or_else(|| devices_beside(Path::new(socket))))
}

/// Sends the first bytes with device files.
fn pass_devices(stream: &UnixStream, devices: impl FnOnce() -> Vec<File>) -> io::Result<()> {
    let mut first = [0; 4096];
    match io::stdin().read(&mut first)? {
        0 => Ok(()),
        length => send_with(stream, &first[..length], &devices()),
    }
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().expect("the socket's path");
    let mut beside = Vec::new();
    let mut child_file = None;
    let mut half_close_ms = None;
    let mut kept = None;
    while let Some(option) = arguments.next() {
        let value = arguments.next().expect("the option's value");
        match option.as_str() {
            "--beside" => {
                for _ in 0..value.parse().expect("a number") {
                    beside.push(UnixStream::connect(&socket)?);
                }
            }
            "--leave-child" => child_file = Some(value),
            "--keep" => {
                kept = Some(open_devices(&socket));
                File::create(value)?;
            }
            "--half-close" => half_close_ms = Some(value.parse().expect("a number")),
            other => panic!("no option {other}"),
        }
    }
    let stream = UnixStream::connect(&socket)?;
    if let Some(file) = child_file {
        let copy = OwnedFd::from(stream.try_clone()?);
        let child = Command::new("sleep").arg("60").stdin(copy).stdout(Stdio::null()).spawn()?;
        std::fs::write(file, child.id().to_string())?;
    }
    let answers = stream.try_clone()?;
    let answering = thread::spawn(move || copy(answers, io::stdout()));
    let devices = || kept.unwrap_or_else(|| open_devices(&socket));
    let copied = pass_devices(&stream, devices).and_then(|()| copy(io::stdin(), &stream));
    if let Some(ms) = half_close_ms {
        thread::sleep(Duration::from_millis(ms));
        // The daemon may have hung up first.
        let _ = stream.shutdown(Shutdown::Write);
    }
    if half_close_ms.is_some() || copied.is_err() {
        // The daemon has hung up, and may have said why.
        let _ = answering.join();
    }
    Ok(())
}
