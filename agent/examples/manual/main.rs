//! Writes the manual pages of pfo-agent and of its configuration into a directory, from the command
//! line's declaration and the shipped configuration, so that they cannot differ from them. For
//! packaging.

mod agent_page;
mod config_page;

use std::path::Path;
use std::process::ExitCode;

const SHIPPED: &str = include_str!("../../agent.toml");

fn write(directory: &Path) -> Result<(), std::io::Error> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("pfo-agent.8"), agent_page::page()?)?;
    std::fs::write(directory.join("pfo-agent.toml.5"), config_page::page(SHIPPED))
}

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1) else {
        eprintln!("manual: name the directory for the pages");
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
