//! A real terminal: a `tmux` of its own for one test.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::node::Node;
use crate::programs;
use crate::skip::say_skipped;
use crate::wait;

/// A terminal with a shell in it, whose prompt is [`Tmux::PROMPT`].
#[derive(Debug)]
pub struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    /// What the shell says when it waits for a command.
    pub const PROMPT: &'static str = "ready>";

    /// Whether there is a tmux; says so if not.
    #[must_use]
    pub fn is_installed() -> bool {
        let has = Command::new("tmux").arg("-V").output().is_ok();
        if !has {
            say_skipped("tmux is not installed; `make setup` installs it");
        }
        has
    }

    /// A terminal of this size, in whose shell `pfoctl` is that of the tests and finds a node.
    #[must_use]
    pub fn open(node: &Node, width: u16, height: u16) -> Self {
        let terminal = Self { socket: node.directory().join("tmux.sock") };
        let pfoctl = programs::program("pfoctl");
        let path =
            format!("{}:{}", pfoctl.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let size = ["-x", &width.to_string(), "-y", &height.to_string()].map(str::to_owned);
        let mut command = terminal.command(&["new-session", "-d"]);
        command
            .args(size)
            .arg(format!("PS1='{} ' exec sh", Self::PROMPT))
            .env("PATH", path)
            .env("PFO_SOCKET", node.socket())
            .env("PFO_ADMIN_SOCKET", node.admin_socket())
            .env("LC_ALL", "C.UTF-8")
            .env_remove("NO_COLOR")
            .env_remove("TMUX");
        succeed(&mut command);
        terminal.until("the shell is there", |screen| screen.contains(Self::PROMPT));
        terminal
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-u", "-f", "/dev/null", "-S"]).arg(&self.socket).args(arguments);
        command
    }

    /// Presses keys, by tmux's names for them.
    pub fn press(&self, keys: &[&str]) {
        succeed(self.command(&["send-keys"]).args(keys));
    }

    /// Types a text.
    pub fn type_text(&self, text: &str) {
        succeed(self.command(&["send-keys", "-l"]).arg(text));
    }

    /// Changes the size.
    pub fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        succeed(&mut self.command(&["resize-window", "-x", &width, "-y", &height]));
    }

    /// What is on the screen.
    #[must_use]
    pub fn screen(&self) -> String {
        succeed(&mut self.command(&["capture-pane", "-p"]))
    }

    /// A variable of tmux about the terminal, such as `alternate_on`.
    #[must_use]
    pub fn variable(&self, name: &str) -> String {
        let format = format!("#{{{name}}}");
        succeed(&mut self.command(&["display-message", "-p", &format])).trim().to_owned()
    }

    /// Waits until the screen is as it should be; returns it.
    pub fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        wait::until_ok(what, || {
            let screen = self.screen();
            if is_so(&screen) { Ok(screen) } else { Err(screen) }
        })
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // Its own server, and nobody else's.
        let _ = self.command(&["kill-server"]).output();
    }
}

fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}
