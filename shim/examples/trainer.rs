//! A trainer in Rust: one rank of a 1F1B pipeline that sleeps where a real one computes.
//!
//! ```text
//! PFO_JOB=demo PFO_GPU=GPU-… RANK=1 WORLD_SIZE=4 trainer [STEPS [MICROBATCHES]]
//! ```
//!
//! Ends with one line of JSON: what became of its events, and the code of the last problem.

use std::process::ExitCode;
use std::str::FromStr;
use std::thread::sleep;
use std::time::Duration;

use pfo::{Instruction, Rank, RankDescription, Session, Stage};

fn number<N: FromStr>(text: Option<String>, otherwise: N) -> N {
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn run(session: &Session, instruction: Instruction, microbatch: u32, milliseconds: u64) {
    let _instruction = session.instruction(instruction, microbatch);
    sleep(Duration::from_millis(milliseconds));
}

fn one_step(session: &Session, warmup: u32, microbatches: u32) {
    let _step = session.step();
    let mut backwards = 0..microbatches;
    for forward in 0..microbatches {
        run(session, Instruction::Forward, forward, 2);
        if forward >= warmup
            && let Some(backward) = backwards.next()
        {
            run(session, Instruction::Backward, backward, 4);
        }
    }
    for backward in backwards {
        run(session, Instruction::Backward, backward, 4);
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let steps = number(arguments.next(), 10);
    let microbatches = number(arguments.next(), 4);
    let stage = number(std::env::var("RANK").ok(), 0);
    let stages = number(std::env::var("WORLD_SIZE").ok(), 1);

    let session = match Session::open(RankDescription {
        rank: Rank(stage.into()),
        pp_rank: Stage(stage),
        pp_degree: stages,
        num_microbatches: Some(microbatches),
        ..RankDescription::default()
    }) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("no session: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(problem) = session.problem() {
        eprintln!("training at default clocks: {problem}");
    }
    if let Some(problem) = session.plan_problem() {
        eprintln!("training without the plan: {problem}");
    }

    for _ in 0..steps {
        one_step(&session, stages - 1 - u32::from(stage), microbatches);
    }

    let problem = session.problem().map_or(0, |problem| problem.code.number());
    let counters = session.counters();
    println!(
        "{{\"steps\": {steps}, \"sent\": {}, \"dropped\": {}, \"reconnects\": {}, \
         \"connected\": {}, \"problem\": {problem}}}",
        counters.sent, counters.dropped, counters.reconnects, counters.connected,
    );
    ExitCode::SUCCESS
}
