//! Writes the manual pages of pfo-agent and of its configuration into a directory, from the command
//! line's declaration and the shipped configuration, so that they cannot differ from them. For
//! packaging.

mod agent_page;
#[path = "../../../packaging/manual/config_page.rs"]
mod config_page;
#[path = "../../../packaging/manual/sections.rs"]
mod sections;

use std::path::Path;
use std::process::ExitCode;

use config_page::Frame;

const SHIPPED: &str = include_str!("../../agent.toml");

const CONFIG: Frame = Frame {
    title: "pfo-agent.toml",
    source: concat!("pfo ", env!("CARGO_PKG_VERSION")),
    name: "pfo-agent.toml - configuration of the agent of pfo",
    description: "pfo-agent(8) reads /etc/pfo/agent.toml, a TOML file. Every key has a default, which is \
                  shown here. An unknown key is an error. `pfo-agent --check-config` checks the file.",
    see_also: "pfo-agent(8), pfod(8), pfod.toml(5), pfoctl(1)",
};

fn write(directory: &Path) -> Result<(), std::io::Error> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("pfo-agent.8"), agent_page::page()?)?;
    std::fs::write(directory.join("pfo-agent.toml.5"), config_page::page(&CONFIG, SHIPPED))
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
