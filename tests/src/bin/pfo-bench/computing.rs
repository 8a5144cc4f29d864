//! A process that leaves pfo alone, and computes for a part of the time.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::Result;

/// The argument that makes this program such a process; a percentage for each thread follows.
pub(crate) const COMPUTES: &str = "--compute";

/// Of a thread that computes part of the time.
const PERIOD: Duration = Duration::from_millis(1);

/// Computes until the process is killed.
pub(crate) fn run(percents: &[String]) -> Result<()> {
    let busy: std::result::Result<Vec<u32>, _> = percents.iter().map(|p| p.parse()).collect();
    let threads: Vec<_> = busy?
        .into_iter()
        .map(|percent| {
            thread::spawn(move || {
                let busy = PERIOD * percent.min(100) / 100;
                loop {
                    let began = Instant::now();
                    while began.elapsed() < busy {
                        std::hint::spin_loop();
                    }
                    if busy < PERIOD {
                        sleep(PERIOD - busy);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".into()))
}
