//! `pfoctl doctor`: finds what is wrong on a node, and says the remedy. It changes nothing, and works
//! without a daemon.

mod capability;
mod daemon;
mod driver;
mod finding;
mod gpu;
mod kernel_module;
mod root;
mod sockets;
mod unit;
mod without_daemon;

use std::path::PathBuf;

use clap::Args;
use pfo_protocol::{Request, Response, Status};

use self::finding::{Finding, Level};
use self::root::Root;
use crate::connection::Connection;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::socket::Sockets;
use crate::status::table::{Tone, toned};
use crate::text::harmless;

/// Find what is wrong with pfo on this node, and say the remedy
///
/// Asks the driver, systemd and the daemon, as far as they are there and this user may. The exit code
/// is 1 if something is wrong; warnings are only worth a look.
#[derive(Args)]
pub(crate) struct Doctor {
    /// The NVML library, as the daemon's driver.library names it
    #[arg(long, value_name = "LIBRARY", default_value = "libnvidia-ml.so.1")]
    nvml: PathBuf,

    /// Print JSON: an array with the name of each check, its level (ok, unknown, warning or wrong), what
    /// was found, and the remedy
    #[arg(long)]
    json: bool,

    /// Where / is, for tests
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
}

impl Doctor {
    /// Examines and tells.
    pub(crate) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let findings = examine(&Root::at(self.root), &self.nvml, sockets);
        if self.json {
            output.json(&findings)?;
        } else {
            let look = output.look();
            output.text(&told(&findings, look))?;
        }
        match findings.iter().filter(|finding| finding.level == Level::Wrong).count() {
            0 => Ok(()),
            count => Err(Error::Unwell { count }),
        }
    }
}

fn examine(root: &Root, nvml: &std::path::Path, sockets: &Sockets) -> Vec<Finding> {
    let mut findings = kernel_module::check(root);
    let driver = driver::ask(nvml);
    findings.extend(driver.findings);
    let service = unit::show("pfod.service");
    findings.extend(unit::check_service(&service));
    findings.extend(sockets::check(sockets));
    let status = ask(sockets);
    findings.extend(daemon::check(&status));
    let status = status.ok();
    let pid = status.as_ref().map(|status| status.daemon.pid);
    let pid = pid.or_else(|| service.ok().and_then(|service| service.main_pid()));
    match pid {
        Some(pid) => findings.push(capability::check(root, pid)),
        None => findings.extend(without_daemon::check(root)),
    }
    for gpu in &driver.gpus {
        let gpus = status.iter().flat_map(|status| &status.gpus);
        let known = gpus.into_iter().find(|known| known.uuid.as_str() == gpu.uuid);
        findings.extend(gpu::check(gpu, known));
    }
    findings
}

fn ask(sockets: &Sockets) -> Result<Status, Error> {
    let mut connection = Connection::open(sockets)?;
    match connection.ask(Request::Status)? {
        Response::Status(status) => Ok(*status),
        other => Err(connection.other_answer(&format!("{other:?}"))),
    }
}

fn told(findings: &[Finding], look: Look) -> String {
    let mut text = String::new();
    for Finding { check, level, message, remedy } in findings {
        let (word, tone) = match level {
            Level::Ok => ("ok", Tone::Good),
            Level::Unknown => ("unknown", Tone::Plain),
            Level::Warning => ("warning", Tone::Notable),
            Level::Wrong => ("wrong", Tone::Bad),
        };
        let word = toned(&format!("{word:<8}"), tone, look);
        text += &format!("{word} {check}: {}\n", harmless(message));
        if let Some(remedy) = remedy {
            text += &format!("{:9}{}\n", "", harmless(remedy));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_told_with_its_level_and_its_remedy_below() {
        let findings = [
            Finding::ok("driver", "570.1 lists 4 GPUs"),
            Finding::wrong("sockets", "there is no /run/pfo/\u{1b}.sock", "start pfod.socket"),
        ];
        let expected = "ok       driver: 570.1 lists 4 GPUs\n\
                        wrong    sockets: there is no /run/pfo/\\u{1b}.sock\n         \
                        start pfod.socket\n";
        assert_eq!(told(&findings, Look::default()), expected);
    }
}
