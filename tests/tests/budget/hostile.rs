//! A trainer that says what cannot be, so that it seems to draw less than it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use pfo_protocol::{GpuName, Instruction, Mark, Unit};
use pfo_tests::{Client, hello, needs_root};

use super::{admin, budgeted, drawn_w, node, stop, two, until_below};

#[test]
fn what_a_hostile_trainer_says_lowers_no_count_and_frees_no_watt_for_others() {
    const LIAR: &str = "liar";
    const GPU: usize = 8;
    const MINUTE_NS: u64 = 55_000_000_000;
    needs_root!();
    let node = node();
    let trainings = two(&node);
    let mut liar = Client::connect(&node.socket());
    let gpu = GpuName::Uuid(node.machine.uuid(GPU));
    liar.open(hello(LIAR, 0, 1, gpu)).unwrap();
    let _computes = node.machine.compute(GPU);
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    // Every other step seems to take a minute, and in between time runs backwards.
    let lies = spawn(move || {
        let unit = Unit::new(Instruction::Backward, 7);
        for step in 1_u64.. {
            if ends.load(Relaxed) {
                return liar;
            }
            let at_ns = pfo_service::now_ns() + if step % 2 == 0 { MINUTE_NS } else { 0 };
            liar.tell_at(at_ns, Mark::StepBegin(step));
            liar.tell_at(at_ns.saturating_sub(MINUTE_NS / 2), Mark::InstructionEnd(unit));
            liar.tell_at(at_ns, Mark::InstructionBegin(unit));
            liar.tell_at(0, Mark::StepEnd(step / 2));
            sleep(Duration::from_millis(100));
        }
        liar
    });
    let full_w = drawn_w(&node, 3.0);
    let of_liar_w = |seconds: f64| {
        let (began, before_j) = (Instant::now(), node.machine.energy_j(GPU));
        sleep(Duration::from_secs_f64(seconds));
        (node.machine.energy_j(GPU) - before_j) / began.elapsed().as_secs_f64()
    };
    let budget_w = 0.85 * full_w;
    let _ = admin(&node, &["budget", "set", &format!("{budget_w:.0}W")]);
    until_below(&node, budget_w);
    node.until("it counts for what it draws", || {
        let drawn_w = of_liar_w(2.0);
        let said = budgeted(&node, LIAR).unwrap();
        let counted_w = said["drawn_w"].as_f64().unwrap_or(0.0);
        if counted_w > 0.75 * drawn_w { Ok(()) } else { Err(format!("{drawn_w} W, and {said}")) }
    });
    until_below(&node, budget_w);
    is_over.store(true, Relaxed);
    drop(lies.join().unwrap());
    stop(trainings);
}
