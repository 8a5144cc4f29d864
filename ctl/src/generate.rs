//! Man pages and shell completions, written from the command line's own declaration so that they
//! cannot differ from it. For packaging; hidden from people.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, Subcommand};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::error::Error;

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

impl Generate {
    /// Writes the files into a directory, which is made if need be.
    pub(crate) fn run(self) -> Result<(), Error> {
        let (Self::Man { directory } | Self::Completions { directory }) = &self;
        self.write(directory)
            .map_err(|source| Error::Generate { directory: directory.clone(), source })
    }

    fn write(&self, directory: &Path) -> Result<(), std::io::Error> {
        std::fs::create_dir_all(directory)?;
        match self {
            Self::Man { .. } => clap_mangen::generate_to(Cli::command(), directory),
            Self::Completions { .. } => {
                for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                    clap_complete::generate_to(shell, &mut Cli::command(), "pfoctl", directory)?;
                }
                Ok(())
            }
        }
    }
}
