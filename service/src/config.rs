//! Reading a TOML configuration file: an error names file, line and column. A file that others can
//! write is refused, as sudo does: it would be theirs to choose what the daemon does.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde::de::DeserializeOwned;

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why it could not be read.
        source: io::Error,
    },
    /// Others than root and the daemon's own user can write it, or its directory.
    #[error(
        "others can write {path} (owner {uid}, mode {mode:04o}); see what it says now, then `chown root \
         {path}` and `chmod go-w {path}`"
    )]
    Writable {
        /// The file or directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its mode.
        mode: u32,
    },
    /// It is not TOML, has an unknown key, or an impossible value.
    #[error("{path}, line {}, column {}: {message}", .position.line, .position.column)]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The place in the file.
        position: Position,
        /// What is wrong there.
        message: String,
    },
}

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
}

impl Position {
    /// The place of a byte of the text.
    #[must_use]
    pub fn of(text: &str, byte: usize) -> Self {
        let before = &text[..text.floor_char_boundary(byte)];
        let last_line = before.rsplit('\n').next().unwrap_or(before);
        let counted_from_1 = |count: usize| count.saturating_add(1);
        let (line, column) = (before.matches('\n').count(), last_line.chars().count());
        Self { line: counted_from_1(line), column: counted_from_1(column) }
    }
}

impl ConfigError {
    /// The text of a configuration file.
    ///
    /// # Errors
    /// If it cannot be read, or others can write it.
    pub fn text_of(path: &Path) -> Result<String, Self> {
        let failed = |source| Self::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let opened = file.metadata().map_err(failed)?;
        if let Some(why) = writable(path, &opened).or_else(|| Self::writable_by_others(path)) {
            return Err(why);
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        Ok(text)
    }

    /// Why a file cannot be trusted, if others than root, and than the user that this process runs
    /// as, can write it or replace it. A missing file is no reason.
    #[must_use]
    pub fn writable_by_others(path: &Path) -> Option<Self> {
        let real = fs::canonicalize(path).ok()?;
        let directories = [path.parent(), real.parent()].into_iter().flatten();
        let mut named = directories.filter(|path| !path.as_os_str().is_empty()).chain([path]);
        named.find_map(|path| writable(path, &fs::metadata(path).ok()?))
    }

    /// The content of a configuration file; `path` is what errors name.
    ///
    /// # Errors
    /// If it is not TOML, has an unknown key or an impossible value.
    pub fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, Self> {
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            Self::wrong(text, path, at, &with_meant(error.message()))
        })
    }

    /// An error at a byte of the text.
    #[must_use]
    pub fn wrong(text: &str, path: &Path, at: usize, message: &str) -> Self {
        let message = message.trim_end().replace('\n', "; ");
        Self::Wrong { path: path.to_owned(), position: Position::of(text, at), message }
    }
}

/// Letters that a typing error changes, adds, drops or exchanges, at most.
const TYPED_WRONG: usize = 2;

/// What `toml` says of an unknown key, and the known one that is spelt almost like it.
fn with_meant(message: &str) -> String {
    let mut names = message.split('`').skip(1).step_by(2);
    let given = names.next().filter(|_| message.starts_with("unknown field"));
    let distance = |name| strsim::osa_distance(given.unwrap_or_default(), name);
    let nearest = given.and_then(|_| names.min_by_key(|name| distance(name)));
    match nearest.filter(|name| distance(name) <= TYPED_WRONG) {
        Some(name) => format!("{message}; did you mean `{name}`?"),
        None => message.to_owned(),
    }
}

fn writable(path: &Path, found: &Metadata) -> Option<ConfigError> {
    let (uid, mode) = (found.uid(), found.mode() & 0o7777);
    // In a sticky directory, nobody replaces the file of another user.
    let is_sticky = found.is_dir() && mode & 0o1000 != 0;
    let is_safe = match uid {
        0 => mode & 0o022 == 0 || is_sticky,
        // Who runs a daemon in the foreground shares its files with whom they like.
        _ => uid == geteuid().as_raw(),
    };
    (!is_safe).then(|| ConfigError::Writable { path: path.to_owned(), uid, mode })
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn an_unknown_key_is_told_the_known_one_that_was_meant() {
        for (message, meant) in [
            (
                "unknown field `min_mzh`, expected one of `users`, `min_mhz`, `max_mhz`",
                Some("min_mhz"),
            ),
            ("unknown field `min_mz`, expected `min_mhz`", Some("min_mhz")),
            ("unknown field `colour`, expected one of `users`, `min_mhz`", None),
            ("unknown field `x`, there are no fields", None),
            ("unknown variant `min_mzh`, expected `min_mhz`", None),
            ("invalid type: string \"`a`, `b`\"", None),
        ] {
            let expected = meant.map_or_else(
                || message.to_owned(),
                |meant| format!("{message}; did you mean `{meant}`?"),
            );
            assert_eq!(with_meant(message), expected);
        }
    }

    #[test]
    fn a_file_that_others_can_write_or_replace_is_refused_with_path_owner_and_mode() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pfod.toml");
        let link = directory.path().join("link.toml");
        fs::write(&file, "x").unwrap();
        symlink(&file, &link).unwrap();
        let set = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let refused = |path: &Path| ConfigError::text_of(path).err().map(|why| why.to_string());
        if !geteuid().is_root() {
            set(&file, 0o666);
            assert_eq!(refused(&link), None, "the file is this user's");
            return;
        }
        for (of_directory, of_file, expected) in [
            (0o755, 0o644, None),
            (0o755, 0o664, Some("mode 0664")),
            (0o755, 0o646, Some("mode 0646")),
            (0o775, 0o600, Some("mode 0775")),
            (0o1777, 0o600, None),
        ] {
            set(directory.path(), of_directory);
            set(&file, of_file);
            for path in [&file, &link] {
                let why = refused(path);
                assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
                assert!(why.unwrap_or_default().contains(expected.unwrap_or_default()));
            }
        }
        chown(&file, Some(1234), None).unwrap();
        let why = refused(&link).unwrap();
        assert!(why.contains("owner 1234") && why.contains("chown root"), "{why}");
    }
}
