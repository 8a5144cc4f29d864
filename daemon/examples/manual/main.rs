//! Writes the manual pages of pfod and of its configuration into a directory, from the command
//! line's declaration and the shipped configuration, so that they cannot differ from them. For
//! packaging.

#[path = "../../../packaging/manual/config_page.rs"]
mod config_page;
mod daemon_page;
#[path = "../../../packaging/manual/sections.rs"]
mod sections;

use std::path::Path;
use std::process::ExitCode;

use config_page::Frame;

const SHIPPED: &str = include_str!("../../pfod.toml");

const CONFIG: Frame = Frame {
    title: "pfod.toml",
    source: concat!("pfod ", env!("CARGO_PKG_VERSION")),
    name: "pfod.toml - what pfod grants to whom, and how it drives GPU clocks",
    description: "pfod(8) reads /etc/pfo/pfod.toml, a TOML file. Every key has a default, which is shown \
                  here. An unknown key is an error. `pfod --check-config` says whether the file is right.",
    see_also: "pfod(8), pfoctl(1)",
};

fn write(directory: &Path) -> Result<(), std::io::Error> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("pfod.8"), daemon_page::page()?)?;
    std::fs::write(directory.join("pfod.toml.5"), config_page::page(&CONFIG, SHIPPED))
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
