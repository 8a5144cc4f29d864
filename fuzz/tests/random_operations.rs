//! The targets whose bytes are all choices, on random ones: what libFuzzer does for hours, for a
//! moment. `PFO_FUZZ_SECONDS` makes it longer.

use std::process::Command;

/// Each takes as long.
const SECONDS: &str = "20";

fn nothing_random_makes_it_panic(name: &str) {
    let seconds = std::env::var("PFO_FUZZ_SECONDS").unwrap_or_else(|_| SECONDS.into());
    let ran = Command::new(env!("CARGO_BIN_EXE_pfo-fuzz-random")).args([name, &seconds]).output();
    let ran = ran.unwrap();
    println!("{}", String::from_utf8_lossy(&ran.stdout));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn no_sequence_of_operations_hurts_the_daemon_or_another_user() {
    nothing_random_makes_it_panic("daemon");
}

#[test]
fn nothing_that_a_job_reports_makes_the_agent_panic() {
    nothing_random_makes_it_panic("agent");
}
