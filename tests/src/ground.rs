//! What may be wrong with a node while something on it dies: its configuration, its ledger, its
//! disks, its GPUs or their driver.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;
use pfo_protocol::Pid;

use crate::booted_node::{BootedJob, BootedNode, Filler};
use crate::daemon::Program;
use crate::wait;

const CONFIG: &str = "/etc/pfo/pfod.toml";
const ASIDE: &str = "/etc/pfo/aside";

/// Longer than the longest pause between two daemons, and the deadline of a restore before it.
const BACK: Duration = Duration::from_secs(90);

/// How long a GPU or the library hangs where a test does not wait for a deadline of pfod.
const MOMENT: Duration = Duration::from_millis(1500);

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ground {
    /// The configuration is no TOML.
    ConfigSyntax,
    /// The configuration belongs to a user.
    ConfigOwner,
    /// There is no configuration.
    ConfigMissing,
    /// The end of the ledger is missing.
    LedgerCutOff,
    /// The ledger is something else.
    LedgerGarbage,
    /// The ledger is of a newer pfod, with the same fields.
    LedgerNewer,
    /// The ledger is of a newer pfod, with more fields.
    LedgerPartlyUnknown,
    /// There is no space in `/run/pfo`.
    RunFull,
    /// `/run/pfo` is read-only.
    RunReadOnly,
    /// There is no space in the directory of the agent.
    StateFull,
    /// A GPU is lost when pfod starts.
    GpuLost,
    /// A GPU hangs when pfod starts.
    GpuHangs,
    /// The driver's library hangs when pfod loads it.
    LibraryHangs,
    /// The driver refuses to reset a GPU, once.
    ResetRefused,
}

/// Every one of them.
pub const GROUNDS: [Ground; 14] = [
    Ground::ConfigSyntax,
    Ground::ConfigOwner,
    Ground::ConfigMissing,
    Ground::LedgerCutOff,
    Ground::LedgerGarbage,
    Ground::LedgerNewer,
    Ground::LedgerPartlyUnknown,
    Ground::RunFull,
    Ground::RunReadOnly,
    Ground::StateFull,
    Ground::GpuLost,
    Ground::GpuHangs,
    Ground::LibraryHangs,
    Ground::ResetRefused,
];

impl Ground {
    /// The daemon that it is about.
    #[must_use]
    pub fn program(self) -> Program {
        if self == Self::StateFull { Program::PfoAgent } else { Program::Pfod }
    }

    /// Kills a daemon on this ground, sees that nothing is locked while that can be, puts the ground
    /// right, and waits until the daemon is back by itself. `random` chooses a GPU of `job`, and
    /// where a ledger ends.
    pub fn strike(self, node: &BootedNode, job: &BootedJob<'_>, random: &mut fastrand::Rng) {
        let gpu = random.usize(job.gpus());
        // It may have died just now.
        self.until_back(node, Pid(0));
        let former = node.main_pid(self.program());
        // It must not repair the ledger before it dies.
        node.signal(former, Signal::SIGSTOP);
        let filler = self.lay(node, gpu, random);
        node.signal(former, Signal::SIGKILL);
        self.assert_while_it_lasts(node, former);
        drop(filler);
        self.put_right(node);
        self.until_back(node, former);
        self.assert_reported(node);
        assert_eq!(node.debian.run("systemctl list-units --failed --no-legend pfo*").printed(), "");
    }

    fn lay(self, node: &BootedNode, gpu: usize, random: &mut fastrand::Rng) -> Option<Filler> {
        let run = |script: &str| drop(node.debian.run(script).printed());
        match self {
            Self::ConfigSyntax => {
                run(&format!("cp -p {CONFIG} {ASIDE}"));
                let mut file =
                    OpenOptions::new().append(true).open(node.debian.file(CONFIG)).unwrap();
                file.write_all(b"[driver\n").unwrap();
            }
            Self::ConfigOwner => run(&format!("chown alice {CONFIG}")),
            Self::ConfigMissing => run(&format!("mv {CONFIG} {ASIDE}")),
            Self::LedgerCutOff => {
                let whole = fs::read(node.ledger()).unwrap();
                fs::write(node.ledger(), &whole[..random.usize(..whole.len() - 2)]).unwrap();
            }
            Self::LedgerGarbage => fs::write(node.ledger(), random.u128(..).to_le_bytes()).unwrap(),
            Self::LedgerNewer => rewrite(node, "\"pfo-ledger/1\"", "\"pfo-ledger/2\""),
            Self::LedgerPartlyUnknown => rewrite(node, "\"sm\":", "\"fan\": 7, \"sm\":"),
            Self::RunFull => return Some(node.fill_ledger_disk()),
            Self::StateFull => return Some(node.fill_state_disk()),
            Self::RunReadOnly => run("mount -o remount,ro /run/pfo"),
            Self::GpuLost => node.machine.fault("*", "gpu-is-lost", Some(gpu)),
            Self::GpuHangs => node.machine.fault("*", "hang", Some(gpu)),
            Self::LibraryHangs => node.machine.fault("nvmlInit_v2", "hang", None),
            Self::ResetRefused => {
                node.machine.fault_once("nvmlDeviceResetGpuLockedClocks", "unknown", Some(gpu));
            }
        }
        None
    }

    fn assert_while_it_lasts(self, node: &BootedNode, former: Pid) {
        match self {
            // There is no daemon that could lock anything again.
            Self::ConfigSyntax | Self::ConfigOwner | Self::RunReadOnly => {
                until_nothing_is_locked(node);
            }
            // Nothing is locked without a record.
            Self::RunFull => {
                self.until_back(node, former);
                until_nothing_is_locked(node);
            }
            Self::StateFull => self.until_back(node, former),
            Self::GpuLost | Self::GpuHangs | Self::LibraryHangs => sleep(MOMENT),
            _ => {}
        }
    }

    fn put_right(self, node: &BootedNode) {
        let run = |script: &str| drop(node.debian.run(script).printed());
        match self {
            Self::ConfigSyntax | Self::ConfigMissing => run(&format!("mv {ASIDE} {CONFIG}")),
            Self::ConfigOwner => run(&format!("chown root {CONFIG}")),
            Self::RunReadOnly => run("mount -o remount,rw /run/pfo"),
            _ => node.machine.clear_faults(),
        }
    }

    fn until_back(self, node: &BootedNode, former: Pid) {
        let program = self.program();
        let back = || match node.main_pid(program) {
            pid if pid == former || pid == Pid(0) => Err(format!("its process is {pid}")),
            _ => match node.debian.run(program.status_command()) {
                ran if ran.code == Some(0) => Ok(()),
                ran => Err(format!("{ran:?}")),
            },
        };
        wait::until_within(BACK, back).unwrap_or_else(|last| panic!("{self:?}: {last}"));
    }

    /// What may be lost is reported until an administrator has seen to it.
    fn assert_reported(self, node: &BootedNode) {
        let damage = || node.status().unwrap().daemon.ledger_damage;
        let may_lose =
            matches!(self, Self::LedgerCutOff | Self::LedgerGarbage | Self::LedgerPartlyUnknown);
        assert_eq!(damage().is_some(), may_lose, "{self:?}: {:?}", damage());
        if may_lose {
            // A GPU whose session is about to continue is left alone, and is no failure.
            node.debian.run("pfoctl clocks reset --all");
            node.debian.run("pfoctl clocks acknowledge").printed();
            assert_eq!(damage(), None);
        }
    }
}

fn until_nothing_is_locked(node: &BootedNode) {
    node.until("nothing is locked", || {
        let gpus = 0..node.machine.gpu_count();
        let locked: Vec<_> = gpus.filter(|gpu| node.machine.sm_lock(*gpu).is_some()).collect();
        if locked.is_empty() { Ok(()) } else { Err(format!("{locked:?} are")) }
    });
}

fn rewrite(node: &BootedNode, from: &str, to: &str) {
    let text = fs::read_to_string(node.ledger()).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(node.ledger(), text.replace(from, to)).unwrap();
}
