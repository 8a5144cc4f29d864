//! Runs a target whose bytes are all choices on random ones, where there is no libFuzzer:
//! `pfo-fuzz-random TARGET SECONDS [SEED]`, or on those of a file: `pfo-fuzz-random TARGET FILE`.
//!
//! An input that ends in a panic or in nothing is written to a file, whose name is printed.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, abort, exit, id};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, panic, thread};

use nvidia_ml::STATE_VARIABLE;
use pfo_fuzz::daemon::OPERATIONS;
use pfo_fuzz::seeds::TARGETS;
use pfo_fuzz::temporary::directory;

/// The longest input.
const MOST_BYTES: usize = 2048;

/// No input takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The input that runs, and since when.
static RUNNING: Mutex<Option<(Vec<u8>, Instant)>> = Mutex::new(None);

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, what, seed @ ..] = &arguments[..] else { usage() };
    let Some((_, target, _)) = TARGETS.iter().find(|(known, ..)| known == name) else { usage() };
    if env::var_os(STATE_VARIABLE).is_none() {
        // The driver library reads it from the environment that the process began with.
        let this = env::current_exe().expect("a program");
        let state = directory().join("gpus.state");
        let error = Command::new(this).args(&arguments).env(STATE_VARIABLE, state).exec();
        panic!("{error}");
    }
    end_with_the_input();
    let Ok(seconds) = what.parse() else {
        return run(*target, &fs::read(what).expect("a file"));
    };
    let seed = seed.first().map_or(0, |seed| seed.parse().unwrap_or_else(|_| usage()));
    let mut random = fastrand::Rng::with_seed(seed);
    let (began, mut inputs) = (Instant::now(), 0u64);
    while began.elapsed() < Duration::from_secs(seconds) {
        let length = random.usize(1..MOST_BYTES);
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
        run(*target, &bytes);
        inputs += 1;
    }
    let _ = fs::remove_dir_all(directory());
    match OPERATIONS.load(Relaxed) {
        0 => println!("{name}: {inputs} inputs, seed {seed}"),
        operations => println!("{name}: {inputs} sequences, {operations} operations, seed {seed}"),
    }
}

fn usage() -> ! {
    eprintln!("usage: pfo-fuzz-random TARGET SECONDS [SEED] | TARGET FILE");
    exit(2)
}

fn run(target: fn(&[u8]), bytes: &[u8]) {
    *running() = Some((bytes.to_vec(), Instant::now()));
    target(bytes);
    *running() = None;
}

fn running() -> std::sync::MutexGuard<'static, Option<(Vec<u8>, Instant)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process at a panic of any thread, and when an input takes for ever.
fn end_with_the_input() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        give_up();
    }));
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_secs(1));
            let began = running().as_ref().map(|(_, began)| *began);
            if began.is_some_and(|began| began.elapsed() > PATIENCE) {
                eprintln!("it takes more than {PATIENCE:?}");
                give_up();
            }
        }
    });
}

fn give_up() -> ! {
    if let Some((bytes, _)) = running().take() {
        let file: PathBuf = env::temp_dir().join(format!("pfo-fuzz-{}.input", id()));
        match fs::write(&file, bytes) {
            Ok(()) => eprintln!("the input is in {}", file.display()),
            Err(error) => eprintln!("the input cannot be written: {error}"),
        }
    }
    abort()
}
