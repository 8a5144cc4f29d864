//! Builds C programs against `pfo.h` and the `libpfo.so` that this test run has built.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A directory with the library under the names that it is installed as.
pub(crate) struct Toolchain {
    directory: TempDir,
}

impl Toolchain {
    /// The C compiler, unless the machine has none; then the test has nothing to say.
    pub(crate) fn find() -> Option<Self> {
        if Command::new("cc").arg("--version").output().is_err() {
            eprintln!("skipped: there is no C compiler `cc`");
            return None;
        }
        let directory = TempDir::new().unwrap();
        for name in ["libpfo.so", "libpfo.so.0"] {
            let into = directory.path().join(name.strip_suffix(".so").map_or("run", |_| "link"));
            std::fs::create_dir(&into).unwrap();
            std::os::unix::fs::symlink(library(), into.join(name)).unwrap();
        }
        Some(Self { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn compile(&self, source: &Path, options: &[&str]) -> PathBuf {
        let program = self.path("program");
        let output = Command::new("cc")
            .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .args(options)
            .arg("-I")
            .arg(manifest("include"))
            .arg("-o")
            .arg(&program)
            .arg(source)
            .arg("-L")
            .arg(self.path("link"))
            .arg("-lpfo")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        program
    }

    pub(crate) fn compile_text(&self, source: &str) -> PathBuf {
        let file = self.path("program.c");
        std::fs::write(&file, source).unwrap();
        self.compile(&file, &[])
    }

    /// A command with nothing of the environment but the way to the library: its directory has the
    /// library by its SONAME only.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("LD_LIBRARY_PATH", self.path("run"));
        command
    }
}

pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libpfo.so")
}

pub(crate) fn manifest(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a program printed, if it ended well.
pub(crate) fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
    text(&output.stdout)
}
