//! The commands of the guides, as they stand there, on a booted Debian with two jobs that train.
//!
//! A remark before each block, which no reader of the page sees, names who runs it: `<!-- run: alice -->`. Without one,
//! `scripts/check-docs` wants to be told who does: `<!-- not run: WHY -->`.

use std::fs;

use pfo_tests::{Container, Debian, PROGRAMS, Ran, programs, wait};

const GUIDES: [&str; 6] = [
    "README.md",
    "docs/first-hour.md",
    "docs/ten-minutes.md",
    "docs/metrics.md",
    "docs/budget.md",
    "docs/tested-on.md",
];

/// The jobs that the guides speak of, and their GPUs.
const JOBS: [(&str, &str); 2] = [("llama", "0,1,2,3"), ("JOB", "4,5,6,7")];

/// What stands in for what only a person, a builder or an own trainer can do and for what Debian's tree lacks, and
/// an end for what has none. Of simulated GPUs, doctor misses the kernel's module.
const STAND_INS: &str = r#"
set -eu
make() { :; }
apt() { :; }
sudo() { "$@"; }
sudoedit() { test -w "$1"; }
torchrun() { :; }
journalctl() { timeout 2 journalctl "$@" || test $? -eq 124; }
curl() { python3 -c '
import socket, sys
scraper = socket.socket(socket.AF_UNIX)
scraper.connect(sys.argv[1])
scraper.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
assert b"pfo_daemon_up 1" in b"".join(iter(lambda: scraper.recv(65536), b""))
' "$2"; }
doctor() { test "$(command pfoctl doctor | tee /dev/stderr | grep --count '^wrong')" -eq 1; }
pfoctl() {
    case $1 in
        doctor) doctor ;;
        top) timeout 3 script --quiet --return --command 'pfoctl top' /dev/null || test $? -eq 124 ;;
        *) command pfoctl "$@" ;;
    esac
}
"#;

/// A block of commands.
struct Block {
    line: usize,
    user: String,
    commands: String,
}

/// The blocks of a guide that are to be run.
fn blocks(guide: &str) -> Vec<Block> {
    let text = fs::read_to_string(programs::source_root().join(guide)).unwrap();
    let mut lines = text.lines().enumerate();
    let mut blocks = Vec::new();
    while let Some((_, line)) = lines.next() {
        let remark = line.trim().strip_prefix("<!-- run: ");
        let Some(user) = remark.and_then(|user| user.strip_suffix(" -->")) else { continue };
        let (at, fence) = lines.next().unwrap();
        assert_eq!(fence.trim(), "```sh", "{guide}, line {}", at + 1);
        let commands =
            lines.by_ref().map(|(_, line)| line.trim()).take_while(|line| *line != "```");
        let commands = commands.collect::<Vec<_>>().join("\n");
        blocks.push(Block { line: at + 2, user: user.to_owned(), commands });
    }
    assert!(!blocks.is_empty(), "{guide} has no block to run");
    blocks
}

/// What the guides take for granted: accounts, files of the package, the site's power, and what is on disk.
fn prepare(debian: &Container) {
    let files = [
        (
            "packaging/prometheus/pfo-agent-metrics.socket",
            "/usr/share/pfo/pfo-agent-metrics.socket",
        ),
        ("daemon/pfod.toml", "/etc/pfo/pfod.toml"),
    ];
    for (from, to) in files {
        let to = debian.file(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let text = fs::read(programs::source_root().join(from)).unwrap();
        fs::write(to, text).unwrap();
    }
    let prepare = "useradd --create-home alice && useradd ann && useradd --groups pfo USER && usermod -aG pfo alice && \
                   printf 'at,budget\\n06:00,40kW\\n17:30,30kW\\n' > /etc/pfo/day.csv";
    debian.run(prepare).printed();
}

fn train(debian: &Container) {
    for (job, gpus) in JOBS {
        let train = format!(
            "systemd-run --quiet --unit={job} --uid=alice {PROGRAMS}/pfo-sim-trainer launch --time-scale 0.02 \
             --job {job} --steps 0 --stages 4 --microbatches 8 --gpus {gpus}"
        );
        debian.run(&train).printed();
    }
    wait::until_is("ranks", &8, || {
        let status = debian.pfo_status();
        let jobs = status["jobs"].as_array().cloned().unwrap_or_default();
        jobs.iter().map(|job| job["ranks"].as_array().map_or(0, Vec::len)).sum::<usize>()
    });
}

fn run(debian: &Container, guide: &str, block: &Block) -> Ran {
    let script = format!("{}.sh", guide.replace('/', "-"));
    let text = format!("{STAND_INS}cd\n{}\n", block.commands);
    fs::write(debian.shared().join(&script), text).unwrap();
    debian.run_as(&block.user, &format!("bash /shared/{script}"))
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn every_command_of_the_guides_does_what_it_is_for() {
    let Some(debian) = Container::boot(Debian::Trixie) else { return };
    debian.install_pfo("8xA100");
    prepare(&debian);
    train(&debian);
    let failed: Vec<String> = GUIDES
        .into_iter()
        .flat_map(|guide| blocks(guide).into_iter().map(move |block| (guide, block)))
        .filter_map(|(guide, block)| {
            let ran = run(&debian, guide, &block);
            (ran.code != Some(0)).then(|| format!("{guide}, line {}: {ran}", block.line))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
