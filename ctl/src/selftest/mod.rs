//! `pfoctl selftest`: which promises hold on the GPUs and the driver of this node, for a report that
//! can be sent in.

mod gpu;
mod locks;
mod reads;
mod report;
mod session;

use std::path::PathBuf;

use clap::Args;
use pfo_protocol::{GpuListing, GpuStatus, Status};

use self::gpu::{Gpu, Silent};
use self::locks::Locks;
use self::reads::{ANSWERS, Facts};
use self::report::{GpuReport, Report};
use crate::arguments::{GpuArgument, GpuArgumentError, Indices, uuid_among};
use crate::daemons::{ConnectionError, Daemons};
use crate::error::Error;
use crate::nvml::{self, Library};
use crate::outcome::BadOutcome;
use crate::output::Output;
use crate::p2p::measure::sm_clocks;
use crate::planning::file;
use crate::progress::Progress;

/// Check what pfo promises on the GPUs of this node, and write a report to send in
///
/// Only reads, at most 400 calls a second and 8 % of the time, unless --set is given. Works without
/// pfod; the report then names the checks that need pfod as not checked. Takes some seconds for each
/// GPU. The report names models and versions, but no UUID, host, user or job. docs/tested-on.md says what
/// becomes of it. The exit code is 1 if a check fails; an unknown result does not change it.
#[derive(Args)]
pub(crate) struct Selftest {
    /// Also have pfod lock and restore the clocks of GPUs that nobody leases, nothing computes on and MIG
    /// does not split
    ///
    /// This process opens sessions as the only rank of jobs named pfo-selftest-…, which requires
    /// membership in group pfo. If it is interrupted, pfod restores the clocks.
    #[arg(long)]
    set: bool,

    /// Check these GPUs only, by index, UUID or PCI bus id; with --set, also while something
    /// computes on them
    #[arg(long, value_name = "GPU")]
    gpu: Vec<GpuArgument>,

    /// The NVML library, as driver.library of pfod's configuration names it
    #[arg(long, value_name = "LIBRARY", default_value = "libnvidia-ml.so.1")]
    nvml: PathBuf,

    /// The directory of the GPU device files, which prove to pfod that this process was given them
    #[arg(
        long,
        value_name = "DIRECTORY",
        env = "PFO_DEVICES",
        hide_env_values = true,
        default_value = "/dev"
    )]
    devices: PathBuf,

    /// Write the report as Markdown to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A GPU that is checked.
struct Tested {
    gpu: Gpu,
    facts: Facts,
    report: GpuReport,
    /// Whether it answered so far.
    answers: bool,
}

impl Selftest {
    /// Checks and prints.
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let status = daemons.pfod().and_then(|mut pfod| pfod.status());
        let report = self.check(daemons, status.as_ref())?;
        if self.json {
            output.json(&report)?;
        } else {
            let look = output.look();
            output.text(&report.render(look))?;
        }
        if let Some(name) = &self.output {
            file::write(name, report.markdown().as_bytes())?;
        }
        match (report.failed(), status) {
            (count @ 1.., _) => Err(BadOutcome::NotHeld { count }.into()),
            (0, Err(error)) if self.set => Err(error.into()),
            (0, _) => Ok(()),
        }
    }

    fn check(
        &self,
        daemons: &Daemons,
        status: Result<&Status, &ConnectionError>,
    ) -> Result<Report, Error> {
        let progress = Progress::new("selftest");
        if let Err(error) = status {
            progress.tell(&format!("pfoctl: {error}; what needs pfod is not checked"));
        }
        let mut report = Report {
            pfoctl: env!("CARGO_PKG_VERSION"),
            pfod: status.ok().map(|status| status.daemon.version.clone()),
            driver: None,
            set: self.set,
            checks: Vec::new(),
            gpus: Vec::new(),
        };
        let library = match nvml::load(&self.nvml) {
            Some(Ok(library)) => library,
            Some(Err(error)) => {
                report.checks.push(ANSWERS.fail(error.to_string()));
                return Ok(report);
            }
            None => {
                report.checks.push(silent(Silent));
                return Ok(report);
            }
        };
        report.driver = Some(library.version.clone());
        if library.count == 0 {
            report.checks.push(ANSWERS.fail("the driver lists no GPU"));
        }
        let mut tested = self.gpus(&library, &mut report)?;
        let all = tested.len() as f64 * if self.set { 2.0 } else { 1.0 };
        for (done, tested) in tested.iter_mut().enumerate() {
            progress.show(done as f64 / all);
            progress.now(format!("reading GPU {}", tested.gpu.index));
            tested.read(daemons, status.ok());
        }
        for (done, one) in tested.iter_mut().enumerate().filter(|_| self.set) {
            progress.show(0.5 + done as f64 / all);
            progress.now(format!("locking GPU {}", one.gpu.index));
            self.lock(one, daemons, &progress);
        }
        report.gpus.extend(tested.into_iter().map(|tested| tested.report));
        report.gpus.sort_by_key(|gpu| gpu.gpu);
        Ok(report)
    }

    /// The GPUs that are meant and answer; those that do not are reported at once.
    fn gpus(&self, library: &Library, report: &mut Report) -> Result<Vec<Tested>, Error> {
        let mut tested = Vec::new();
        let mut mute = Vec::new();
        for index in 0..library.count {
            let gpu = Gpu { nvml: library.nvml, index };
            let check = match reads::facts(gpu) {
                Ok(Ok(facts)) => {
                    let model = Some(facts.model.clone());
                    let report = GpuReport { gpu: index, model, checks: Vec::new() };
                    tested.push(Tested { gpu, facts, report, answers: true });
                    continue;
                }
                Ok(Err(why)) => ANSWERS.fail(why),
                Err(quiet) => silent(quiet),
            };
            mute.push(GpuReport { gpu: index, model: None, checks: vec![check] });
        }
        if !self.gpu.is_empty() {
            let named = self.named(&tested, library.count)?;
            tested.retain(|tested| named.contains(&tested.gpu.index));
            mute.retain(|report: &GpuReport| named.contains(&report.gpu));
        }
        report.gpus = mute;
        Ok(tested)
    }

    /// The indices of the GPUs that are named. One that does not answer has no other name.
    fn named(&self, tested: &[Tested], count: u32) -> Result<Vec<u32>, GpuArgumentError> {
        let listing = |tested: &Tested| {
            let Facts { uuid, pci_bus_id, model, .. } = &tested.facts;
            let pci_bus_id = pci_bus_id.parse().ok()?;
            Some(GpuListing { uuid: uuid.clone(), pci_bus_id, model: model.clone() })
        };
        let listed: Vec<_> = tested.iter().filter_map(listing).collect();
        let index = |gpu: &GpuArgument| match gpu {
            GpuArgument::Index(index) => {
                let there = Indices::up_to(count);
                match there.contain(*index) {
                    true => Ok(Some(*index as u32)),
                    false => Err(there.miss(*index)),
                }
            }
            GpuArgument::Device(device) => {
                let found = tested.iter().find(|tested| tested.facts.device == Some(*device));
                let there = "none that answers has it".to_owned();
                let missing = GpuArgumentError::NoSuchDevice { device: *device, there };
                found.map(|tested| Some(tested.gpu.index)).ok_or(missing)
            }
            GpuArgument::Name(name) => {
                let uuid = uuid_among(name, &listed)?;
                let found = tested.iter().find(|tested| tested.facts.uuid == uuid);
                Ok(found.map(|tested| tested.gpu.index))
            }
        };
        self.gpu.iter().filter_map(|gpu| index(gpu).transpose()).collect()
    }

    fn lock(&self, tested: &mut Tested, daemons: &Daemons, progress: &Progress) {
        let Tested { gpu, facts, report, .. } = tested;
        if let Some(why) = self.spared(tested.answers, facts, daemons, |who| {
            progress.tell(&format!("pfoctl: GPU {} is not locked: {who}", gpu.index));
        }) {
            report.checks.push(locks::skipped(why));
            return;
        }
        let locks = Locks { daemons, gpu: *gpu, facts, devices: &self.devices, progress };
        locks.check(&mut report.checks);
    }

    /// Why a GPU is left alone. Its holder is printed, and is not in the report.
    fn spared(
        &self,
        answers: bool,
        facts: &Facts,
        daemons: &Daemons,
        tell: impl Fn(&str),
    ) -> Option<&'static str> {
        let status = daemons.pfod().and_then(|mut pfod| pfod.status());
        let Ok(status) = status else { return Some("pfod does not answer") };
        let gpu = of_gpu(&status, facts);
        if let Some(holder) = gpu.and_then(|gpu| gpu.holder.as_ref()) {
            tell(&format!("rank {} of job {} holds it", holder.rank, holder.job));
        }
        let is_leased = gpu.is_some_and(|gpu| gpu.leased);
        match () {
            () if !answers => Some("the GPU does not answer"),
            () if facts.mig => Some("MIG splits it"),
            () if is_leased => Some("a job leases it"),
            () if self.gpu.is_empty() && facts.computes != Some(false) => {
                Some("something computes on it")
            }
            () => None,
        }
    }
}

impl Tested {
    fn read(&mut self, daemons: &Daemons, status: Option<&Status>) {
        let checks = &mut self.report.checks;
        let uuid = self.facts.uuid.clone();
        let listed = || sm_clocks(daemons, &uuid).ok();
        let answers = match reads::check(self.gpu, &self.facts, listed, checks) {
            Ok(()) => ANSWERS.pass("every call"),
            Err(quiet) => {
                self.answers = false;
                silent(quiet)
            }
        };
        checks.insert(0, answers);
        checks.push(match status {
            Some(status) => reads::agrees(&self.facts, self.gpu.index, of_gpu(status, &self.facts)),
            None => reads::disagrees_unknown(),
        });
    }
}

fn of_gpu<'s>(status: &'s Status, facts: &Facts) -> Option<&'s GpuStatus> {
    status.gpus.iter().find(|gpu| gpu.uuid == facts.uuid)
}

fn silent(Silent: Silent) -> report::Check {
    ANSWERS.fail(format!("no answer within {} s", nvml::PATIENCE.as_secs()))
}
