//! Drawing what the GPUs do: a line for each, with its clock and its power, until a process ends. Where
//! nobody looks, the lines are printed once, without escape codes.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvidia_ml::driver::{Driver, Gpu};
use nvidia_ml::error::SimError;
use nvidia_ml::units::MonotonicNs;

use crate::args::WatchArgs;

/// How often the lines are drawn: fast enough to see instructions change their clocks.
const EVERY: Duration = Duration::from_millis(100);

/// Bars of these widths, with their figures, fit into 80 columns.
const CLOCK_BAR: usize = 24;
const POWER_BAR: usize = 24;

pub(crate) fn watch(driver: &Driver, args: &WatchArgs) -> Result<(), SimError> {
    let shown = match draw(driver, args, &mut io::stdout().lock()) {
        // Whoever reads has seen enough.
        Err(Problem::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    };
    shown.map_err(|problem| match problem {
        Problem::Write(error) => SimError::file("write", "standard output", error),
        Problem::Sim(error) => error,
    })
}

enum Problem {
    Write(io::Error),
    Sim(SimError),
}

fn draw(driver: &Driver, args: &WatchArgs, output: &mut impl Write) -> Result<(), Problem> {
    let moves =
        io::stdout().is_terminal() && std::env::var("TERM").is_ok_and(|term| term != "dumb");
    let process = args.until_end_of.map(|pid| format!("/proc/{pid}"));
    let runs = || process.as_ref().is_none_or(|process| Path::new(process).exists());
    let began = Instant::now();
    let lasts = || args.seconds.is_none_or(|limit| began.elapsed() < limit);
    let mut is_drawn = false;
    while runs() && lasts() {
        if moves || !is_drawn {
            let lines = driver.gpus().map(line).collect::<Result<Vec<_>, _>>();
            let lines = lines.map_err(Problem::Sim)?;
            let (up, clear) = match (moves, is_drawn) {
                (true, true) => (format!("\x1b[{}A", lines.len()), "\x1b[K"),
                _ => (String::new(), ""),
            };
            let lines: String = lines.iter().map(|line| format!("{line}{clear}\n")).collect();
            write!(output, "{up}{lines}").map_err(Problem::Write)?;
            output.flush().map_err(Problem::Write)?;
            is_drawn = true;
        }
        sleep(EVERY);
    }
    Ok(())
}

fn line(gpu: Gpu<'_>) -> Result<String, SimError> {
    let (state, board, facts) = (gpu.view()?, gpu.board(), gpu.facts());
    let now = MonotonicNs::now();
    let (mhz, power_w) = (state.clock_at(board, now).0, state.power_at(board, now).watts());
    Ok(format!(
        "  GPU {:<2} {mhz:>5} MHz {} {power_w:>4.0} W {}",
        gpu.index(),
        bar(f64::from(mhz) / f64::from(facts.highest().0), CLOCK_BAR),
        bar(power_w / facts.default_power_limit().watts(), POWER_BAR),
    ))
}

/// A share of a bar.
fn bar(share: f64, width: usize) -> String {
    let full = ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    "\u{2588}".repeat(full) + &"\u{2591}".repeat(width - full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_wide_whatever_is_measured() {
        for share in [-1.0, 0.0, 0.49, 1.0, 7.0, f64::NAN, f64::INFINITY] {
            assert_eq!(bar(share, 20).chars().count(), 20, "{share}");
        }
        assert!(bar(0.5, 4).starts_with("\u{2588}\u{2588}\u{2591}"));
    }
}
