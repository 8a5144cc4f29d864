//! A raw connection in the name of another user and process, through `pfo-test-client`.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pfo_protocol::{ClientMessage, DaemonMessage};

use crate::identity::Identity;
use crate::node::Node;
use crate::programs;
use crate::wait;

/// A connection of another process.
#[derive(Debug)]
pub struct Relay {
    child: Child,
    left_behind: Option<PathBuf>,
}

impl Relay {
    fn start(node: &Node, user: &Identity, options: &[&str]) -> Child {
        Self::start_at(node, &node.socket(), user, options)
    }

    fn start_at(node: &Node, socket: &Path, user: &Identity, options: &[&str]) -> Child {
        let client = programs::program_for_all("pfo-test-client", node.directory());
        Self::start_by(Command::new(client), socket, user, options)
    }

    fn start_by(mut command: Command, socket: &Path, user: &Identity, options: &[&str]) -> Child {
        command.arg(socket).args(options);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        user.assume(&mut command).spawn().unwrap()
    }

    /// Connects as a user.
    #[must_use]
    pub fn connect(node: &Node, user: &Identity) -> Self {
        Self { child: Self::start(node, user, &[]), left_behind: None }
    }

    /// Connects as a user to one of the sockets of a node.
    #[must_use]
    pub fn connect_to(node: &Node, socket: &Path, user: &Identity) -> Self {
        Self { child: Self::start_at(node, socket, user, &[]), left_behind: None }
    }

    /// Connects as a user, with a number of silent connections beside this one.
    #[must_use]
    pub fn connect_beside(node: &Node, user: &Identity, others: u32) -> Self {
        let child = Self::start(node, user, &["--beside", &others.to_string()]);
        Self { child, left_behind: None }
    }

    /// Like [`connect_beside`](Self::connect_beside), from a user namespace that the user makes, in
    /// which it is root.
    #[must_use]
    pub fn connect_from_namespace(node: &Node, user: &Identity, others: u32) -> Self {
        let client = programs::program_for_all("pfo-test-client", node.directory());
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user"]).arg(client);
        let options = ["--beside", &others.to_string()];
        let child = Self::start_by(command, &node.socket(), user, &options);
        Self { child, left_behind: None }
    }

    /// Connects, and starts a child that keeps a copy of the socket.
    #[must_use]
    pub fn connect_with_child(node: &Node) -> Self {
        let file = node.directory().join("child");
        let options = ["--leave-child", file.to_str().unwrap()];
        let child = Self::start(node, &Identity::own(), &options);
        Self { child, left_behind: Some(file) }
    }

    /// Connects as a user, who passes the device files that it can open now, whenever it speaks.
    #[must_use]
    pub fn connect_with_kept(node: &Node, user: &Identity) -> Self {
        let folder = node.directory().join("kept");
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        let file = folder.join("open");
        let child = Self::start(node, user, &["--keep", file.to_str().unwrap()]);
        wait::until_is("the open device files", &true, || file.exists());
        Self { child, left_behind: None }
    }

    /// The process that connected.
    #[must_use]
    pub fn pid(&self) -> pfo_protocol::Pid {
        pfo_protocol::Pid(self.child.id())
    }

    /// Sends a message. That the daemon may have hung up already is no failure here.
    pub fn say(&mut self, message: &ClientMessage) {
        self.send(&message.to_frame().unwrap());
    }

    /// Sends bytes. That the daemon may have hung up already is no failure here.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.child.stdin.as_mut().unwrap().write_all(bytes);
    }

    /// The daemon's next message.
    pub fn answer(&mut self) -> DaemonMessage {
        DaemonMessage::read_from(self.child.stdout.as_mut().unwrap()).unwrap()
    }

    /// The next message, if the connection was let in and there is one.
    pub fn try_answer(&mut self) -> Option<DaemonMessage> {
        DaemonMessage::read_from(self.child.stdout.as_mut().unwrap()).ok()
    }

    /// Kills the process that connected, and only that.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The process that holds a copy of the socket.
    #[must_use]
    pub fn left_behind(&self) -> Option<Pid> {
        let file = self.left_behind.as_ref()?;
        let number = std::fs::read_to_string(file).ok()?.parse().ok()?;
        Some(Pid::from_raw(number))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(child) = self.left_behind() {
            let _ = kill(child, Signal::SIGKILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
