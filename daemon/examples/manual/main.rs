//! Writes the manual pages of pfod and of its configuration into a directory, from the command
//! line's declaration and the shipped configuration, so that they cannot differ from them. For
//! packaging.

mod config_page;
mod daemon_page;

use std::path::Path;
use std::process::ExitCode;

const SHIPPED: &str = include_str!("../../pfod.toml");

fn write(directory: &Path) -> Result<(), std::io::Error> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("pfod.8"), daemon_page::page()?)?;
    std::fs::write(directory.join("pfod.toml.5"), config_page::page(SHIPPED))
}

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1) else {
        eprintln!("manual: name the directory to write the pages to");
        return ExitCode::from(2);
    };
    match write(Path::new(&directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("manual: cannot write into {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}
