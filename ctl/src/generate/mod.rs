//! Man pages and shell completions, written from the command line's own declaration so that they
//! cannot differ from it. For packaging; hidden from people.

mod pages;

use std::path::{Path, PathBuf};

use clap::{Command, Subcommand};
use clap_complete::Shell;

use crate::exit::Exit;
use crate::explained::Explained;

/// Write the man pages or the shell completions
#[derive(Subcommand)]
pub(crate) enum Generate {
    /// Write the man pages
    Man {
        /// Where to
        directory: PathBuf,
    },
    /// Write the completions for bash, zsh and fish
    Completions {
        /// Where to
        directory: PathBuf,
    },
}

#[derive(Debug, thiserror::Error)]
#[error("cannot write to {}: {source}", .directory.display())]
pub(crate) struct GenerateError {
    directory: PathBuf,
    source: std::io::Error,
}

impl Explained for GenerateError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }

    fn remedy(&self) -> Option<String> {
        None
    }
}

impl Generate {
    /// Writes the files for a command line into a directory, which is made if it does not exist.
    pub(crate) fn run(self, command: Command) -> Result<(), GenerateError> {
        let (Self::Man { directory } | Self::Completions { directory }) = &self;
        let failed = |source| GenerateError { directory: directory.clone(), source };
        self.write(command, directory).map_err(failed)
    }

    fn write(&self, mut command: Command, directory: &Path) -> Result<(), std::io::Error> {
        std::fs::create_dir_all(directory)?;
        match self {
            Self::Man { .. } => pages::write(command, directory),
            Self::Completions { .. } => {
                for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                    clap_complete::generate_to(shell, &mut command, "pfoctl", directory)?;
                }
                Ok(())
            }
        }
    }
}
