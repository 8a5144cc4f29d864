//! Scenarios as text: a file of blocks, each of commands, a line `----`, and what they printed.
//! `PFO_REWRITE=1 cargo test -p pfo-agent --lib scenarios` writes what is printed now.

use std::fs;
use std::path::PathBuf;

/// Runs every block of a file below `agent/scenarios`, and compares what its commands print.
pub(crate) fn run(name: &str, mut command: impl FnMut(&str) -> String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name);
    let written = fs::read_to_string(&path).unwrap();
    let blocks = written.split("\n\n").map(|block| {
        let Some((commands, _)) = block.split_once("\n----") else { return block.to_owned() };
        let is_command = |line: &&str| !line.starts_with('#');
        let printed = commands.lines().filter(is_command).map(&mut command);
        let printed: String = printed.filter(|printed| !printed.is_empty()).collect();
        format!("{commands}\n----\n{}", printed.trim_end())
    });
    let now = blocks.collect::<Vec<_>>().join("\n\n").trim_end().to_owned() + "\n";
    if std::env::var_os("PFO_REWRITE").is_some() {
        fs::write(&path, now).unwrap();
    } else {
        assert_eq!(now, written, "PFO_REWRITE=1 accepts what {name} prints now");
    }
}
