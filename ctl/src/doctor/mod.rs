//! `pfoctl doctor`: finds what is wrong on a node, with the remedy. It changes nothing, and works
//! without either daemon.

mod calibration;
mod capability;
mod daemon;
mod driver;
mod finding;
mod gpu;
mod journal;
mod kernel_module;
mod root;
mod sockets;
mod unit;
mod without_daemon;

use std::path::PathBuf;

use clap::Args;
use jiff::tz::TimeZone;

use self::finding::{Finding, Level};
use self::root::Root;
use crate::calibrate::known;
use crate::daemons::Daemons;
use crate::daemons::Which;
use crate::error::Error;
use crate::kept_below::kept_below;
use crate::outcome::BadOutcome;
use crate::output::{Look, Output};
use crate::status::table::{Tone, toned};
use crate::text::harmless;

/// Find what is wrong with pfo on this node, with the remedy
///
/// Asks the driver, systemd, both daemons and the journal, as far as they answer this user. The exit
/// code is 1 if something is wrong; a warning does not change it.
#[derive(Args)]
pub(crate) struct Doctor {
    /// The NVML library [default: driver.library of pfod's configuration]
    #[arg(long, value_name = "LIBRARY")]
    nvml: Option<PathBuf>,

    /// Print JSON: an array with the name of each check, its level (ok, unknown, warning or wrong),
    /// the finding and the remedy
    #[arg(long)]
    json: bool,

    /// The directory that stands for /, for tests
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
}

impl Doctor {
    /// Examines and prints.
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let findings = examine(&Root::at(self.root), self.nvml, daemons);
        if self.json {
            output.json(&findings)?;
        } else {
            let look = output.look();
            output.text(&render(&findings, look))?;
        }
        match findings.iter().filter(|finding| finding.level == Level::Wrong).count() {
            0 => Ok(()),
            count => Err(BadOutcome::Unwell { count }.into()),
        }
    }
}

fn examine(root: &Root, nvml: Option<PathBuf>, daemons: &Daemons) -> Vec<Finding> {
    let mut findings = kernel_module::check(root);
    let service = unit::show("pfod.service");
    findings.extend(unit::check_service(Which::Pfod, &service));
    findings.extend(sockets::check(Which::Pfod, daemons));
    let status = daemons.pfod().and_then(|mut pfod| pfod.status()).map_err(Error::from);
    findings.extend(daemon::check(&status));
    let status = status.ok();
    let config = status.as_ref().and_then(|status| status.daemon.config.file.as_deref());
    let nvml = nvml.unwrap_or_else(|| driver::library(root, config));
    let driver = driver::ask(&nvml);
    findings.extend(driver.findings);
    let pid = status.as_ref().map(|status| status.daemon.pid);
    let pid = pid.or_else(|| service.ok().and_then(|service| service.main_pid()));
    match pid {
        Some(pid) => findings.push(capability::check(root, pid)),
        None => findings.extend(without_daemon::check(root)),
    }
    findings.extend(examine_agent(daemons));
    let known = daemons.agent().map_err(Error::from).and_then(|mut agent| known(&mut agent));
    if let (Some(status), Ok(known)) = (&status, known) {
        findings.extend(calibration::check(status, &known));
    }
    if let Some(status) = &status {
        let kept = status.jobs.iter().filter_map(|job| {
            kept_below(status, job).map(|kept| format!("job {} is {kept}", job.job))
        });
        let remedy =
            "`pfoctl budget clear` ends a budget of this node, and `systemctl stop pfo-agent` all";
        findings.extend(kept.map(|kept| Finding::warning("budget", kept, remedy)));
    }
    for gpu in &driver.gpus {
        let gpus = status.iter().flat_map(|status| &status.gpus);
        let known = gpus.into_iter().find(|known| known.uuid.as_str() == gpu.uuid);
        findings.extend(gpu::check(gpu, known));
    }
    findings.extend(journal::check(crate::journal::warnings(None), &TimeZone::system()));
    findings
}

fn examine_agent(daemons: &Daemons) -> Vec<Finding> {
    let mut findings = unit::check_service(Which::Agent, &unit::show("pfo-agent.service"));
    findings.extend(sockets::check(Which::Agent, daemons));
    let status = daemons.agent().and_then(|mut agent| agent.status()).map_err(Error::from);
    findings.extend(daemon::check_agent(&status));
    if status.is_err() {
        findings.push(without_daemon::configuration(Which::Agent));
    }
    findings
}

/// Of more findings of one kind, as of a node whose GPUs all run into their limits, only the first ones
/// are printed.
const MANY: usize = 5;
const FIRST: usize = 2;

fn render(findings: &[Finding], look: Look) -> String {
    let mut text = String::new();
    for (place, finding) in findings.iter().enumerate() {
        let Finding { check, level, message, remedy } = finding;
        let (word, tone) = match level {
            Level::Ok => ("ok", Tone::Good),
            Level::Unknown => ("unknown", Tone::Plain),
            Level::Warning => ("warning", Tone::Notable),
            Level::Wrong => ("wrong", Tone::Bad),
        };
        let word = toned(&format!("{word:<8}"), tone, look);
        let is_such = |other: &&Finding| (&other.check, other.level) == (check, *level);
        let all = findings.iter().filter(is_such).count();
        let before = findings.iter().take(place).filter(is_such).count();
        if all >= MANY && before >= FIRST {
            if before == FIRST {
                text += &format!("{word} {check}: {} more; --json lists all\n", all - FIRST);
            }
            continue;
        }
        text += &format!("{word} {check}: {}\n", harmless(message));
        for line in remedy.iter().flat_map(|remedy| remedy.lines()) {
            text += &format!("{:9}{}\n", "", harmless(line));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_printed_with_its_level_and_its_remedy_below() {
        let findings = [
            Finding::ok("driver", "570.1 lists 4 GPUs"),
            Finding::wrong("sockets", "there is no /run/pfo/\u{1b}.sock", "start pfod.socket"),
        ];
        let expected = "ok       driver: 570.1 lists 4 GPUs\n\
                        wrong    sockets: there is no /run/pfo/\\u{1b}.sock\n         \
                        start pfod.socket\n";
        assert_eq!(render(&findings, Look::default()), expected);
    }

    #[test]
    fn of_many_findings_of_one_kind_the_first_ones_are_printed_and_all_are_counted() {
        let held = |gpu| Finding::warning("throttled", format!("GPU {gpu} is held back"), "look");
        let mut findings: Vec<_> = (0..45).map(held).collect();
        findings.insert(20, Finding::ok("driver", "570.1 lists 45 GPUs"));
        let expected = "warning  throttled: GPU 0 is held back\n         look\n\
                        warning  throttled: GPU 1 is held back\n         look\n\
                        warning  throttled: 43 more; --json lists all\n\
                        ok       driver: 570.1 lists 45 GPUs\n";
        assert_eq!(render(&findings, Look::default()), expected);
        let few: Vec<_> = (0..4).map(held).collect();
        assert_eq!(render(&few, Look::default()).matches("is held back").count(), 4);
    }
}
