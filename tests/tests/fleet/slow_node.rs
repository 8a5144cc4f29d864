//! Nodes of which the last one can be made slow.

use nvidia_ml::clock_table::ClockRange;
use nvidia_ml::machine::MachinePlan;
use nvidia_ml::units::Mhz;
use pfo_tests::{MachineSetup, Node, STAGES, Setup};

use super::cluster::NODES;

/// The node that becomes slow.
pub(crate) const SLOW: usize = NODES.len() - 1;

/// The memory of the slow node's GPUs slows them down by three tenths when it is locked.
pub(crate) fn setup(node: usize) -> Setup {
    let made: fn(MachinePlan) -> MachinePlan = match node {
        SLOW => |plan| MachinePlan { memory_lock_slows_permille: Some(300), ..plan },
        _ => |plan| plan,
    };
    Setup {
        machine: MachineSetup { made, ..MachineSetup::default() },
        // Less than what the slow memory does, and more than a wait for the processor.
        agent_rules: "[watch]\nslow_percent = 18\nsteps = 3\ndrift_percent = 90\n",
        ..Setup::default()
    }
}

pub(crate) fn make_slow(node: &Node, slow: bool) {
    let any = Mhz(1);
    for gpu in 0..STAGES as usize {
        let range = slow.then_some(ClockRange { min: any, max: any });
        node.machine.gpu(gpu).lock_memory_clocks(range).unwrap();
    }
}
