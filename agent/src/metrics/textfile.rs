//! The file for the textfile collector of the node exporter. It is replaced as a whole, and removed when
//! the agent stops: what it says would be true for ever.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pfo_service::blocking;
use tokio::time::sleep;

use super::page::Format;
use super::pages::Pages;

/// The node exporter is another user, and who may read what it serves is its administrator's choice.
const MODE: u32 = 0o644;

/// A file that goes with its writer.
struct Textfile(PathBuf);

impl Drop for Textfile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Writes the file for as long as the agent runs.
pub(super) async fn keep(path: PathBuf, every: Duration, pages: &Pages) {
    let file = Textfile(path);
    let mut failing = false;
    loop {
        let page = pages.now(Format::Classic).await;
        let path = file.0.clone();
        let written = match blocking(move || write(&path, &page)).await {
            Ok(written) => written,
            Err(panicked) => Err(io::Error::other(panicked.to_string())),
        };
        match &written {
            Err(error) if !failing => tracing::error!(
                "cannot write {}: {error}; the agent retries. `systemctl edit pfo-agent` gives the unit \
                 the way to it, see [metrics] in pfo-agent.toml(5)",
                file.0.display()
            ),
            Ok(()) if failing => tracing::info!("{} is written again", file.0.display()),
            _ => {}
        }
        failing = written.is_err();
        sleep(every).await;
    }
}

fn write(path: &Path, page: &[u8]) -> io::Result<()> {
    // Not read by the node exporter, which reads files that end with .prom.
    let new = path.with_extension("prom.new");
    let mut file = File::create(&new)?;
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(page)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_may_read_the_file_which_is_replaced_as_a_whole_and_goes_with_its_writer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pfo.prom");
        let file = Textfile(path.clone());
        for page in ["pfo_daemon_up 1\n", "x 1\n"] {
            write(&path, page.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), page);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        drop(file);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
