//! `pfoctl` in a directory of its own, beside a small profile.

use std::path::PathBuf;
use std::process::Command;

use crate::ran::{self, Ran};

/// Two stages, the second one heavier, four clocks each.
const PROFILE: &str = "\
stage,instruction,frequency,time,energy
0,forward,1400,0.050,20
0,forward,1390,0.056,17
0,forward,1380,0.068,15.5
0,forward,1370,0.080,15
0,backward,1400,0.100,41
0,backward,1390,0.110,36
0,backward,1380,0.130,33
0,backward,1370,0.160,32
1,forward,1400,0.060,25
1,forward,1390,0.066,22
1,forward,1380,0.080,20
1,forward,1370,0.100,19
1,backward,1400,0.120,50
1,backward,1390,0.133,45
1,backward,1380,0.155,41
1,backward,1370,0.190,40
";

/// A directory with `profile.csv` in it.
pub(crate) struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let bench = Self { directory: tempfile::tempdir().unwrap() };
        bench.write("profile.csv", PROFILE);
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    /// What is in a file.
    pub(crate) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Makes a frontier of six microbatches; waiting is so dear that not the slowest plan is the
    /// cheapest.
    pub(crate) fn frontier(&self, name: &str, plans: u32) {
        let plans = plans.to_string();
        self.done(&[
            "plan",
            "optimize",
            "profile.csv",
            "--microbatches",
            "6",
            "--p2p-power",
            "400",
            "--plans",
            &plans,
            "-o",
            name,
        ]);
    }

    pub(crate) fn pfoctl(&self, arguments: &[&str]) -> Command {
        let mut command = ran::pfoctl(arguments);
        command.current_dir(self.directory.path());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(&mut self.pfoctl(arguments))
    }

    /// Runs what must succeed, and gives what it said.
    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.stderr);
        ran.stdout
    }
}
