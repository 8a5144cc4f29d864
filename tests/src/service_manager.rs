//! systemd's part, as far as the daemon needs it: it listens on the sockets, keeps descriptors while
//! there is no daemon, and runs the last resort whenever one has ended.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::{fs, io};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, RecvMsg, recvmsg};

use crate::daemon::Daemon;
use crate::node::Node;

/// The first descriptor that is passed.
const FIRST_PASSED: RawFd = 3;

/// Above every descriptor that is passed.
const OUT_OF_THE_WAY: RawFd = 500;

/// What the receiver hears from this side.
const ENOUGH: &str = "ENOUGH=1";
const CAUGHT_UP: &str = "CAUGHT_UP=1";

type Descriptors = Vec<(String, OwnedFd)>;

#[derive(Debug, Default)]
struct Heard {
    said: Vec<String>,
    ready: u32,
    caught_up: u32,
    store: Descriptors,
}

/// A service manager with one service, the daemon of a node.
#[derive(Debug)]
pub struct ServiceManager {
    address: PathBuf,
    listening: Descriptors,
    heard: Arc<Mutex<Heard>>,
    receiver: Option<JoinHandle<()>>,
}

impl ServiceManager {
    /// One that listens on a node's sockets and has started its daemon.
    #[must_use]
    pub fn start(node: &mut Node) -> Self {
        let address = node.directory().join("notify");
        let socket = UnixDatagram::bind(&address).unwrap();
        let heard = Arc::<Mutex<Heard>>::default();
        let receiver = {
            let heard = Arc::clone(&heard);
            thread::spawn(move || while receive(&socket, &heard) {})
        };
        let listening = [("trainers", node.socket()), ("admin", node.admin_socket())];
        let listening = listening.map(|(name, path)| (name.to_owned(), listen(&path)));
        let manager =
            Self { address, listening: listening.into(), heard, receiver: Some(receiver) };
        manager.start_daemon(node);
        manager
    }

    /// `systemctl restart`.
    pub fn restart(&self, node: &mut Node) {
        self.stop_daemon(node);
        self.start_daemon(node);
    }

    /// What a restart does first. What is in the store stays.
    pub fn stop_daemon(&self, node: &mut Node) {
        node.daemon().process.signal(Signal::SIGTERM);
        let status = node.daemon().process.wait();
        assert!(status.success(), "{status}: {}", node.log());
        self.daemon_has_ended(node, ["success", "0"]);
    }

    /// What happens to a daemon that is killed, up to its next start.
    pub fn kill_daemon(&self, node: &mut Node) {
        node.daemon().process.kill();
        self.daemon_has_ended(node, ["signal", "KILL"]);
    }

    /// Waits for a daemon that dies of itself, up to its next start.
    pub fn daemon_has_died(&self, node: &mut Node) {
        let status = node.daemon().process.wait();
        assert_eq!(status.signal(), Some(Signal::SIGABRT as i32), "{}", node.log());
        self.daemon_has_ended(node, ["core-dump", "ABRT"]);
    }

    /// `systemctl stop`: nobody will come again, so that the store is emptied.
    pub fn stop_for_good(&self, node: &mut Node) {
        self.stop_daemon(node);
        self.heard.lock().unwrap().store.clear();
    }

    /// What systemd says of the end: `$SERVICE_RESULT` and `$EXIT_STATUS`.
    fn daemon_has_ended(&self, node: &mut Node, [result, status]: [&str; 2]) {
        node.daemon = None;
        self.catch_up(node);
        let mut command = Command::new("env");
        command.env_remove("NOTIFY_SOCKET");
        command.arg(format!("SERVICE_RESULT={result}")).arg(format!("EXIT_STATUS={status}"));
        let mut last_resort = Daemon::start_under(node, command, &["--restore-only"]);
        assert!(last_resort.process.wait().success(), "{}", node.log());
    }

    /// Takes in everything that was said so far.
    fn catch_up(&self, node: &Node) {
        let before = self.heard.lock().unwrap().caught_up;
        self.say(CAUGHT_UP).unwrap();
        node.until_so("every message is heard", || self.heard.lock().unwrap().caught_up > before);
    }

    fn say(&self, text: &str) -> io::Result<usize> {
        UnixDatagram::unbound()?.send_to(text.as_bytes(), &self.address)
    }

    /// What a restart does last.
    pub fn start_daemon(&self, node: &mut Node) {
        assert!(node.daemon.is_none(), "there is a daemon already");
        let mut heard = self.heard.lock().unwrap();
        heard.store.retain(|(_, descriptor)| !is_hung_up(descriptor));
        let starts = heard.ready;
        let passed = self.listening.iter().chain(&heard.store);
        let (names, descriptors): (Vec<_>, Vec<_>) =
            passed.map(|(name, descriptor)| (name.as_str(), descriptor.as_raw_fd())).unzip();
        // Nobody but the process itself knows its number in time.
        let mut command = Command::new("sh");
        command.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh"]);
        command
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .env("NOTIFY_SOCKET", &self.address);
        // SAFETY: between fork and exec the closure makes system calls only.
        unsafe { command.pre_exec(move || pass(&descriptors)) };
        node.daemon = Some(Daemon::start_under(node, command, &[]));
        drop(heard);
        node.until_so("the daemon is ready", || self.heard.lock().unwrap().ready > starts);
    }

    /// Everything that the daemon has said so far.
    #[must_use]
    pub fn said(&self, node: &Node) -> Vec<String> {
        self.catch_up(node);
        self.heard.lock().unwrap().said.clone()
    }

    /// The names of what is in the store.
    #[must_use]
    pub fn stored(&self) -> Vec<String> {
        let heard = self.heard.lock().unwrap();
        heard.store.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Puts other content into every file in the store.
    pub fn spoil_stored_files(&self, content: &[u8]) {
        for (_, descriptor) in &self.heard.lock().unwrap().store {
            let file = fs::File::from(descriptor.try_clone().unwrap());
            if file.metadata().unwrap().is_file() {
                file.set_len(0).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, content, 0).unwrap();
            }
        }
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        if self.say(ENOUGH).is_ok() {
            let _ = self.receiver.take().map(JoinHandle::join);
        }
    }
}

fn listen(path: &Path) -> OwnedFd {
    let listener = UnixListener::bind(path).unwrap();
    // Who may do what is up to the daemon here.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
    listener.into()
}

fn is_hung_up(descriptor: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(descriptor.as_fd(), PollFlags::empty())];
    poll(&mut asked, PollTimeout::ZERO).unwrap();
    asked[0].any().unwrap_or(false)
}

/// Moves descriptors to where a service looks for them.
fn pass(descriptors: &[RawFd]) -> io::Result<()> {
    let check = |result: libc::c_int| match result {
        -1 => Err(io::Error::last_os_error()),
        number => Ok(number),
    };
    for (index, descriptor) in descriptors.iter().enumerate() {
        // SAFETY: both calls take numbers.
        check(unsafe { libc::dup2(*descriptor, OUT_OF_THE_WAY + index as RawFd) })?;
    }
    for index in 0..descriptors.len() as RawFd {
        // SAFETY: as above.
        check(unsafe { libc::dup2(OUT_OF_THE_WAY + index, FIRST_PASSED + index) })?;
        // SAFETY: as above.
        check(unsafe { libc::close(OUT_OF_THE_WAY + index) })?;
    }
    Ok(())
}

/// Takes in one message; false if it is the last one.
fn receive(socket: &UnixDatagram, heard: &Mutex<Heard>) -> bool {
    let mut text = [0; 4096];
    let mut control = nix::cmsg_space!([RawFd; 8]);
    let mut slices = [IoSliceMut::new(&mut text)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message: RecvMsg<'_, '_, ()> =
        recvmsg(socket.as_raw_fd(), &mut slices, Some(&mut control), flags).unwrap();
    let length = message.bytes;
    let mut descriptors = Vec::new();
    for part in message.cmsgs().unwrap() {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            // SAFETY: the kernel just made these descriptors for this process.
            descriptors.extend(numbers.into_iter().map(|n| unsafe { OwnedFd::from_raw_fd(n) }));
        }
    }
    let text = String::from_utf8_lossy(&text[..length]).into_owned();
    let says = |line: &str| text.lines().any(|own| own == line);
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
    let name = name.unwrap_or("stored").to_owned();
    let mut heard = heard.lock().unwrap();
    heard.ready += u32::from(says("READY=1"));
    heard.caught_up += u32::from(says(CAUGHT_UP));
    if says("FDSTOREREMOVE=1") {
        heard.store.retain(|(other, _)| *other != name);
    }
    if says("FDSTORE=1") {
        heard.store.extend(descriptors.into_iter().map(|descriptor| (name.clone(), descriptor)));
    }
    let enough = says(ENOUGH);
    heard.said.push(text);
    !enough
}
