#!/bin/bash
# behaviour: Tests and simulators on tokio's paused time expect that virtual time is exact: nothing waits, so nothing is
#   late. But a paused clock moves by the timer's whole milliseconds. Instructions of 100 us take 1 ms each, ten times
#   their time and energy, and those of 1.5 ms take 2 ms. Who sleeps until an instant in place of for a duration has
#   the right sum, and the error in the order: a stage that is done after 1.1 ms and one after 1.4 ms are done at one
#   instant, so whoever waits for the first has waited for both. interval() hides it: tick() returns when a tick was
#   due, and the clock says up to a millisecond more.
# seen: tokio 1.54.1, start_paused = true; 1000 of each, in virtual time:
#   sleep(100 us) 1 s, sleep(1500 us) 2 s; sleep_until in steps of 100 us 0.1 s
#   ends of sleep(1100 us) and sleep(1400 us), begun together: equal; sleep(2 ms) and sleep(3 ms): 1 ms apart
#   interval(100 us): the clock is 450 us after what tick() returned, in the mean
# needs: cargo, crates.io. Exits with 0 as long as it does so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir src
cat > Cargo.toml <<'TOML'
[package]
name = "virtual"
version = "0.0.0"
edition = "2021"

[dependencies]
tokio = { version = "=1.54.1", features = ["rt", "time", "test-util", "macros"] }
TOML
cat > src/main.rs <<'RUST'
use std::time::Duration;
use tokio::time::{interval, sleep, sleep_until, Instant};

const COUNT: u32 = 1000;

async fn one_after_the_other(us: u64) -> u128 {
    let began = Instant::now();
    for _ in 0..COUNT {
        sleep(Duration::from_micros(us)).await;
    }
    began.elapsed().as_micros()
}

async fn apart(first_us: u64, second_us: u64) -> i128 {
    let end = |us| async move {
        sleep(Duration::from_micros(us)).await;
        Instant::now()
    };
    let began = Instant::now();
    let (first, second) = tokio::join!(end(first_us), end(second_us));
    (second - began).as_micros() as i128 - (first - began).as_micros() as i128
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let (short, long) = (one_after_the_other(100).await, one_after_the_other(1500).await);
    let began = Instant::now();
    for n in 1..=COUNT {
        sleep_until(began + n * Duration::from_micros(100)).await;
    }
    let until = began.elapsed().as_micros();
    let (near, far) = (apart(1100, 1400).await, apart(2000, 3000).await);
    let mut ticks = interval(Duration::from_micros(100));
    ticks.tick().await;
    let mut late = Duration::ZERO;
    for _ in 0..COUNT {
        let due = ticks.tick().await;
        late += Instant::now() - due;
    }
    let late = (late / COUNT).as_micros();
    println!("sleep(100 us) {short} us, sleep(1500 us) {long} us, sleep_until {until} us");
    println!("1.1 and 1.4 ms end {near} us apart, 2 and 3 ms {far} us; a tick is {late} us late");
    let seen = (short, long, until, near, far, late);
    assert_eq!(seen, (1_000_000, 2_000_000, 100_000, 0, 1000, 450), "this has changed");
}
RUST
cargo run --quiet
