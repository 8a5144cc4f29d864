//! Writes the seeds of one target to a directory: `pfo-fuzz-seeds TARGET DIRECTORY`; without
//! arguments it names the targets.

use std::path::Path;

use pfo_fuzz::seeds::TARGETS;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [wanted, directory] = &arguments[..] else {
        TARGETS.iter().for_each(|(name, _, _)| println!("{name}"));
        return Ok(());
    };
    std::fs::create_dir_all(directory)?;
    for (_, _, seeds) in TARGETS.iter().filter(|(name, _, _)| name == wanted) {
        for (number, seed) in seeds().iter().enumerate() {
            std::fs::write(Path::new(directory).join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
