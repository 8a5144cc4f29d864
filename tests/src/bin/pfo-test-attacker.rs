//! A process that takes all it can get of the daemons of a node, until it is killed, or for a quarter
//! of an hour: a test that dies leaves none behind for long.
//!
//! ```text
//! pfo-test-attacker SOCKET AGENT DEVICES GPUS JOB UID [WAY]…
//! ```
//!
//! It attacks pfod at `SOCKET` and, unless that is empty, the agent at `AGENT`, in all ways or in these.
//! It leases `GPUS`, by their UUIDs, with the device files in `DEVICES`, and means `JOB` of user `UID`.

use std::error::Error;

use nix::unistd::alarm;
use pfo_tests::attack::{Target, attack};

/// In seconds.
const LONGEST_ATTACK: u32 = 15 * 60;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (target, ways) = Target::parse(&arguments)?;
    alarm::set(LONGEST_ATTACK);
    attack(&target, &ways);
    Ok(())
}
